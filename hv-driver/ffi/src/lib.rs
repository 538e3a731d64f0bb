// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! [`hv_driver`] as C functions named `perfctr_core_*`, and the functions named `perfctr_glue_*`
//! that it needs of C; `cargo xtask headers` declares both for C.
//!
//! The glue owns all memory.  It hands in storage of the sizes stated here, aligned to 8 bytes, and
//! calls with interrupts disabled on the physical CPU whose object it passes, so every reference
//! made here is the only one while it lives.  Pages are shared with a guest that may write to them;
//! they consist of atomics.
#![cfg_attr(target_os = "none", no_std)]
#![expect(unsafe_code, reason = "the boundary to C: raw pointers come in, symbols go out")]

use core::ffi::{c_int, c_void};

use hv_driver::guest::Clock;
use hv_driver::vcpu::GuestMode;
use hv_driver::{Cpu, Driver, Guest, Identity, Left, Pcpu, Refusal, Registration, Settings, Vcpu};
use shared_abi::hypercall::{HvPlace, HvQuery, HvStats};
use shared_abi::{Errno, VcpuPage};

mod call;
mod x86;

use x86::X86Pmu;

/// Bytes of storage of the driver.
pub const DRIVER_BYTES: usize = 208;
/// Bytes of storage of a physical CPU.
pub const CPU_BYTES: usize = 648;
/// Bytes of storage of a vCPU with a page.
pub const VCPU_BYTES: usize = 2888;
/// Bytes of the largest argument of a hypercall.
pub const ARGUMENT_BYTES: usize = 776;

const _: () = {
    assert!(size_of::<Driver>() <= DRIVER_BYTES && align_of::<Driver>() <= 8);
    assert!(size_of::<CpuObject>() <= CPU_BYTES && align_of::<CpuObject>() <= 8);
    assert!(size_of::<VcpuObject>() <= VCPU_BYTES && align_of::<VcpuObject>() <= 8);
    assert!(ARGUMENT_BYTES == hv_driver::hypercall::ARGUMENT_BYTES_MAX);
};

/// A physical CPU as C holds it.
pub struct CpuObject {
    driver: *const Driver,
    number: u32,
    pcpu: Pcpu,
}

/// A vCPU with a page as C holds it.
pub struct VcpuObject(VcpuParts);

/// What is used most comes first: its address is the object's.
#[repr(C)]
struct VcpuParts {
    vcpu: Vcpu,
    page: *const VcpuPage,
}

impl CpuObject {
    #[inline(always)]
    fn cpu(&mut self) -> Cpu<'_, X86Pmu> {
        Cpu {
            // SAFETY: the driver's storage is static.
            driver: unsafe { &*self.driver },
            pcpu: &mut self.pcpu,
            pmu: &X86Pmu,
            number: self.number,
        }
    }
}

impl VcpuObject {
    #[inline(always)]
    fn parts(&mut self) -> (&mut Vcpu, &VcpuPage) {
        // SAFETY: the page stays mapped while it is registered.
        (&mut self.0.vcpu, unsafe { &*self.0.page })
    }
}

/// Why the driver is off, or nothing counts on a physical CPU; for the console.
#[repr(C)]
#[derive(Debug)]
pub struct Why {
    /// What was expected, not NUL-terminated.
    expected: *const u8,
    expected_bytes: u32,
    /// What was found.
    found: u32,
}

fn mode(kernel: bool) -> GuestMode {
    if kernel { GuestMode::Kernel } else { GuestMode::User }
}

/// What the physical CPU that executes this says of itself.
///
/// # Safety
///
/// `cpuid` is storage of one structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_read_cpuid(cpuid: *mut Identity) {
    // SAFETY: the caller's promise.
    unsafe { cpuid.write(x86::cpuid()) };
}

/// Decides whether this CPU is usable; gives 0, or -1 and why not.
///
/// # Safety
///
/// `driver` is storage of `DRIVER_BYTES` bytes, `why` of one structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_init(
    driver: *mut Driver,
    cpuid: &Identity,
    settings: &Settings,
    why: *mut Why,
) -> c_int {
    match Driver::new(cpuid, settings) {
        Ok(ready) => {
            // SAFETY: the caller gives storage of this size.
            unsafe { driver.write(ready) };
            0
        }
        // SAFETY: as above.
        Err(refusal) => unsafe { refused(refusal, why) },
    }
}

/// Gives -1, and says why.
///
/// # Safety
///
/// `why` is storage of one structure.
unsafe fn refused(refusal: Refusal, why: *mut Why) -> c_int {
    let (expected, found) = refusal.describe();
    let expected_bytes = expected.len() as u32;
    // SAFETY: the caller's promise.
    unsafe { why.write(Why { expected: expected.as_ptr(), expected_bytes, found }) };
    -1
}

/// Physical CPU `number`, which executes this, has come up, and its registers may hold anything.
/// Prepares its storage; gives 0, or -1 and why nothing will count here.
///
/// `cpuid` is null for the boot CPU when it comes back: it has not become another one.
///
/// # Safety
///
/// `cpu` is storage of `CPU_BYTES` bytes, `why` of one structure; `driver` is initialised and never
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_cpu_up(
    cpu: *mut CpuObject,
    driver: *const Driver,
    number: u32,
    cpuid: Option<&Identity>,
    why: *mut Why,
) -> c_int {
    // SAFETY: the caller gives storage of this size, to nobody else.
    let cpu = unsafe {
        cpu.write(CpuObject { driver, number, pcpu: Pcpu::new() });
        &mut *cpu
    };
    let cpu = &mut cpu.cpu();
    match cpu.come_up(cpuid.unwrap_or(&cpu.driver.boot)) {
        Ok(()) => 0,
        // SAFETY: as above.
        Err(refusal) => unsafe { refused(refusal, why) },
    }
}

/// The physical CPU that executes this goes down, or is given back.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_cpu_down(cpu: &mut CpuObject) {
    cpu.cpu().go_down();
}

/// The calling vCPU, `id` of `domain`, registers `page`, or goes on from what it says.
///
/// See [`Vcpu::register`] and [`Vcpu::go_on`].  Gives 0 or a negative error number.
///
/// # Safety
///
/// `vcpu` is storage of `VCPU_BYTES` bytes; `page` stays mapped until it is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_register(
    cpu: &mut CpuObject,
    vcpu: *mut VcpuObject,
    page: *const VcpuPage,
    guest: &Guest,
    id: u32,
    domain: u64,
    allowed: bool,
    goes_on: bool,
) -> c_int {
    let who = Registration { id, domain, guest: *guest, allowed };
    // SAFETY: the caller passes a mapped page.
    let (cpu, shared) = (&mut cpu.cpu(), unsafe { &*page });
    let left = if goes_on {
        match Left::of(shared, &cpu.driver.caps) {
            Ok(_) if !cpu.pcpu.counts() => return Errno::NODEV.to_return(),
            Ok(left) => Some(left),
            Err(errno) => return errno.to_return(),
        }
    } else {
        None
    };
    let registered = Vcpu::register(cpu, shared, &who, left.as_ref());
    // SAFETY: the caller gives storage of this size, to nobody else.
    let own = unsafe {
        vcpu.write(VcpuObject(VcpuParts { vcpu: registered, page }));
        &mut *vcpu
    };
    if let Some(left) = &left {
        own.0.vcpu.go_on(cpu, shared, left);
    }
    0
}

/// See [`Vcpu::abandon`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_abandon(cpu: &mut CpuObject, vcpu: &mut VcpuObject) {
    vcpu.0.vcpu.abandon(&mut cpu.cpu());
}

/// A vCPU without a page is switched in.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_run_stranger(cpu: &mut CpuObject) {
    cpu.cpu().run_stranger();
}

/// See [`Vcpu::switch_from`]; gives whether to call [`perfctr_core_overflowed_at`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_switch_from(cpu: &mut CpuObject, vcpu: &mut VcpuObject) -> bool {
    let (vcpu, page) = vcpu.parts();
    vcpu.switch_from(&mut cpu.cpu(), page)
}

/// See [`Vcpu::overflowed_at`].  To be called where the guest is sent the virtual interrupt, too.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_overflowed_at(vcpu: &mut VcpuObject, place: &HvPlace) {
    vcpu.0.vcpu.overflowed_at(place);
}

/// See [`Vcpu::set_clock`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_set_clock(vcpu: &mut VcpuObject, clock: &Clock) {
    vcpu.0.vcpu.set_clock(*clock);
}

/// See [`Vcpu::switch_to`]; gives whether to send the guest the virtual interrupt.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_switch_to(
    cpu: &mut CpuObject,
    vcpu: &mut VcpuObject,
    kernel: bool,
    allowed: bool,
) -> bool {
    let (vcpu, page) = vcpu.parts();
    vcpu.switch_to(&mut cpu.cpu(), page, mode(kernel), allowed)
}

/// See [`Vcpu::toggle`]; gives whether to send the guest the virtual interrupt.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_toggle(
    cpu: &mut CpuObject,
    vcpu: &mut VcpuObject,
    kernel: bool,
) -> bool {
    let (vcpu, page) = vcpu.parts();
    vcpu.toggle(&mut cpu.cpu(), page, mode(kernel))
}

/// The host forbids the domain of the vCPU that is current here; see [`Vcpu::revoke`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_revoke(cpu: &mut CpuObject, vcpu: &mut VcpuObject) {
    let (vcpu, page) = vcpu.parts();
    vcpu.revoke(&mut cpu.cpu(), page);
}

/// The PMU has interrupted while `vcpu` executes, which is null if it has no page.
///
/// Gives whether to send it the virtual interrupt.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_interrupt(
    cpu: &mut CpuObject,
    vcpu: Option<&mut VcpuObject>,
) -> bool {
    let mut cpu = cpu.cpu();
    let Some(vcpu) = vcpu else {
        cpu.acknowledge();
        return false;
    };
    let (vcpu, page) = vcpu.parts();
    vcpu.interrupt(&mut cpu, page)
}

/// Adds this CPU's statistics to `total`.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_add_stats(cpu: &CpuObject, total: &mut HvStats) {
    cpu.pcpu.stats.add_to(total);
}

/// What a guest is told that may not count; see [`hv_driver::hypercall::answer`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_query(driver: &Driver, query: &mut HvQuery) {
    *query = hv_driver::hypercall::answer(driver, false, 0);
}

/// Serves a hypercall; gives 0 or a negative error number.
///
/// `caller` is passed to the copying functions.
///
/// # Safety
///
/// `argument` is storage of `ARGUMENT_BYTES` bytes, aligned to 8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_hypercall(
    driver: &Driver,
    caller: *mut c_void,
    op: u32,
    argument: *mut c_void,
    length: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { call::hypercall(driver, caller, op, argument, length) } {
        Ok(()) => 0,
        Err(errno) => errno.to_return(),
    }
}

#[expect(improper_ctypes, reason = "C knows these objects by their address only")]
unsafe extern "C" {
    /// RDMSR of a register that perhaps does not exist; whether it did not fault.
    fn perfctr_glue_try_rdmsr(msr: u32, value: *mut u64) -> bool;
    /// WRMSR of a register that perhaps does not exist; whether it did not fault.
    fn perfctr_glue_try_wrmsr(msr: u32, value: u64) -> bool;
    /// What the register that enables counters has in the current vCPU, and outside it.
    /// Interrupts are disabled.  Not called for PV guests, nor where the PMU tells guests apart.
    fn perfctr_glue_load_at_switch(inside: u64, outside: u64);
    /// Copies the hypercall's argument in; gives 0 or a negative error number.
    fn perfctr_glue_copy_in(caller: *mut c_void, to: *mut c_void, length: u32) -> c_int;
    /// Copies the hypercall's argument back; gives 0 or a negative error number.
    fn perfctr_glue_copy_out(caller: *mut c_void, from: *const c_void, length: u32) -> c_int;
    /// Whether the security policy lets the current domain use, or control, counters: 0 or an
    /// error.
    fn perfctr_glue_permits(control: bool) -> c_int;
    /// Whether the host lets the current domain count.
    fn perfctr_glue_allowed() -> bool;
    /// The kind of the current domain; false if it can have no counters.
    fn perfctr_glue_guest(guest: *mut Guest) -> bool;
    /// This physical CPU's object.  Interrupts are disabled.
    fn perfctr_glue_cpu() -> *mut CpuObject;
    /// The current vCPU's object, or null.  Interrupts are disabled.
    fn perfctr_glue_vcpu() -> *mut VcpuObject;
    /// A number of the current domain, see `HvQuery::machine`.
    fn perfctr_glue_machine() -> u64;
    /// Pins the frame and registers it for the current vCPU, or goes on with it; 0 or an error.
    fn perfctr_glue_register(gfn: u64, guest: *const Guest, goes_on: bool) -> c_int;
    /// Unpins the current vCPU's page and frees its object.
    fn perfctr_glue_forget();
    /// Allows or forbids a domain; gives 0 or a negative error number.
    fn perfctr_glue_set_policy(domid: u32, allowed: bool) -> c_int;
    /// Calls `perfctr_core_add_stats` for every physical CPU, one after another.
    fn perfctr_glue_add_stats(total: *mut HvStats);
}

fn from_return(value: c_int) -> Result<(), Errno> {
    if value == 0 { Ok(()) } else { Err(Errno(value.wrapping_neg())) }
}

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Never linked: the build refuses an object that refers to panicking code.
    loop {}
}
