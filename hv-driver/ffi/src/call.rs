// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A hypercall's caller: the hypervisor's part of what [`hv_driver::hypercall`] decides.
#![expect(unsafe_code, reason = "calls C, which owns the objects and the argument")]

use core::ffi::c_void;

use hv_driver::hypercall::{self, Caller, Right};
use hv_driver::{Cpu, Driver, Guest, Vcpu};
use shared_abi::hypercall::HvStats;
use shared_abi::{Errno, VcpuPage};

use crate::x86::{X86Pmu, without_interrupts};
use crate::{
    from_return, perfctr_glue_add_stats, perfctr_glue_allowed, perfctr_glue_copy_in,
    perfctr_glue_copy_out, perfctr_glue_cpu, perfctr_glue_forget, perfctr_glue_guest,
    perfctr_glue_machine, perfctr_glue_permits, perfctr_glue_register, perfctr_glue_set_policy,
    perfctr_glue_vcpu,
};

/// The vCPU that executes this, in a hypercall.
struct Current;

/// # Safety
///
/// `argument` is storage of [`hypercall::ARGUMENT_BYTES_MAX`] bytes, aligned to 8.
pub(crate) unsafe fn hypercall(
    driver: &Driver,
    caller: *mut c_void,
    op: u32,
    argument: *mut c_void,
    length: u32,
) -> Result<(), Errno> {
    hypercall::admit(&mut Current, op, length as usize)?;
    if length != 0 {
        // SAFETY: no more than the storage holds, as `admit` makes sure.
        from_return(unsafe { perfctr_glue_copy_in(caller, argument, length) })?;
    }
    // SAFETY: so many bytes of the storage have just been written.
    let bytes = unsafe { core::slice::from_raw_parts_mut(argument.cast(), length as usize) };
    if hypercall::serve(driver, &mut Current, op, bytes)? {
        // SAFETY: as before.
        from_return(unsafe { perfctr_glue_copy_out(caller, argument, length) })?;
    }
    Ok(())
}

impl Caller for Current {
    type Pmu = X86Pmu;

    fn permits(&self, right: Right) -> Result<(), Errno> {
        // SAFETY: asks only.
        from_return(unsafe { perfctr_glue_permits(right == Right::Control) })
    }

    fn is_allowed(&self) -> bool {
        // SAFETY: asks only.
        unsafe { perfctr_glue_allowed() }
    }

    fn machine(&self) -> u64 {
        // SAFETY: asks only.
        unsafe { perfctr_glue_machine() }
    }

    fn guest(&self) -> Option<Guest> {
        let mut guest = Guest::pv();
        // SAFETY: C writes a valid structure, or nothing.
        unsafe { perfctr_glue_guest(&raw mut guest) }.then_some(guest)
    }

    fn on_cpu<R>(&mut self, work: impl FnOnce(&mut Cpu<'_, X86Pmu>) -> R) -> R {
        without_interrupts(|| {
            // SAFETY: this CPU's object, which nobody else touches while interrupts are disabled.
            let cpu = unsafe { &mut *perfctr_glue_cpu() };
            work(&mut cpu.cpu())
        })
    }

    fn on_vcpu<R>(
        &mut self,
        work: impl FnOnce(&mut Cpu<'_, X86Pmu>, &mut Vcpu, &VcpuPage, bool) -> R,
    ) -> Option<R> {
        without_interrupts(|| {
            // SAFETY: as for `on_cpu`; the vCPU executes here.
            let (cpu, vcpu) = unsafe { (&mut *perfctr_glue_cpu(), perfctr_glue_vcpu().as_mut()) };
            let (vcpu, page) = vcpu?.parts();
            Some(work(&mut cpu.cpu(), vcpu, page, self.is_allowed()))
        })
    }

    fn register(&mut self, gfn: u64, guest: &Guest, goes_on: bool) -> Result<(), Errno> {
        // SAFETY: C checks the number; the structure is read only.
        from_return(unsafe { perfctr_glue_register(gfn, guest, goes_on) })
    }

    fn forget(&mut self) {
        // SAFETY: no reference to the object is left.
        unsafe { perfctr_glue_forget() }
    }

    fn set_policy(&mut self, domid: u32, allowed: bool) -> Result<(), Errno> {
        // SAFETY: C checks the number.
        from_return(unsafe { perfctr_glue_set_policy(domid, allowed) })
    }

    fn add_stats(&mut self, total: &mut HvStats) {
        // SAFETY: C passes it on to one CPU after another while this one waits.
        unsafe { perfctr_glue_add_stats(total) }
    }
}
