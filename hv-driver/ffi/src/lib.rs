// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! [`hv_driver`] as C functions named `perfctr_core_*`, and the functions named `perfctr_glue_*`
//! that it needs from C. `cargo xtask headers` declares both for C.
//!
//! The glue owns all memory. It passes storage of the sizes stated here, aligned to 8 bytes. A
//! guest may write to the page that it shares with the driver, so pages consist of atomics.
#![cfg_attr(target_os = "none", no_std)]
#![expect(unsafe_code, reason = "the boundary to C: raw pointers come in, symbols go out")]

use core::ffi::{c_char, c_int, c_void};

use hv_driver::guest::{Clock, Rings};
use hv_driver::settings;
use hv_driver::vcpu::{GuestMode, ToggleWork};
use hv_driver::{
    Account, Demand, Driver, Guest, HostFacts, Identity, Left, Limits, Nmi, Options, Policy,
    PolicyChange, RecordArea, Refusal, Registration, Reservation, SampleRing, Serial, Vcpu,
    VcpuDemand, Window,
};
use shared_abi::hypercall::{
    HvAccounting, HvAccounts, HvDomain, HvDomains, HvPlace, HvProfile, HvQuery, HvSample,
    HvSamples, HvStats,
};
use shared_abi::read::Counters;
use shared_abi::{Errno, VcpuPage};

mod call;
mod on_cpu;
mod reserve;
mod x86;

use on_cpu::{CpuObject, OnCpu};

/// Bytes of storage of the driver.
pub const DRIVER_BYTES: usize = 344;
/// Bytes of storage of a physical CPU.
pub const CPU_BYTES: usize = 600;
/// Bytes of storage of a vCPU with a page.
pub const VCPU_BYTES: usize = 2736;
/// Bytes of what a vCPU keeps when its page is unregistered, all zeroes at first.
pub const WINDOW_BYTES: usize = 16;
/// Bytes of storage of a vCPU's demand for the host's counters, all zeroes at first.
pub const VCPU_DEMAND_BYTES: usize = 16;
/// Bytes of storage of a domain, all zeroes at first.
pub const DOMAIN_BYTES: usize = 24;
/// Bytes of storage of a physical CPU's samples, all zeroes at first.
pub const RING_BYTES: usize = 131112;
/// Bytes of a vCPU's account, all zeroes at first.
pub const ACCOUNT_BYTES: usize = 32;
/// Bytes of storage of a reservation of the host's counters, all zeroes at first.
pub const RESERVATION_BYTES: usize = 16;
/// Bytes of a physical CPU's memory for precise records, all zeroes at first.
pub const RECORD_AREA_BYTES: usize = 4096;
/// Bytes of the largest argument of a hypercall.
pub const ARGUMENT_BYTES: usize = 792;

// The header's generator needs literal numbers. If one is wrong, the compiler's error has the
// right one.
const _: [(); DRIVER_BYTES] = [(); size_of::<Driver>()];
const _: [(); CPU_BYTES] = [(); size_of::<CpuObject>()];
const _: [(); VCPU_BYTES] = [(); size_of::<VcpuObject>()];
const _: [(); WINDOW_BYTES] = [(); size_of::<Window>()];
const _: [(); VCPU_DEMAND_BYTES] = [(); size_of::<VcpuDemand>()];
const _: [(); DOMAIN_BYTES] = [(); size_of::<DomainObject>()];
const _: [(); RING_BYTES] = [(); size_of::<SampleRing>()];
const _: [(); ACCOUNT_BYTES] = [(); size_of::<Account>()];
const _: [(); RESERVATION_BYTES] = [(); size_of::<Reservation>()];
const _: [(); RECORD_AREA_BYTES] = [(); size_of::<RecordArea>()];
const _: [(); ARGUMENT_BYTES] = [(); hv_driver::hypercall::ARGUMENT_BYTES_MAX];
const _: () = {
    assert!(align_of::<Driver>() <= 8 && align_of::<CpuObject>() <= 8);
    assert!(align_of::<VcpuObject>() <= 8 && align_of::<DomainObject>() <= 8);
};

/// A vCPU with a page as C holds it.
pub struct VcpuObject(VcpuParts);

/// The most used field comes first, because its address is the object's.
#[repr(C)]
struct VcpuParts {
    vcpu: Vcpu,
    page: *const VcpuPage,
}

/// The driver's part of a domain, which C holds in its own structure of the domain.
///
/// If all of it is zero, nothing is known of the domain.
pub struct DomainObject {
    policy: Policy,
    demand: Demand,
    serial: Serial,
}

impl VcpuObject {
    #[inline(always)]
    fn parts(&mut self) -> (&mut Vcpu, &VcpuPage) {
        // SAFETY: by the contract of `perfctr_core_register` the page stays mapped as long as this
        // object exists. The page consists of atomics, so the guest may write to it at any time.
        (&mut self.0.vcpu, unsafe { &*self.0.page })
    }
}

/// The reason why the driver is off, or why nothing counts on a physical CPU; for the console.
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

/// Reads what the physical CPU that executes this can do.
///
/// # Safety
///
/// `cpuid` is storage of one structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_read_cpuid(cpuid: *mut Identity) {
    // SAFETY: `cpuid` is a variable on the stack of the C function that calls this.
    unsafe { cpuid.write(x86::cpuid()) };
}

/// Parses the value of the option `perfctr`. Returns 0 or -1.
///
/// If it returns -1, it has stored in `why` what was expected.
///
/// # Safety
///
/// `text` is `length` bytes, `options` and `why` are storage of one structure each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_parse(
    text: *const c_char,
    length: u32,
    options: *mut Options,
    why: *mut Why,
) -> c_int {
    // SAFETY: by this function's contract `text` is `length` bytes; C changes none of them until
    // this returns.
    let text = unsafe { core::slice::from_raw_parts(text.cast(), length as usize) };
    match Options::parse(text) {
        Some(read) => {
            // SAFETY: `options` is C's variable of that type, which nobody reads before this
            // returns 0.
            unsafe { options.write(read) };
            0
        }
        // SAFETY: `why` is storage of one structure, by this function's contract.
        None => unsafe { expected(settings::EXPECTED, 0, why) },
    }
}

/// Decides whether this CPU is usable. Returns 0, or -1 and stores the reason in `why`.
///
/// # Safety
///
/// `driver` is storage of `DRIVER_BYTES` bytes, `why` of one structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_init(
    driver: *mut Driver,
    cpuid: &Identity,
    options: &Options,
    host: &HostFacts,
    why: *mut Why,
) -> c_int {
    match Driver::new(cpuid, &options.settings(host)) {
        Ok(ready) => {
            // SAFETY: C passes storage of `DRIVER_BYTES` bytes, aligned to 8; nobody reads it yet.
            unsafe { driver.write(ready) };
            0
        }
        // SAFETY: `why` is storage of one structure, which C reads only after this function has
        // returned.
        Err(refusal) => unsafe { refused(refusal, why) },
    }
}

/// Returns -1, and writes the reason to `why`.
///
/// # Safety
///
/// `why` is storage of one structure.
unsafe fn refused(refusal: Refusal, why: *mut Why) -> c_int {
    let (text, found) = refusal.describe();
    // SAFETY: this function's contract about `why` is also that of `expected`.
    unsafe { expected(text, found, why) }
}

/// Returns -1, and writes to `why` what was expected and what was found.
///
/// # Safety
///
/// `why` is storage of one structure.
unsafe fn expected(text: &'static str, found: u32, why: *mut Why) -> c_int {
    let expected_bytes = text.len() as u32;
    // SAFETY: by this function's contract `why` is storage of one structure.
    unsafe { why.write(Why { expected: text.as_ptr(), expected_bytes, found }) };
    -1
}

/// Prepares the storage of physical CPU `number`, whose PMU is not the driver's yet.
///
/// # Safety
///
/// `cpu` is storage of `CPU_BYTES` bytes that nobody uses, not even an NMI; `driver` is initialised
/// and never freed. `area` is null, or a page of `RECORD_AREA_BYTES` bytes that only this CPU uses,
/// that no guest can write to, and that is mapped for the hypervisor at this address in each
/// address space in which this CPU executes a PV guest.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_cpu_init(
    cpu: *mut CpuObject,
    driver: *const Driver,
    number: u32,
    area: *const c_void,
) {
    // SAFETY: C passes null, or a page of its own that is never used for anything else. The page
    // consists of atomics, so the processor may store into it at any time.
    let area = unsafe { area.cast::<RecordArea>().as_ref() };
    // SAFETY: C passes the CPU's storage, of `CPU_BYTES` bytes and aligned to 8, and nobody uses
    // what it held before.
    unsafe { cpu.write(CpuObject::new(driver, number, area)) };
}

/// Takes over the PMU of the physical CPU that executes this, whose registers may hold anything.
///
/// Returns 0, or -1 and stores in `why` the reason why nothing will count here. `cpuid` may be null
/// for the boot CPU when it comes back: CPUID may then give a guest's view, and that CPU cannot
/// have been replaced.
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, `why` is storage of one structure, and
/// interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_cpu_up(
    cpu: &CpuObject,
    cpuid: Option<&Identity>,
    why: *mut Why,
) -> c_int {
    // SAFETY: C calls this on the CPU itself, with interrupts disabled until this returns.
    let mut here = unsafe { OnCpu::new(cpu) };
    let cpu = &mut here.cpu();
    match cpu.come_up(cpuid.unwrap_or(&cpu.driver.boot)) {
        Ok(()) => 0,
        // SAFETY: `why` is storage of one structure on the stack of the C function that calls this.
        Err(refusal) => unsafe { refused(refusal, why) },
    }
}

/// Stops the counters of the physical CPU that executes this, which goes down or is given back.
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_cpu_down(cpu: &CpuObject) {
    // SAFETY: C calls this on the CPU that goes down or is given back, with interrupts disabled.
    unsafe { OnCpu::new(cpu) }.cpu().go_down();
}

/// Returns whether the host lets the domain count.
///
/// `controls` says whether it is the control domain.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_allows(
    driver: &Driver,
    domain: &DomainObject,
    controls: bool,
) -> bool {
    driver.allows(&domain.policy, controls)
}

/// Notes that a vCPU of the domain needs the counters; see [`VcpuDemand::begin`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_demand_begins(
    vcpu: &mut VcpuDemand,
    domain: &DomainObject,
    taken: u64,
) {
    vcpu.begin(&domain.demand, taken);
}

/// Notes that a vCPU of the domain no longer needs the counters; see [`VcpuDemand::end`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_demand_ends(vcpu: &mut VcpuDemand, domain: &DomainObject) -> bool {
    vcpu.end(&domain.demand)
}

/// Returns whether the driver has kept the counters since the vCPU got them; see
/// [`VcpuDemand::has_counters`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_has_counters(vcpu: &VcpuDemand, taken: u64) -> bool {
    vcpu.has_counters(taken)
}

/// Returns whether the domain needs the counters.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_needs_counters(driver: &Driver, domain: &DomainObject) -> bool {
    driver.is_needed(&domain.demand, &domain.policy)
}

/// Allows the domain to count within limits, or forbids it to count.
///
/// Returns what the hypervisor has to do then.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_set_policy(
    driver: &Driver,
    domain: &DomainObject,
    controls: bool,
    wanted: &HvDomain,
) -> PolicyChange {
    domain.policy.set(driver, controls, wanted)
}

/// Parses a domain's number and its limits; see [`hv_driver::policy::parse`].
///
/// Returns 0 or a negative error number.
///
/// # Safety
///
/// `text` is `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_parse_policy(
    text: *const c_char,
    length: u32,
    allowed: bool,
    wanted: &mut HvDomain,
) -> c_int {
    // SAFETY: by this function's contract `text` is `length` bytes; C changes none of them until
    // this returns.
    let text = unsafe { core::slice::from_raw_parts(text.cast(), length as usize) };
    match hv_driver::policy::parse(text, allowed) {
        Some(parsed) => {
            *wanted = parsed;
            0
        }
        None => Errno::INVAL.to_return(),
    }
}

/// Adds a domain to the answer, if the caller has asked for it; see [`Driver::add_domain`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_add_domain(
    driver: &Driver,
    answer: &mut HvDomains,
    domain: &DomainObject,
    domid: u32,
    controls: bool,
) {
    driver.add_domain(answer, &domain.policy, domid, controls);
}

/// Registers `page` for the calling vCPU, `id` of `domain`, or lets it go on from the page.
///
/// See [`Vcpu::register`] and [`Vcpu::go_on`]. Returns 0 or a negative error number. `window` is
/// what `perfctr_core_unregister` has stored for this vCPU last.
///
/// # Safety
///
/// `vcpu` is storage of `VCPU_BYTES` bytes. `page` stays mapped until that storage is freed. `cpu`
/// is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_register(
    cpu: &CpuObject,
    vcpu: *mut VcpuObject,
    page: *const VcpuPage,
    guest: &Guest,
    id: u32,
    window: &Window,
    domain: &DomainObject,
    controls: bool,
    goes_on: bool,
) -> c_int {
    // SAFETY: C calls this for the vCPU that executes here, with interrupts disabled.
    let mut here = unsafe { OnCpu::new(cpu) };
    // SAFETY: C has pinned and mapped the page. The page consists of atomics, so the guest may
    // write anything to it.
    let shared = unsafe { &*page };
    let cpu = &mut here.cpu();
    let limits = cpu.driver.limits(&domain.policy, controls);
    let Limits { slots, overflows_max } = limits.unwrap_or(Limits::NONE);
    let left = if goes_on {
        match Left::of(shared, &cpu.driver.caps) {
            Ok(_) if !cpu.pcpu.counts() => return Errno::NODEV.to_return(),
            Ok(left) if left.slots() & !slots != 0 => return Errno::STALE.to_return(),
            Ok(left) => Some(left),
            Err(errno) => return errno.to_return(),
        }
    } else {
        None
    };
    let who = Registration {
        id,
        domain: domain.serial.of(&cpu.driver.serials),
        guest: *guest,
        allowed: limits.is_some(),
        window: *window,
    };
    let registered = Vcpu::register(cpu, shared, &who, left.as_ref());
    // SAFETY: C passes storage of `VCPU_BYTES` bytes, aligned to 8. Nobody else can find it yet:
    // interrupts are disabled, and only this CPU looks up the current vCPU's object.
    let own = unsafe {
        vcpu.write(VcpuObject(VcpuParts { vcpu: registered, page }));
        &mut *vcpu
    };
    if let Some(left) = &left {
        own.0.vcpu.limit_overflows(overflows_max);
        own.0.vcpu.go_on(cpu, shared, left);
    }
    0
}

/// Unregisters the calling vCPU's page; see [`Vcpu::unregister`].
///
/// It stores in `window` what the vCPU's next registration needs.
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_unregister(
    cpu: &CpuObject,
    vcpu: &mut VcpuObject,
    window: &mut Window,
) {
    let (vcpu, page) = vcpu.parts();
    // SAFETY: C calls this in the vCPU's hypercall, with interrupts disabled.
    *window = vcpu.unregister(&mut unsafe { OnCpu::new(cpu) }.cpu(), page);
}

/// Drops the page of a vCPU that is switched in and whose state is replaced; see [`Vcpu::abandon`].
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_abandon(cpu: &CpuObject, vcpu: &mut VcpuObject) {
    // SAFETY: C calls this where the vCPU is loaded, with interrupts disabled.
    vcpu.0.vcpu.abandon(&mut unsafe { OnCpu::new(cpu) }.cpu());
}

/// Switches in a vCPU without a page.
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_run_stranger(cpu: &CpuObject) {
    // SAFETY: C calls this in its switch of vCPUs, with interrupts disabled.
    unsafe { OnCpu::new(cpu) }.cpu().run_stranger();
}

/// Switches the vCPU out; returns whether to call [`perfctr_core_overflowed_at`].
///
/// See [`Vcpu::switch_from`].
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_switch_from(cpu: &CpuObject, vcpu: &mut VcpuObject) -> bool {
    let (vcpu, page) = vcpu.parts();
    // SAFETY: C calls this in its switch of vCPUs, with interrupts disabled.
    vcpu.switch_from(&mut unsafe { OnCpu::new(cpu) }.cpu(), page)
}

/// Notes the place of overflows that the driver has just found; see [`Vcpu::overflowed_at`].
///
/// C also calls this when it sends the guest the virtual interrupt.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_overflowed_at(vcpu: &mut VcpuObject, place: &HvPlace) {
    vcpu.0.vcpu.overflowed_at(place);
}

/// Sets how the guest reads its time-stamp counter; see [`Vcpu::set_clock`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_set_clock(vcpu: &mut VcpuObject, clock: &Clock) {
    vcpu.0.vcpu.set_clock(*clock);
}

/// Switches the vCPU in; returns whether to send the guest the virtual interrupt.
///
/// See [`Vcpu::switch_to`].
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_switch_to(
    cpu: &CpuObject,
    vcpu: &mut VcpuObject,
    kernel: bool,
    domain: &DomainObject,
    controls: bool,
) -> bool {
    let (vcpu, page) = vcpu.parts();
    // SAFETY: C calls this in its switch of vCPUs, with interrupts disabled.
    let mut here = unsafe { OnCpu::new(cpu) };
    let cpu = &mut here.cpu();
    let allowed = cpu.driver.admits(&domain.policy, controls, vcpu.slots());
    vcpu.switch_to(cpu, page, mode(kernel), allowed)
}

/// Prepares the vCPU before the next instruction enters the guest; see [`Vcpu::enter_guest`].
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_enter_guest(
    cpu: &CpuObject,
    vcpu: &mut VcpuObject,
    kernel: bool,
) {
    let (vcpu, page) = vcpu.parts();
    // SAFETY: C calls this right before VMRUN, with interrupts disabled.
    vcpu.enter_guest(&mut unsafe { OnCpu::new(cpu) }.cpu(), page, mode(kernel));
}

/// Notes an interrupt or an exception that has interrupted a PV guest; see
/// [`Vcpu::guest_interrupted`].
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_guest_interrupted(
    cpu: &CpuObject,
    vcpu: &mut VcpuObject,
    vector: u8,
) {
    let (vcpu, page) = vcpu.parts();
    // SAFETY: C calls this before it enables interrupts again. In an NMI it does so only where the
    // NMI has interrupted the guest, and so nothing that has `cpu`.
    vcpu.guest_interrupted(&mut unsafe { OnCpu::new(cpu) }.cpu(), page, vector);
}

/// Notes a change of the guest's mode. Returns whether to send the guest the virtual interrupt.
///
/// See [`Vcpu::toggle`].
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_toggle(
    cpu: &CpuObject,
    vcpu: &mut VcpuObject,
    kernel: bool,
) -> bool {
    // SAFETY: C calls this where its guest changes the mode, with interrupts disabled.
    let mut cpu = unsafe { OnCpu::new(cpu) };
    match vcpu.parts().0.work_of_toggle() {
        ToggleWork::Nothing => false,
        ToggleWork::Usual => {
            let (vcpu, page) = vcpu.parts();
            vcpu.toggle(&mut cpu.cpu(), page, mode(kernel))
        }
        ToggleWork::Unusual => toggle_otherwise(cpu, vcpu, kernel),
    }
}

/// This function is not inlined, so that the usual change of the mode does not save registers.
#[inline(never)]
fn toggle_otherwise(mut cpu: OnCpu<'_>, vcpu: &mut VcpuObject, kernel: bool) -> bool {
    let (vcpu, page) = vcpu.parts();
    vcpu.toggle_otherwise(&mut cpu.cpu(), page, mode(kernel))
}

/// Stops the vCPU that is current here, if the host no longer lets it count.
///
/// Returns whether the vCPU's page has allowed direct reads until now, and does not any more: then
/// its kernel has to look at the page. See [`Vcpu::revoke`].
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_revoke(
    cpu: &CpuObject,
    vcpu: &mut VcpuObject,
    domain: &DomainObject,
    controls: bool,
) -> bool {
    let (vcpu, page) = vcpu.parts();
    // SAFETY: C calls this in an interrupt of its own, with interrupts disabled.
    let mut here = unsafe { OnCpu::new(cpu) };
    let cpu = &mut here.cpu();
    // The host may have allowed the domain again since the interrupt was sent.
    let forbidden = !cpu.driver.admits(&domain.policy, controls, vcpu.slots());
    forbidden && vcpu.revoke(cpu, page)
}

/// Handles an interrupt of the PMU. Returns whether to send the vCPU the virtual interrupt.
///
/// `vcpu` is the current vCPU, or null if the current vCPU has no page.
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_interrupt(
    cpu: &CpuObject,
    vcpu: Option<&mut VcpuObject>,
) -> bool {
    // SAFETY: C calls this in the PMU's interrupt, or in an interrupt that the PMU's NMI has asked
    // for, with interrupts disabled.
    let mut here = unsafe { OnCpu::new(cpu) };
    let cpu = &mut here.cpu();
    let Some(vcpu) = vcpu else {
        cpu.acknowledge();
        return false;
    };
    let (vcpu, page) = vcpu.parts();
    vcpu.interrupt(cpu, page)
}

/// Returns whether RDPMC also has to exit from a vCPU that has a page.
///
/// Then the hypervisor reads the counter by [`perfctr_core_rdpmc`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_rdpmc_exits(driver: &Driver) -> bool {
    driver.guest_reads_exit
}

/// Reads the counter `index` for a vCPU with a page; returns false if the vCPU is to get #GP.
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_rdpmc(cpu: &CpuObject, index: u32, value: &mut u64) -> bool {
    // SAFETY: C calls this for the vCPU that is current here, with interrupts disabled.
    match unsafe { OnCpu::new(cpu) }.cpu().read_for_guest(index) {
        Some(held) => {
            *value = held;
            true
        }
        None => false,
    }
}

/// Returns whether an overflow explains an NMI that has just come to the CPU of `cpu`, which is up.
///
/// `is_masked` says whether the local APIC's entry for the PMU is masked now. The NMI may have
/// interrupted any other entry of this crate on that CPU.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_explains_nmi(cpu: &CpuObject, is_masked: bool) -> bool {
    cpu.explains_nmi(is_masked)
}

/// Returns whether the PMU has raised an NMI of `cpu` that nobody else has explained.
///
/// The CPU is up. The NMI may have interrupted any other entry of this crate on that CPU.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_explains_unknown_nmi(cpu: &CpuObject) -> bool {
    cpu.explains_unknown_nmi()
}

/// The result of [`perfctr_core_nmi`] if the PMU has not raised the NMI.
pub const NMI_FOREIGN: u32 = 0;
/// The result of [`perfctr_core_nmi`] if the PMU has raised the NMI, and it was handled.
pub const NMI_HANDLED: u32 = 1;
/// The result of [`perfctr_core_nmi`] if a guest's counter has raised the NMI.
pub const NMI_GUEST: u32 = 2;

/// Handles an NMI that has come to the CPU of `cpu`, which is up. Returns an `NMI_*` number.
///
/// `ring` is null while the CPU does not sample. After `NMI_GUEST`, C has
/// [`perfctr_core_interrupt`] called as soon as interrupts are enabled. The NMI may have
/// interrupted any other entry of this crate on that CPU. `is_masked` says whether the local
/// APIC's entry for the PMU is masked now. `at` says where the NMI came; this function sets its
/// time. `left` says where the current guest was left, if [`perfctr_core_is_at_guests`] returns
/// true.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_nmi(
    cpu: &CpuObject,
    is_masked: bool,
    ring: Option<&SampleRing>,
    at: &mut HvSample,
    left: &HvPlace,
) -> u32 {
    match cpu.sample(is_masked, ring, at, left) {
        Nmi::Foreign => NMI_FOREIGN,
        Nmi::Handled => NMI_HANDLED,
        Nmi::Guest => NMI_GUEST,
    }
}

/// Returns whether samples in `ring` say where guests were left, which is false if `ring` is null.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_is_at_guests(ring: Option<&SampleRing>) -> bool {
    ring.is_some_and(SampleRing::is_at_guests)
}

/// Begins a session of samples. Returns 0 or a negative error number. C holds the profile's lock.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_begin_profile(driver: &Driver) -> c_int {
    match driver.begin_profile(x86::Registers.clock()) {
        Ok(()) => 0,
        Err(errno) => errno.to_return(),
    }
}

/// Ends the session. Returns whether there was one. C holds the profile's lock.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_end_profile(driver: &Driver) -> bool {
    driver.end_profile()
}

/// Begins to sample the physical CPU that executes this. Returns whether that has begun.
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_start_samples(
    cpu: &CpuObject,
    ring: &SampleRing,
    profile: &HvProfile,
) -> bool {
    // SAFETY: C calls this in an interrupt of its own, with interrupts disabled.
    let mut here = unsafe { OnCpu::new(cpu) };
    let expected = here.host_expected();
    here.cpu().start_samples(expected, ring, profile)
}

/// Ends sampling on the physical CPU that executes this.
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_stop_samples(cpu: &CpuObject) {
    // SAFETY: C calls this in an interrupt of its own, with interrupts disabled.
    let mut here = unsafe { OnCpu::new(cpu) };
    let expected = here.host_expected();
    here.cpu().stop_samples(expected);
}

/// Takes the oldest samples of `ring`. Returns 0 or a negative error number.
///
/// `ring` is null if that CPU is not sampled. C holds the profile's lock.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_take_samples(
    driver: &Driver,
    ring: Option<&SampleRing>,
    samples: &mut HvSamples,
) -> c_int {
    match driver.take_samples(ring, x86::Registers.clock(), samples) {
        Ok(()) => 0,
        Err(errno) => errno.to_return(),
    }
}

/// Adds what was counted on this physical CPU to the account of its current vCPU.
///
/// `rings` says how counters distinguish the modes of the current vCPU. Returns whether to call
/// this function and [`perfctr_core_account_next`] at the next switch; see
/// [`hv_driver::ThisCpu::account`].
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_account(
    cpu: &CpuObject,
    account: &Account,
    rings: Rings,
) -> bool {
    // SAFETY: C calls this in its switch of vCPUs, in an interrupt of its own, or where the CPU
    // comes up or goes down, with interrupts disabled.
    unsafe { OnCpu::new(cpu) }.cpu().account(account, rings)
}

/// Prepares the accounts for the next guest on this CPU; see [`hv_driver::ThisCpu::account_next`].
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_account_next(cpu: &CpuObject, rings: Rings) {
    // SAFETY: C calls this in its switch of vCPUs, with interrupts disabled.
    unsafe { OnCpu::new(cpu) }.cpu().account_next(rings);
}

/// Begins to account an event. Returns 0 or a negative error number. C holds the accounts' lock.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_begin_accounts(driver: &Driver, accounting: &HvAccounting) -> c_int {
    match driver.begin_accounts(x86::Registers.clock(), accounting) {
        Ok(()) => 0,
        Err(errno) => errno.to_return(),
    }
}

/// Ends the accounting. Returns whether there was one. C holds the accounts' lock.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_end_accounts(driver: &Driver) -> bool {
    driver.end_accounts()
}

/// Begins an answer. Returns 0, 1 if all CPUs have to account first, or a negative error number.
///
/// If this returns 1, each physical CPU calls [`perfctr_core_account`] before accounts are added.
/// C holds the accounts' lock.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_wants_accounts(driver: &Driver, answer: &mut HvAccounts) -> c_int {
    match driver.wants_accounts(x86::Registers.clock(), answer) {
        Ok(first) => first.into(),
        Err(errno) => errno.to_return(),
    }
}

/// Adds a vCPU's account to the answer, if it was asked for.
///
/// Returns whether there is room for more.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_add_account(
    driver: &Driver,
    answer: &mut HvAccounts,
    account: &Account,
    domain: u32,
    vcpu: u32,
    rings: Rings,
) -> bool {
    driver.add_account(answer, account, (domain, vcpu), rings)
}

/// Stops guests' counters on the physical CPU of `cpu`, if somebody else has let them count.
///
/// That CPU is up and executes this, which may have interrupted any other entry of this crate. See
/// [`Driver::close_gate`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_close_gate(cpu: &CpuObject) {
    cpu.close_gate();
}

/// Adds this CPU's statistics to `total`.
///
/// # Safety
///
/// `cpu` is the object of the CPU that executes this, and interrupts are disabled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn perfctr_core_add_stats(cpu: &CpuObject, total: &mut HvStats) {
    // SAFETY: C calls this in an interrupt of its own, or while the CPU goes down, with interrupts
    // disabled.
    unsafe { OnCpu::new(cpu) }.cpu().pcpu.stats.add_to(total);
}

/// Returns the answer to a guest that may not count; see [`hv_driver::hypercall::answer`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_query(driver: &Driver, query: &mut HvQuery) {
    *query = hv_driver::hypercall::answer(driver, None, 0);
}

/// Serves a hypercall. Returns 0 or a negative error number.
///
/// C's copying functions get `caller`.
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
    // SAFETY: C passes storage of `ARGUMENT_BYTES` bytes on its stack, aligned to 8, and the
    // `caller` that its own copying functions expect.
    match unsafe { call::hypercall(driver, caller, op, argument, length) } {
        Ok(()) => 0,
        Err(errno) => errno.to_return(),
    }
}

#[expect(improper_ctypes, reason = "C knows these objects by their address only")]
unsafe extern "C" {
    /// Reads a register that may not exist. Returns whether the read has worked without a fault.
    fn perfctr_glue_try_rdmsr(msr: u32, value: *mut u64) -> bool;
    /// Writes a register that may not exist. Returns whether the write has worked without a fault.
    fn perfctr_glue_try_wrmsr(msr: u32, value: u64) -> bool;
    /// Sets the values that the hardware loads into the register that enables counters.
    ///
    /// It loads `inside` when the current vCPU is entered, and `outside` when it is left.
    /// Interrupts are disabled. The core calls this only for guests whose gate is `Gate::Entry`.
    fn perfctr_glue_load_at_switch(inside: u64, outside: u64);
    /// Copies the hypercall's argument from the guest. Returns 0 or a negative error number.
    fn perfctr_glue_copy_in(caller: *mut c_void, to: *mut c_void, length: u32) -> c_int;
    /// Copies the hypercall's argument back to the guest. Returns 0 or a negative error number.
    fn perfctr_glue_copy_out(caller: *mut c_void, from: *const c_void, length: u32) -> c_int;
    /// Asks the security policy whether the current domain may use, or control, counters.
    ///
    /// Returns 0 or a negative error number.
    fn perfctr_glue_permits(control: bool) -> c_int;
    /// Returns the driver's part of the current domain, and fills in `controls`.
    ///
    /// `controls` says whether it is the control domain.
    fn perfctr_glue_domain(controls: *mut bool) -> *const DomainObject;
    /// Stores the kind of the current domain. Returns false if the domain can have no counters.
    fn perfctr_glue_guest(guest: *mut Guest) -> bool;
    /// Returns this physical CPU's object. Interrupts are disabled.
    fn perfctr_glue_cpu() -> *const CpuObject;
    /// Returns the current vCPU's object, or null. Interrupts are disabled.
    fn perfctr_glue_vcpu() -> *mut VcpuObject;
    /// Returns the current domain's number; see `HvQuery::machine`.
    fn perfctr_glue_machine() -> u64;
    /// Takes the counters from the host, if the current vCPU has a page and may count.
    ///
    /// Returns 0 or a negative error number. This may wait.
    fn perfctr_glue_take_counters() -> c_int;
    /// Notes that the current vCPU no longer needs the counters, if it has needed them.
    fn perfctr_glue_put_counters();
    /// Pins the frame, and registers it for the current vCPU, or lets the vCPU go on from it.
    ///
    /// Returns 0 or a negative error number.
    fn perfctr_glue_register(gfn: u64, guest: *const Guest, goes_on: bool) -> c_int;
    /// Unregisters the page of the current vCPU, which has one.
    ///
    /// C calls `perfctr_core_unregister`, and forgets the vCPU's object before interrupts are
    /// enabled again. Then it unpins the page and frees the object.
    fn perfctr_glue_unregister();
    /// Allows or forbids a domain to count; returns 0 or a negative error number.
    fn perfctr_glue_set_policy(wanted: *const HvDomain) -> c_int;
    /// Calls `perfctr_core_add_domain` for every domain.
    fn perfctr_glue_list_domains(answer: *mut HvDomains);
    /// Says which time-stamp counter a domain's vCPU reads; returns 0 or a negative error number.
    fn perfctr_glue_clock(domain: u32, vcpu: u32, clock: *mut Clock) -> c_int;
    /// Calls `perfctr_core_add_stats` for every physical CPU, one after another.
    fn perfctr_glue_add_stats(total: *mut HvStats);
    /// Begins to sample the host's physical CPUs; returns 0 or a negative error number.
    fn perfctr_glue_profile_start(profile: *const HvProfile) -> c_int;
    /// Calls `perfctr_core_take_samples` with the ring of physical CPU `cpu`, if it has one.
    ///
    /// Returns 0 or a negative error number.
    fn perfctr_glue_profile_read(cpu: u32, samples: *mut HvSamples) -> c_int;
    /// Ends sampling; returns 0 or a negative error number.
    fn perfctr_glue_profile_stop() -> c_int;
    /// Begins to account an event on all physical CPUs; returns 0 or a negative error number.
    fn perfctr_glue_accounts_start(accounting: *const HvAccounting) -> c_int;
    /// Calls `perfctr_core_add_account` for each vCPU, in the order of domains and vCPUs.
    ///
    /// Returns 0 or a negative error number.
    fn perfctr_glue_accounts_read(answer: *mut HvAccounts) -> c_int;
    /// Ends the accounting; returns 0 or a negative error number.
    fn perfctr_glue_accounts_stop() -> c_int;
}

fn from_return(value: c_int) -> Result<(), Errno> {
    if value == 0 { Ok(()) } else { Err(Errno(value.wrapping_neg())) }
}

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing calls this: the build refuses an object that refers to panicking code.
    loop {}
}
