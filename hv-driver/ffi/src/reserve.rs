// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Lets C ask who has the counters, and makes C take them or give them back.

use core::ffi::c_int;

use hv_driver::Reservation;
use hv_driver::reserve::{Host, Notice, try_cpus};
use shared_abi::Errno;

use crate::from_return;

/// A step that the core makes the host do.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum HostStep {
    /// Reserves all counters. Returns 1, or 0 if somebody else has one.
    Reserve,
    /// Gives up the reserved counters.
    Release,
    /// Returns 1 if the hard-lockup watchdog is switched on, or 0.
    WatchdogIsOn,
    /// Switches the watchdog on.
    WatchdogOn,
    /// Switches the watchdog off.
    WatchdogOff,
    /// Makes every CPU count for guests. Returns 0 or a negative error number.
    TakeCpus,
    /// Restores every CPU to its state before guests counted.
    GiveCpusBack,
    /// Logs that no guest can count, because perf has the counters.
    LogPerfHasCounters,
    /// Logs that guests count.
    LogGuestsCount,
    /// Logs that the watchdog is stopped.
    LogWatchdogStopped,
    /// Logs that the watchdog runs again.
    LogWatchdogRuns,
    /// Logs that the watchdog does not run again.
    LogWatchdogLost,
}

unsafe extern "C" {
    /// Does one step, and returns the result that the step names, or 0. It may sleep.
    fn perfctr_glue_host_step(step: HostStep) -> c_int;
}

/// The kernel of the host.
struct Linux;

/// Makes the glue carry out a step, and returns the step's result.
fn carry_out(step: HostStep) -> c_int {
    // SAFETY: each step is the glue's own work. It touches nothing that belongs to the core, and
    // calls none of the core's entries about reservations.
    unsafe { perfctr_glue_host_step(step) }
}

impl Host for Linux {
    fn reserve(&mut self) -> bool {
        carry_out(HostStep::Reserve) != 0
    }

    fn release(&mut self) {
        carry_out(HostStep::Release);
    }

    fn watchdog_is_on(&mut self) -> bool {
        carry_out(HostStep::WatchdogIsOn) != 0
    }

    fn switch_watchdog(&mut self, on: bool) {
        carry_out(if on { HostStep::WatchdogOn } else { HostStep::WatchdogOff });
    }

    fn take_cpus(&mut self) -> Result<(), Errno> {
        from_return(carry_out(HostStep::TakeCpus))
    }

    fn give_cpus_back(&mut self) {
        carry_out(HostStep::GiveCpusBack);
    }

    fn notify(&mut self, notice: Notice) {
        carry_out(match notice {
            Notice::PerfHasCounters => HostStep::LogPerfHasCounters,
            Notice::GuestsCount => HostStep::LogGuestsCount,
            Notice::WatchdogStopped => HostStep::LogWatchdogStopped,
            Notice::WatchdogRuns => HostStep::LogWatchdogRuns,
            Notice::WatchdogLost => HostStep::LogWatchdogLost,
        });
    }
}

/// Takes the counters or gives them back; see [`Reservation::settle`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_settle(reservation: &mut Reservation, needed: bool, now_ns: u64) {
    reservation.settle(needed, now_ns, &mut Linux);
}

/// Returns 0 if the driver has the counters, or the error for a vCPU that needs them.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_reservation_state(reservation: &Reservation) -> c_int {
    reservation.state().map_or_else(Errno::to_return, |()| 0)
}

/// Returns whether the driver could take the counters now; see [`Reservation::may_try`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_may_try(reservation: &Reservation, now_ns: u64) -> bool {
    reservation.may_try(now_ns)
}

/// Returns 0, or a negative error number if the host's CPUs cannot count; see [`try_cpus`].
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_core_try_cpus() -> c_int {
    try_cpus(&mut Linux).map_or_else(Errno::to_return, |()| 0)
}
