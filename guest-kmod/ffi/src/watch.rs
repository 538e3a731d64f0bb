// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The watch of switches as C sees it, and what ends when nobody counts any more.

use core::ffi::c_int;

use guest_kmod::watch::Watch;

use crate::COUNTING;
use crate::call::Call;
use crate::observers::is_shown;
use crate::on_vcpu::OnVcpu;

unsafe extern "C" {
    /// Has the kernel call the module at every switch; 0, or an error.
    fn perfctr_glue_watch_begin() -> c_int;
}

static WATCH: Watch = Watch::new();

/// Somebody may need pages registered from now on, and switches are watched before that; gives 0 or
/// why they cannot be.  See [`Watch::join`]; C holds its lock of the watch.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_watch_join() -> c_int {
    if WATCH.must_begin() {
        // SAFETY: C holds the lock that this needs.
        let error = unsafe { perfctr_glue_watch_begin() };
        if error != 0 {
            return error;
        }
        WATCH.began();
    }
    WATCH.join();
    0
}

/// See [`Watch::leave`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_watch_leave() {
    WATCH.leave();
}

/// Takes pages back that nobody needs.  Returns whether the watch has ended; see [`Watch::end`].  C
/// holds its lock of the watch.
///
/// With `is_exit` the module is being unloaded, and no vCPU is online any more.  The watch then
/// ends even if the hypervisor has refused to let a page go: nothing may call the module
/// afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_watch_end(is_exit: bool) -> bool {
    if WATCH.may_end() {
        Call::HideIfUnwatched.on_all();
    }
    WATCH.end(!is_exit && is_shown(None))
}

impl OnVcpu<'_> {
    /// Takes the page back if [nobody needs it](Watch::is_idle).
    pub(crate) fn hide_if_unwatched(&mut self) {
        if WATCH.is_idle() {
            // What the hypervisor refuses to let go stays watched.
            let _ = self.hide();
        }
    }
}

/// Whether nobody counts.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_is_idle() -> bool {
    COUNTING.is_idle()
}

/// Stops the counters of all vCPUs if nobody counts.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_stop_if_idle() {
    if COUNTING.is_idle() {
        Call::StopIfIdle.on_all();
    }
}
