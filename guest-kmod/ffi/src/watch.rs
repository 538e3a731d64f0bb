// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The watch of switches as C sees it, and the actions when nobody counts any more.

use core::ffi::c_int;

use guest_kmod::LocalVcpu;
use guest_kmod::watch::{Activity, StopTimer, Watch};

use crate::COUNTING;
use crate::call::Call;
use crate::machine::{subtracts, vcpus};
use crate::observers::{is_counting, is_shown, registered_observer};
use crate::on_vcpu::OnVcpu;

unsafe extern "C" {
    /// Has the kernel call the module at every switch. Returns 0, or an error.
    ///
    /// If `interrupts`, it also calls the module where it traces interrupts and exceptions.
    fn perfctr_glue_watch_begin(interrupts: bool) -> c_int;
    /// Schedules a call of [`perfctr_core_stop_if_idle`], if nobody counts. Does not sleep.
    ///
    /// The call comes after [`perfctr_core_stop_delay`] milliseconds. A call that is already
    /// scheduled is not postponed.
    fn perfctr_glue_stop_if_idle();
}

static WATCH: Watch = Watch::new();
static STOP_TIMER: StopTimer = StopTimer::new();

/// Adds a watcher, and begins to watch switches first if they are not watched.
///
/// Returns 0, or an error if they cannot be watched. C holds its lock of the watch.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_watch_join() -> c_int {
    if WATCH.must_begin() {
        // SAFETY: C holds the lock that this call needs.
        let error = unsafe { perfctr_glue_watch_begin(subtracts()) };
        if error != 0 {
            return error;
        }
        WATCH.began();
    }
    // Nobody ends the watch while C holds the lock.
    WATCH.join();
    0
}

/// Adds a watcher if switches are watched; see [`Watch::join`]. C needs no lock.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_watch_join_if_watched() -> bool {
    WATCH.join()
}

/// Removes a watcher; see [`Watch::leave`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_watch_leave() {
    WATCH.leave();
}

/// Unregisters pages that nobody needs. Returns whether the watch has ended; see [`Watch::end`].
/// C holds its lock of the watch.
///
/// If `is_exit` is true, the module is being unloaded, and no vCPU is online any more. The watch
/// then ends even if the hypervisor has refused to unregister a page, because nothing may call the
/// module afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_watch_end(is_exit: bool) -> bool {
    let Some(moment) = WATCH.may_end() else { return false };
    Call::HideIfUnwatched.on_these(vcpus().filter(|vcpu| registered_observer(vcpu).is_some()));
    let has_ended = WATCH.end(moment, !is_exit && is_shown(None));
    if has_ended {
        STOP_TIMER.reset_delay();
    }
    has_ended
}

impl OnVcpu<'_> {
    /// Unregisters the page if [nobody needs it](Watch::is_idle).
    pub(crate) fn hide_if_unwatched(&mut self) {
        if WATCH.is_idle() {
            // If the hypervisor refuses, the watch of switches goes on.
            let _ = self.hide();
        }
    }
}

/// Returns whether nobody counts.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_is_idle() -> bool {
    COUNTING.is_idle()
}

/// Returns the time after which [`perfctr_core_stop_if_idle`] is to be called, unit: ms.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_stop_delay() -> u32 {
    STOP_TIMER.delay_ms()
}

/// Stops the counters of all vCPUs if nobody counts or has counted lately.
///
/// If somebody has counted lately, C calls it again after a while; see [`StopTimer::check`]. vCPUs
/// on which no counter runs are not interrupted. C makes one call at a time.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_stop_if_idle() {
    match STOP_TIMER.check(&COUNTING) {
        Activity::CountsNow => {}
        // SAFETY: C takes no lock that the caller could hold.
        Activity::HasCounted => unsafe { perfctr_glue_stop_if_idle() },
        Activity::Idle if vcpus().any(is_counting) => {
            STOP_TIMER.wait_longer();
            Call::StopIfIdle.on_these(vcpus().filter(|vcpu| is_counting(vcpu)));
        }
        Activity::Idle => {}
    }
}
