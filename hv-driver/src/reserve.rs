// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides whether guests or the host's own perf have the counters.
//!
//! The driver and perf reserve the counters in the same allocator of the kernel, so that one has
//! all counters: perf from the first event that is opened to the last that is closed, and the
//! driver while a domain [needs them](crate::Driver::is_needed). The hard-lockup watchdog is an
//! event of perf's, too. It would keep every guest from counting for ever, so the driver stops it
//! while a domain needs the counters, and starts it again afterwards.

use core::mem;

use shared_abi::Errno;

/// The least time between an attempt to take the counters that has failed and the next one, unit:
/// ns. A guest may ask as often as it likes, and each attempt stops the watchdog and may interrupt
/// every CPU.
const PATIENCE_NS: u64 = 1_000_000_000;

/// A message to the host's administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// No guest can count now, because perf has the counters.
    PerfHasCounters,
    /// Guests count, and perf gets `EBUSY`.
    GuestsCount,
    /// The watchdog is stopped while guests count.
    WatchdogStopped,
    /// The watchdog runs again.
    WatchdogRuns,
    /// The watchdog should run again, and does not.
    WatchdogLost,
}

/// The functions of the host's kernel that the driver calls.
pub trait Host {
    /// Reserves all counters. Returns false if somebody else has one, and has reserved none then.
    fn reserve(&mut self) -> bool;

    /// Gives up what is reserved.
    fn release(&mut self);

    /// Returns whether the hard-lockup watchdog is switched on, even if it has no counter.
    fn watchdog_is_on(&mut self) -> bool;

    /// Switches the watchdog on or off. One that is switched on gets a counter if there is one.
    fn switch_watchdog(&mut self, on: bool);

    /// Makes every CPU count for guests, or changes nothing.
    ///
    /// # Errors
    ///
    /// Those of a CPU that cannot count.
    fn take_cpus(&mut self) -> Result<(), Errno>;

    /// Restores every CPU to its state before guests counted.
    fn give_cpus_back(&mut self);

    /// Tells the administrator.
    fn notify(&mut self, notice: Notice);
}

/// Whether the driver has the counters. The glue's lock is held during each call.
///
/// Memory that is all zeros says that the host has the counters.
#[derive(Debug, Default)]
pub struct Reservation {
    is_taken: bool,
    /// Whether the driver has stopped the watchdog, and has to start it again.
    stopped_watchdog: bool,
    /// Why the last attempt to take the counters failed, or 0.
    last_error: i32,
    /// The time before which there is no other attempt.
    next_try_ns: u64,
}

impl Reservation {
    /// Returns whether a vCPU that needs the counters has them.
    ///
    /// # Errors
    ///
    /// `BUSY` if perf had the counters when the driver tried to take them; `PERM` if no domain that
    /// may count needs them; those of [`Host::take_cpus`].
    pub fn state(&self) -> Result<(), Errno> {
        match (self.is_taken, self.last_error) {
            (true, _) => Ok(()),
            (false, 0) => Err(Errno::PERM),
            (false, errno) => Err(Errno(errno)),
        }
    }

    /// Returns whether [`settle`](Self::settle) could take the counters now.
    pub fn may_try(&self, now_ns: u64) -> bool {
        !self.is_taken && (self.last_error == 0 || now_ns >= self.next_try_ns)
    }

    /// Takes the counters if they are `needed`, and gives them back if they are not.
    pub fn settle(&mut self, needed: bool, now_ns: u64, host: &mut impl Host) {
        if needed && self.may_try(now_ns) {
            let result = self.take_counters(host);
            self.is_taken = result.is_ok();
            self.last_error = result.map_or_else(|errno| errno.0, |()| 0);
            self.next_try_ns = now_ns.saturating_add(PATIENCE_NS);
        } else if !needed && self.is_taken {
            self.is_taken = false;
            self.give_back(host);
        }
    }

    /// Takes the counters, and stops the watchdog if the watchdog has one.
    fn take_counters(&mut self, host: &mut impl Host) -> Result<(), Errno> {
        if !self.reserve_without_watchdog(host) {
            host.notify(Notice::PerfHasCounters);
            return Err(Errno::BUSY);
        }
        if let Err(errno) = host.take_cpus() {
            host.release();
            self.restart_watchdog(host);
            return Err(errno);
        }
        if self.stopped_watchdog {
            host.notify(Notice::WatchdogStopped);
        }
        host.notify(Notice::GuestsCount);
        Ok(())
    }

    /// Gives the counters back, and starts the watchdog if it is to run.
    fn give_back(&mut self, host: &mut impl Host) {
        host.give_cpus_back();
        host.release();
        if self.restart_watchdog(host) {
            host.notify(Notice::WatchdogRuns);
        }
    }

    fn reserve_without_watchdog(&mut self, host: &mut impl Host) -> bool {
        if host.reserve() {
            return true;
        }
        if !host.watchdog_is_on() {
            return false;
        }
        host.switch_watchdog(false);
        self.stopped_watchdog = true;
        host.reserve() || {
            self.restart_watchdog(host);
            false
        }
    }

    /// Starts the watchdog if the driver has stopped it, or if somebody has switched it on while
    /// there was no counter for it. Returns whether it runs now and did not before.
    fn restart_watchdog(&mut self, host: &mut impl Host) -> bool {
        let stopped = mem::take(&mut self.stopped_watchdog);
        let is_on = host.watchdog_is_on();
        if !is_on && !stopped {
            return false;
        }
        if is_on {
            // One that is on gets a counter only when it is switched on.
            host.switch_watchdog(false);
        }
        host.switch_watchdog(true);
        if !host.reserve() {
            return true;
        }
        // Nobody has a counter, so the watchdog has none either.
        host.release();
        if stopped {
            host.notify(Notice::WatchdogLost);
        }
        false
    }
}

/// Finds out whether every CPU can count, if perf leaves the counters free at the moment.
///
/// # Errors
///
/// Those of [`Host::take_cpus`].
pub fn try_cpus(host: &mut impl Host) -> Result<(), Errno> {
    if !host.reserve() {
        return Ok(());
    }
    let result = host.take_cpus();
    if result.is_ok() {
        host.give_cpus_back();
    }
    host.release();
    result
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// Who has the counters in the host's allocator.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Holder {
        Nobody,
        Driver,
        Perf,
        Watchdog,
    }

    /// A host's kernel with its allocator and its watchdog.
    struct Kernel {
        holder: Holder,
        watchdog_is_on: bool,
        /// Whether every CPU can count.
        can_count: bool,
        cpus_are_taken: bool,
        notices: Vec<Notice>,
        tries: u32,
    }

    impl Kernel {
        fn new() -> Self {
            Self {
                holder: Holder::Nobody,
                watchdog_is_on: false,
                can_count: true,
                cpus_are_taken: false,
                notices: Vec::new(),
                tries: 0,
            }
        }

        fn with_watchdog() -> Self {
            Self { holder: Holder::Watchdog, watchdog_is_on: true, ..Self::new() }
        }

        fn notices(&mut self) -> Vec<Notice> {
            mem::take(&mut self.notices)
        }

        /// Returns whether the driver counts, which it must not do unless it has the counters.
        fn counts(&self) -> bool {
            assert_eq!(self.cpus_are_taken, self.holder == Holder::Driver);
            self.cpus_are_taken
        }

        fn watchdog_runs(&self) -> bool {
            self.watchdog_is_on && self.holder == Holder::Watchdog
        }
    }

    impl Host for Kernel {
        fn reserve(&mut self) -> bool {
            self.tries += 1;
            let is_free = self.holder == Holder::Nobody;
            if is_free {
                self.holder = Holder::Driver;
            }
            is_free
        }

        fn release(&mut self) {
            assert_eq!(self.holder, Holder::Driver, "it has reserved nothing");
            assert!(!self.cpus_are_taken, "the CPUs are not as they were");
            self.holder = Holder::Nobody;
        }

        fn watchdog_is_on(&mut self) -> bool {
            self.watchdog_is_on
        }

        fn switch_watchdog(&mut self, on: bool) {
            match (on, self.holder) {
                (true, Holder::Nobody) if !self.watchdog_is_on => self.holder = Holder::Watchdog,
                (false, Holder::Watchdog) => self.holder = Holder::Nobody,
                _ => {}
            }
            self.watchdog_is_on = on;
        }

        fn take_cpus(&mut self) -> Result<(), Errno> {
            assert_eq!(self.holder, Holder::Driver, "the counters are another's");
            assert!(!self.cpus_are_taken);
            if !self.can_count {
                return Err(Errno::NODEV);
            }
            self.cpus_are_taken = true;
            Ok(())
        }

        fn give_cpus_back(&mut self) {
            assert!(mem::take(&mut self.cpus_are_taken));
        }

        fn notify(&mut self, notice: Notice) {
            self.notices.push(notice);
        }
    }

    #[test]
    fn the_counters_are_the_drivers_while_they_are_needed() {
        let (mut reservation, mut kernel) = (Reservation::default(), Kernel::new());
        for start in [0, 5] {
            assert_eq!(reservation.state(), Err(Errno::PERM));
            assert!(reservation.may_try(start));
            reservation.settle(true, start, &mut kernel);
            assert_eq!((reservation.state(), kernel.counts()), (Ok(()), true));
            assert!(!reservation.may_try(start + 2 * PATIENCE_NS), "it has them");
            reservation.settle(true, start + 1, &mut kernel);
            reservation.settle(false, start + 2, &mut kernel);
            reservation.settle(false, start + 3, &mut kernel);
            assert!(!kernel.counts());
            assert_eq!(kernel.notices(), [Notice::GuestsCount]);
        }
    }

    #[test]
    fn a_guest_is_refused_while_perf_has_the_counters() {
        let (mut reservation, mut kernel) = (Reservation::default(), Kernel::new());
        kernel.holder = Holder::Perf;
        reservation.settle(true, 7, &mut kernel);
        assert_eq!((reservation.state(), kernel.counts()), (Err(Errno::BUSY), false));
        assert_eq!(kernel.notices(), [Notice::PerfHasCounters]);
        kernel.holder = Holder::Nobody;
        reservation.settle(true, 7 + PATIENCE_NS, &mut kernel);
        assert_eq!((reservation.state(), kernel.counts()), (Ok(()), true));
        reservation.settle(false, 8 + PATIENCE_NS, &mut kernel);
        assert_eq!(reservation.state(), Err(Errno::PERM), "that perf had them is over");
        assert!(reservation.may_try(8 + PATIENCE_NS), "and a guest does not wait for it");
    }

    #[test]
    fn a_try_that_failed_is_not_repeated_for_a_while_however_often_a_guest_asks() {
        let (mut reservation, mut kernel) = (Reservation::default(), Kernel::new());
        kernel.holder = Holder::Perf;
        reservation.settle(true, 7, &mut kernel);
        let tries = kernel.tries;
        // In between nobody may need the counters.
        for (needed, now) in [(true, 8), (false, 9), (true, 10), (true, 6 + PATIENCE_NS)] {
            assert!(!reservation.may_try(now));
            reservation.settle(needed, now, &mut kernel);
            assert_eq!((reservation.state(), kernel.tries), (Err(Errno::BUSY), tries), "{now}");
        }
        assert!(reservation.may_try(7 + PATIENCE_NS));
        reservation.settle(true, 7 + PATIENCE_NS, &mut kernel);
        assert_eq!(kernel.tries, tries + 1);
        assert!(!reservation.may_try(8 + PATIENCE_NS), "that one has failed, too");
    }

    #[test]
    fn a_clock_at_its_end_refuses_nobody_for_ever() {
        let (mut reservation, mut kernel) = (Reservation::default(), Kernel::new());
        kernel.holder = Holder::Perf;
        reservation.settle(true, u64::MAX - 1, &mut kernel);
        assert!(!reservation.may_try(u64::MAX - 1) && reservation.may_try(u64::MAX));
    }

    #[test]
    fn the_watchdog_is_stopped_while_guests_count_and_runs_again_afterwards() {
        let (mut reservation, mut kernel) = (Reservation::default(), Kernel::with_watchdog());
        for _ in 0..2 {
            reservation.settle(true, 1, &mut kernel);
            assert!(kernel.counts() && !kernel.watchdog_is_on);
            assert_eq!(kernel.notices(), [Notice::WatchdogStopped, Notice::GuestsCount]);
            reservation.settle(false, 2, &mut kernel);
            assert!(!kernel.counts() && kernel.watchdog_runs());
            assert_eq!(kernel.notices(), [Notice::WatchdogRuns]);
        }
    }

    #[test]
    fn a_watchdog_that_is_switched_on_while_guests_count_runs_when_they_do_not() {
        let (mut reservation, mut kernel) = (Reservation::default(), Kernel::new());
        reservation.settle(true, 1, &mut kernel);
        kernel.switch_watchdog(true);
        assert!(!kernel.watchdog_runs(), "it has no counter");
        reservation.settle(false, 2, &mut kernel);
        assert!(kernel.watchdog_runs());
        assert_eq!(kernel.notices(), [Notice::GuestsCount, Notice::WatchdogRuns]);
    }

    #[test]
    fn the_watchdog_runs_again_if_perf_has_the_counters_beside_it() {
        let (mut reservation, mut kernel) = (Reservation::default(), Kernel::with_watchdog());
        kernel.holder = Holder::Perf;
        reservation.settle(true, 1, &mut kernel);
        assert_eq!(reservation.state(), Err(Errno::BUSY));
        assert!(kernel.watchdog_is_on && !kernel.counts());
        assert_eq!(kernel.notices(), [Notice::PerfHasCounters]);
        assert!(!reservation.stopped_watchdog, "and nothing is left to do for it");
    }

    #[test]
    fn nothing_is_changed_where_a_cpu_cannot_count() {
        for mut kernel in [Kernel::new(), Kernel::with_watchdog()] {
            let (mut reservation, watchdog) = (Reservation::default(), kernel.watchdog_is_on);
            kernel.can_count = false;
            reservation.settle(true, 1, &mut kernel);
            assert_eq!((reservation.state(), kernel.counts()), (Err(Errno::NODEV), false));
            assert_eq!((kernel.watchdog_is_on, kernel.watchdog_runs()), (watchdog, watchdog));
            assert_eq!(kernel.notices(), vec![]);
        }
    }

    /// A kernel whose watchdog takes no counter any more once it was switched off.
    struct Broken(Kernel);

    impl Host for Broken {
        fn reserve(&mut self) -> bool {
            self.0.reserve()
        }
        fn release(&mut self) {
            self.0.release();
        }
        fn watchdog_is_on(&mut self) -> bool {
            self.0.watchdog_is_on()
        }
        fn switch_watchdog(&mut self, on: bool) {
            if !on {
                self.0.switch_watchdog(false);
            }
        }
        fn take_cpus(&mut self) -> Result<(), Errno> {
            self.0.take_cpus()
        }
        fn give_cpus_back(&mut self) {
            self.0.give_cpus_back();
        }
        fn notify(&mut self, notice: Notice) {
            self.0.notify(notice);
        }
    }

    #[test]
    fn a_watchdog_that_does_not_run_again_is_reported() {
        let (mut reservation, mut kernel) =
            (Reservation::default(), Broken(Kernel::with_watchdog()));
        reservation.settle(true, 1, &mut kernel);
        kernel.0.notices();
        reservation.settle(false, 2, &mut kernel);
        assert_eq!(kernel.0.notices(), [Notice::WatchdogLost]);
        assert_eq!(kernel.0.holder, Holder::Nobody, "and perf can have the counters");
    }

    #[test]
    fn cpus_are_tried_only_while_perf_leaves_the_counters_free() {
        for (holder, can_count, expected) in [
            (Holder::Nobody, true, Ok(())),
            (Holder::Nobody, false, Err(Errno::NODEV)),
            (Holder::Perf, true, Ok(())),
            (Holder::Perf, false, Ok(())),
        ] {
            let mut kernel = Kernel { holder, can_count, ..Kernel::new() };
            assert_eq!(try_cpus(&mut kernel), expected, "{holder:?}");
            assert_eq!((kernel.holder, kernel.cpus_are_taken), (holder, false));
        }
    }
}
