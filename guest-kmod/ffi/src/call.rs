// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The actions that a vCPU is called to do by another one, or by code there that can be
//! interrupted.

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
    /// Has one CPU do so. Returns `-ENXIO` if it is offline.
    fn perfctr_glue_call_one(cpu: u32, call: *const c_void) -> c_int;
}

/// An action of a vCPU, which it does with interrupts disabled.
pub enum Call<'a> {
    /// It stops its counters if nobody counts.
    StopIfIdle,
    /// It takes its page back if nobody needs it.
    HideIfUnwatched,
    /// It takes the page of this observer back.
    Hide(&'a Observer),
    /// It belongs to a restored machine, and registers its page anew.
    Restore,
    /// It tries again to register its page, if that was refused.
    TryAgain,
    /// It starts CPU-wide counting with these counters.  Only one vCPU is called,
    /// since there is room for one answer.
    StartCpuWide(&'a ThreadObject, &'a Cell<Result<(), Errno>>),
    /// It stops CPU-wide counting.
    StopCpuWide,
    /// It reads these counters, which count CPU-wide there.  Only one vCPU is called,
    /// since there is room for one answer.
    Read(&'a ThreadObject, &'a Cell<Result<Sums, Errno>>),
}

impl Call<'_> {
    /// Has all online vCPUs do this, and returns when they have.
    pub(crate) fn on_all(&self) {
        // SAFETY: what is called with this borrows it until all have returned.
        unsafe { perfctr_glue_call_all(from_ref(self).cast()) }
    }

    /// Has these vCPUs do this, one after the other, and returns when they have. Others are not
    /// interrupted.
    pub(crate) fn on_these<'v>(&self, these: impl Iterator<Item = &'v VcpuObject>) {
        for vcpu in these {
            // One that is offline has nothing left to do.
            let _ = self.on(vcpu);
        }
    }

    /// Has one vCPU do this, and returns when it has.
    ///
    /// # Errors
    ///
    /// `NXIO` if it is offline.
    pub(crate) fn on(&self, vcpu: &VcpuObject) -> Result<(), Errno> {
        // SAFETY: what is called with this borrows it until it has returned.
        from_return(unsafe { perfctr_glue_call_one(vcpu.number, from_ref(self).cast()) })
    }
}
