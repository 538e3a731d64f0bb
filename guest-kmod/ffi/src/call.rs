// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Calls a vCPU to do an action with interrupts disabled. The caller executes on another vCPU, or
//! on the same vCPU with interrupts enabled.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ptr::from_ref;

use guest_kmod::shown::Observer;
use shared_abi::Errno;
use shared_abi::ioctl::Sums;

use crate::{ThreadObject, VcpuObject, from_return};

unsafe extern "C" {
    /// Has every online CPU execute `perfctr_core_called` with this argument, and waits for that.
    fn perfctr_glue_call_all(call: *const c_void);
    /// Has one CPU execute it. Returns `-ENXIO` if the CPU is offline.
    fn perfctr_glue_call_one(cpu: u32, call: *const c_void) -> c_int;
}

/// An action that a vCPU does with interrupts disabled.
pub enum Call<'a> {
    /// It does nothing, which a vCPU that is offline cannot do.
    Nothing,
    /// It stops its counters if nobody counts.
    StopIfIdle,
    /// It unregisters its page if nobody needs the page.
    HideIfUnwatched,
    /// It unregisters the page of this observer.
    Hide(&'a Observer),
    /// Its machine was restored, so it registers its page anew.
    Restore,
    /// It tries again to register its page, if the hypervisor has refused that.
    TryAgain,
    /// It starts CPU-wide counting with these counters. Only one vCPU is called,
    /// since there is room for one answer.
    StartCpuWide(&'a ThreadObject, &'a Cell<Result<(), Errno>>),
    /// It stops CPU-wide counting.
    StopCpuWide,
    /// It reads these counters, which count CPU-wide there. Only one vCPU is called,
    /// since there is room for one answer.
    Read(&'a ThreadObject, &'a Cell<Result<Sums, Errno>>),
}

impl Call<'_> {
    /// Has all online vCPUs do this, and returns when they have.
    pub(crate) fn on_all(&self) {
        // SAFETY: C returns when all calls have returned, so no call uses `self` after that.
        unsafe { perfctr_glue_call_all(from_ref(self).cast()) }
    }

    /// Has these vCPUs do this, one after the other, and returns when they have. Others are not
    /// interrupted.
    pub(crate) fn on_these<'v>(&self, these: impl Iterator<Item = &'v VcpuObject>) {
        for vcpu in these {
            // A vCPU that is offline has nothing left to do.
            let _ = self.on(vcpu);
        }
    }

    /// Has one vCPU do this, and returns when it has.
    ///
    /// # Errors
    ///
    /// `NXIO` if it is offline.
    pub(crate) fn on(&self, vcpu: &VcpuObject) -> Result<(), Errno> {
        // SAFETY: C returns when the call has returned, so the call does not use `self` after that.
        from_return(unsafe { perfctr_glue_call_one(vcpu.number, from_ref(self).cast()) })
    }
}
