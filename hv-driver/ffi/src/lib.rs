// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! [`hv_driver`] as C functions named `perfctr_core_*`; `glue/xen/core.h` declares them.
//!
//! The glue owns all memory.  It hands in storage of the sizes that `core.h` states, aligned to 8
//! bytes, and calls with interrupts disabled on the physical CPU whose `pcpu` it passes, so every
//! reference made here is the only one while it lives.  Pages are shared with a guest that may
//! write to them; they consist of atomics.
#![cfg_attr(target_os = "none", no_std)]
#![expect(unsafe_code, reason = "the boundary to C: raw pointers come in, symbols go out")]

use core::mem::MaybeUninit;

use hv_driver::hypercall::{self, Request};
use hv_driver::vcpu::GuestMode;
use hv_driver::{Cpuid, Driver, Pcpu, Rate, Vcpu};
use shared_abi::hypercall::HvStats;
use shared_abi::{Config, VcpuPage};

mod x86;

use x86::X86Pmu;

/// Bytes of storage that `core.h` reserves.
const DRIVER_BYTES: usize = 64;
const PCPU_BYTES: usize = 576;
const VCPU_BYTES: usize = 1792;
const CONFIG_BYTES: usize = 320;

const _: () = {
    assert!(size_of::<Driver>() <= DRIVER_BYTES && align_of::<Driver>() <= 8);
    assert!(size_of::<Pcpu>() <= PCPU_BYTES && align_of::<Pcpu>() <= 8);
    assert!(size_of::<Vcpu>() <= VCPU_BYTES && align_of::<Vcpu>() <= 8);
    assert!(size_of::<Config>() <= CONFIG_BYTES && align_of::<Config>() <= 8);
};

/// Why the driver is off, for the console.
#[repr(C)]
#[derive(Debug)]
pub struct CRefusal {
    /// What was expected, not NUL-terminated.
    expected: *const u8,
    expected_bytes: u32,
    /// What was found.
    found: u32,
}

/// A decoded request; see `core.h`.
#[repr(C)]
#[derive(Debug)]
pub struct CRequest {
    kind: u32,
    domid: u32,
    enabled: u32,
    reserved: u32,
    gfn: u64,
    config: MaybeUninit<Config>,
}

const REQUEST_QUERY: u32 = 0;
const REQUEST_REGISTER: u32 = 1;
const REQUEST_UNREGISTER: u32 = 2;
const REQUEST_LOAD: u32 = 3;
const REQUEST_STOP: u32 = 4;
const REQUEST_DOMAIN: u32 = 5;
const REQUEST_STATS: u32 = 6;

fn mode(kernel: bool) -> GuestMode {
    if kernel { GuestMode::Kernel } else { GuestMode::User }
}

/// Decides whether this CPU is usable; gives 0 or -1.
///
/// # Safety
///
/// `driver` is storage for a [`Driver`]; `cpuid`, `rate` and `refusal` are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_init(
    driver: &mut MaybeUninit<Driver>,
    cpuid: &Cpuid,
    measure_cost: bool,
    rate: &Rate,
    refusal: &mut CRefusal,
) -> i32 {
    match Driver::new(cpuid, measure_cost, *rate) {
        Ok(ready) => {
            driver.write(ready);
            0
        }
        Err(why) => {
            let (expected, found) = why.describe();
            refusal.expected = expected.as_ptr();
            refusal.expected_bytes = expected.len() as u32;
            refusal.found = found;
            -1
        }
    }
}

/// Prepares a physical CPU's storage.
///
/// # Safety
///
/// `pcpu` is storage for a [`Pcpu`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_pcpu_init(pcpu: &mut MaybeUninit<Pcpu>) {
    pcpu.write(Pcpu::new());
}

/// See [`Pcpu::run_stranger`].
///
/// # Safety
///
/// `pcpu` is this CPU's, prepared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_run_stranger(pcpu: &mut Pcpu) {
    pcpu.run_stranger();
}

/// See [`Vcpu::register`].
///
/// # Safety
///
/// `vcpu` is storage for a [`Vcpu`], `page` a mapped page; the others are prepared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_register(
    driver: &Driver,
    pcpu: &mut Pcpu,
    vcpu: &mut MaybeUninit<Vcpu>,
    page: &VcpuPage,
    id: u32,
    domain: u64,
    cpu: u32,
) {
    vcpu.write(Vcpu::register(driver, pcpu, &X86Pmu, page, id, domain, cpu));
}

/// See [`Vcpu::unregister`].
///
/// # Safety
///
/// `vcpu` is registered with `page` and executes on this CPU, whose `pcpu` this is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_unregister(
    driver: &Driver,
    pcpu: &mut Pcpu,
    vcpu: &mut Vcpu,
    page: &VcpuPage,
) {
    vcpu.unregister(driver, pcpu, &X86Pmu, page);
}

/// See [`Vcpu::load`].
///
/// # Safety
///
/// As for [`perfctr_core_unregister`]; `request` was decoded as a load.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_load(
    driver: &Driver,
    pcpu: &mut Pcpu,
    vcpu: &mut Vcpu,
    page: &VcpuPage,
    request: &CRequest,
) {
    // SAFETY: `perfctr_core_decode` initialised the configuration of a load.
    let config = unsafe { request.config.assume_init_ref() };
    vcpu.load(driver, pcpu, &X86Pmu, page, config);
}

/// See [`Vcpu::stop`].
///
/// # Safety
///
/// As for [`perfctr_core_unregister`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_stop(
    driver: &Driver,
    pcpu: &mut Pcpu,
    vcpu: &mut Vcpu,
    page: &VcpuPage,
) {
    vcpu.stop(driver, pcpu, &X86Pmu, page);
}

/// See [`Vcpu::switch_from`].
///
/// # Safety
///
/// As for [`perfctr_core_unregister`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_switch_from(
    driver: &Driver,
    pcpu: &mut Pcpu,
    vcpu: &mut Vcpu,
    page: &VcpuPage,
) {
    vcpu.switch_from(driver, pcpu, &X86Pmu, page);
}

/// See [`Vcpu::switch_to`].
///
/// # Safety
///
/// As for [`perfctr_core_unregister`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_switch_to(
    driver: &Driver,
    pcpu: &mut Pcpu,
    vcpu: &mut Vcpu,
    page: &VcpuPage,
    cpu: u32,
    kernel: bool,
    allowed: bool,
) -> bool {
    vcpu.switch_to(driver, pcpu, &X86Pmu, page, cpu, mode(kernel), allowed)
}

/// See [`Vcpu::toggle`].
///
/// # Safety
///
/// As for [`perfctr_core_unregister`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_toggle(
    driver: &Driver,
    pcpu: &mut Pcpu,
    vcpu: &mut Vcpu,
    page: &VcpuPage,
    kernel: bool,
) -> bool {
    vcpu.toggle(driver, pcpu, &X86Pmu, page, mode(kernel))
}

/// See [`Vcpu::interrupt`].
///
/// # Safety
///
/// As for [`perfctr_core_unregister`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_interrupt(
    driver: &Driver,
    pcpu: &mut Pcpu,
    vcpu: &mut Vcpu,
    page: &VcpuPage,
) -> bool {
    vcpu.interrupt(driver, pcpu, &X86Pmu, page)
}

/// See [`Pcpu::acknowledge`].
///
/// # Safety
///
/// `pcpu` is this CPU's, prepared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_acknowledge(driver: &Driver, pcpu: &Pcpu) {
    pcpu.acknowledge(&X86Pmu, &driver.caps);
}

/// Counts a hypercall and decodes it; gives 0 or a negative error number.
///
/// # Safety
///
/// `bytes` points to `length` bytes that nobody else can reach, aligned to 8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_decode(
    driver: &Driver,
    op: u32,
    bytes: *mut u8,
    length: u32,
    domain_enabled: bool,
    decoded: &mut CRequest,
) -> i32 {
    // SAFETY: the caller's promise.
    let bytes = unsafe { core::slice::from_raw_parts_mut(bytes, length as usize) };
    match hypercall::decode(driver, op, bytes, domain_enabled) {
        Ok(request) => {
            encode(&request, decoded);
            0
        }
        Err(errno) => errno.to_return(),
    }
}

fn encode(request: &Request, decoded: &mut CRequest) {
    decoded.kind = match request {
        Request::Query => REQUEST_QUERY,
        Request::Register { gfn } => {
            decoded.gfn = *gfn;
            REQUEST_REGISTER
        }
        Request::Unregister => REQUEST_UNREGISTER,
        Request::Load(config) => {
            decoded.config.write(*config);
            REQUEST_LOAD
        }
        Request::Stop => REQUEST_STOP,
        Request::Domain { domid, enabled } => {
            decoded.domid = *domid;
            decoded.enabled = u32::from(*enabled);
            REQUEST_DOMAIN
        }
        Request::Stats => REQUEST_STATS,
    };
}

/// Counts a hypercall made on this CPU.
///
/// # Safety
///
/// `pcpu` is this CPU's, prepared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_count_hypercall(pcpu: &mut Pcpu) {
    pcpu.stats.hypercall();
}

/// Adds this CPU's statistics to `total`.
///
/// # Safety
///
/// `pcpu` is this CPU's, prepared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_add_stats(pcpu: &Pcpu, total: &mut HvStats) {
    pcpu.stats.add_to(total);
}

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Never linked: the build refuses an object that refers to panicking code.
    loop {}
}
