// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Serves hypercalls. C does what [`hv_driver::hypercall`] needs of the hypervisor.
#![expect(unsafe_code, reason = "calls C, which owns the objects and the argument")]

use core::ffi::c_void;

use hv_driver::guest::Clock;
use hv_driver::hypercall::{self, Caller, Permission};
use hv_driver::{Driver, Guest, Limits, ThisCpu, Vcpu};
use shared_abi::hypercall::{
    HvAccounting, HvAccounts, HvDomain, HvDomains, HvProfile, HvSamples, HvStats,
};
use shared_abi::{Errno, VcpuPage};

use crate::on_cpu::without_interrupts;
use crate::x86::X86Pmu;
use crate::{
    from_return, perfctr_glue_accounts_read, perfctr_glue_accounts_start,
    perfctr_glue_accounts_stop, perfctr_glue_add_stats, perfctr_glue_clock, perfctr_glue_copy_in,
    perfctr_glue_copy_out, perfctr_glue_domain, perfctr_glue_guest, perfctr_glue_list_domains,
    perfctr_glue_machine, perfctr_glue_permits, perfctr_glue_profile_read,
    perfctr_glue_profile_start, perfctr_glue_profile_stop, perfctr_glue_put_counters,
    perfctr_glue_register, perfctr_glue_set_policy, perfctr_glue_take_counters,
    perfctr_glue_unregister, perfctr_glue_vcpu,
};

/// The vCPU that executes this hypercall.
struct Current<'a> {
    driver: &'a Driver,
}

/// Authorizes and serves a hypercall.
///
/// # Safety
///
/// `argument` is storage of [`hypercall::ARGUMENT_BYTES_MAX`] bytes, aligned to 8, which nobody
/// else uses meanwhile. `caller` is the pointer that C's copying functions expect.
pub(crate) unsafe fn hypercall(
    driver: &Driver,
    caller: *mut c_void,
    op: u32,
    argument: *mut c_void,
    length: u32,
) -> Result<(), Errno> {
    let current = &mut Current { driver };
    hypercall::authorize(current, op, length as usize)?;
    if length != 0 {
        // SAFETY: C writes `length` bytes to `argument`. They fit, because `authorize` has compared
        // `length` with the size of the storage.
        from_return(unsafe { perfctr_glue_copy_in(caller, argument, length) })?;
    }
    // SAFETY: C has just written these bytes of the storage, which nobody else uses. If the length
    // is 0, the slice is empty.
    let bytes = unsafe { core::slice::from_raw_parts_mut(argument.cast(), length as usize) };
    if hypercall::serve(driver, current, op, bytes)? {
        // SAFETY: C reads as many bytes of the storage as it has written before.
        from_return(unsafe { perfctr_glue_copy_out(caller, argument, length) })?;
    }
    Ok(())
}

impl Caller for Current<'_> {
    type Pmu<'a> = X86Pmu;

    fn permits(&self, permission: Permission) -> Result<(), Errno> {
        let control = permission == Permission::ControlHost;
        // SAFETY: C asks its security module about the current domain, and changes nothing.
        from_return(unsafe { perfctr_glue_permits(control) })
    }

    fn limits(&self) -> Option<Limits> {
        let mut controls = false;
        // SAFETY: C writes a valid `bool`, and returns the object in the current domain's
        // structure. That lives at least as long as the domain's vCPU, which executes this.
        let domain = unsafe { &*perfctr_glue_domain(&raw mut controls) };
        self.driver.limits(&domain.policy, controls)
    }

    fn machine(&self) -> u64 {
        // SAFETY: C returns a number that the current domain has, or makes one up.
        unsafe { perfctr_glue_machine() }
    }

    fn guest(&self) -> Option<Guest> {
        let mut guest = Guest::pv();
        // SAFETY: C fills in the structure and returns true, or leaves it as it is and returns
        // false.
        unsafe { perfctr_glue_guest(&raw mut guest) }.then_some(guest)
    }

    fn on_cpu<R>(&mut self, work: impl FnOnce(&mut ThisCpu<'_, X86Pmu>) -> R) -> R {
        without_interrupts(|here| work(&mut here.cpu()))
    }

    fn on_vcpu<R, W>(&mut self, work: W) -> Option<R>
    where
        W: FnOnce(&mut ThisCpu<'_, X86Pmu>, &mut Vcpu, &VcpuPage, Option<Limits>) -> R,
    {
        without_interrupts(|here| {
            // SAFETY: the object belongs to the current vCPU, which executes this. Nobody else
            // touches the object before interrupts are enabled, and only this hypercall could
            // remove it.
            let (vcpu, page) = unsafe { perfctr_glue_vcpu().as_mut() }?.parts();
            // The limits are read with interrupts disabled. If the host forbids the domain to count
            // after that, it also interrupts this CPU, and the interrupt comes after `work`.
            let limits = self.limits();
            Some(work(&mut here.cpu(), vcpu, page, limits))
        })
    }

    fn take_counters(&mut self) -> Result<(), Errno> {
        // SAFETY: C uses the current vCPU's object, which nobody has borrowed: `on_vcpu` lends it
        // only for its own duration.
        from_return(unsafe { perfctr_glue_take_counters() })
    }

    fn put_counters(&mut self) {
        // SAFETY: C uses the current vCPU's structures, in which nobody has borrowed anything, as
        // above.
        unsafe { perfctr_glue_put_counters() }
    }

    fn register(&mut self, gfn: u64, guest: &Guest, goes_on: bool) -> Result<(), Errno> {
        // SAFETY: C accepts any frame number, and reads `guest` before it returns.
        from_return(unsafe { perfctr_glue_register(gfn, guest, goes_on) })
    }

    fn unregister(&mut self) {
        // SAFETY: the current vCPU has a page, as the core has checked. No reference to its object
        // is left, because `on_vcpu` lends it only for its own duration.
        unsafe { perfctr_glue_unregister() }
    }

    fn set_policy(&mut self, wanted: &HvDomain) -> Result<(), Errno> {
        // SAFETY: C looks up the number among the domains, and returns an error if there is no such
        // domain. No object of the core is borrowed while C calls the core again.
        from_return(unsafe { perfctr_glue_set_policy(wanted) })
    }

    fn list_domains(&mut self, answer: &mut HvDomains) {
        // SAFETY: C passes the structure, which nobody else has, to `perfctr_core_add_domain`.
        unsafe { perfctr_glue_list_domains(answer) }
    }

    fn clock(&mut self, domain: u32, vcpu: u32) -> Result<Clock, Errno> {
        let mut clock = Clock::native();
        // SAFETY: C accepts any numbers, and writes only to `clock`, before it returns.
        from_return(unsafe { perfctr_glue_clock(domain, vcpu, &mut clock) })?;
        Ok(clock)
    }

    fn add_stats(&mut self, total: &mut HvStats) {
        // SAFETY: C has each physical CPU call `perfctr_core_add_stats`, one after another, while
        // this CPU waits. So nobody else uses `total` at the same time.
        unsafe { perfctr_glue_add_stats(total) }
    }

    fn start_profile(&mut self, profile: &HvProfile) -> Result<(), Errno> {
        // SAFETY: C reads `profile` before it returns, and meanwhile has each physical CPU call
        // `perfctr_core_start_samples`.
        from_return(unsafe { perfctr_glue_profile_start(profile) })
    }

    fn take_samples(&mut self, samples: &mut HvSamples) -> Result<(), Errno> {
        // SAFETY: C accepts any CPU's number, and passes `samples`, which nobody else has, to
        // `perfctr_core_take_samples`.
        from_return(unsafe { perfctr_glue_profile_read(samples.cpu, samples) })
    }

    fn stop_profile(&mut self) -> Result<(), Errno> {
        // SAFETY: C has each physical CPU call `perfctr_core_stop_samples`. Then it frees the
        // rings, to which nobody else has a reference.
        from_return(unsafe { perfctr_glue_profile_stop() })
    }

    fn start_accounts(&mut self, accounting: &HvAccounting) -> Result<(), Errno> {
        // SAFETY: C reads `accounting` before it returns, and has each physical CPU call
        // `perfctr_core_account`.
        from_return(unsafe { perfctr_glue_accounts_start(accounting) })
    }

    fn read_accounts(&mut self, accounts: &mut HvAccounts) -> Result<(), Errno> {
        // SAFETY: C passes `accounts`, which nobody else has, to `perfctr_core_wants_accounts` and
        // to `perfctr_core_add_account`.
        from_return(unsafe { perfctr_glue_accounts_read(accounts) })
    }

    fn stop_accounts(&mut self) -> Result<(), Errno> {
        // SAFETY: C has each physical CPU call `perfctr_core_account`.
        from_return(unsafe { perfctr_glue_accounts_stop() })
    }
}
