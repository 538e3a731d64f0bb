// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides when the guest's switches of threads are watched, and when counters, pages and the watch
//! end
//! (`docs/adr/0014-switches-are-watched-on-demand.md`).
//!
//! Whoever may need a page registered is a *watcher*. The watch begins before the first watcher
//! registers a page. When there is no watcher any more, each CPU takes its page back, and then the
//! watch ends.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use crate::vcpu::Counting;

/// How long nobody counts before counters that nobody reads are stopped, unit: ms.
///
/// Programs that stop often start again soon: they find their configuration loaded, and no CPU is
/// interrupted.
const STOP_DELAY_MS: u32 = 100;
/// The longest time of this kind, unit: ms.
const STOP_DELAY_MAX_MS: u32 = 1_600;

/// How long pages that nobody needs stay registered, unit: ms.
///
/// A user without counters keeps its pages for the same time. The end of the watch costs much,
/// because it patches code on all CPUs.
pub const UNWATCH_DELAY_MS: u32 = 10_000;

/// One bit of the state: switches are watched.
const WATCHING: u64 = 1 << 63;
/// The low bits of the state: the number of watchers.
const WATCHERS: u64 = 0xffff_ffff;
/// What joining adds to the state: a watcher, and one to the number of those who have joined so
/// far, which is between the other two.
const JOIN: u64 = 1 << 32 | 1;

/// The state of the watch: how many watchers there are, and whether switches are watched.
///
/// All of it is one word, so that a watcher joins without a lock, and the watch still does not end
/// while anybody joins.
#[derive(Debug, Default)]
pub struct Watch(AtomicU64);

/// A moment at which switches were watched and there was no watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwanted(u64);

impl Watch {
    /// Makes the state in which switches are not watched.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns whether the watch has to begin before a watcher is added. C holds its lock of the
    /// watch.
    pub fn must_begin(&self) -> bool {
        self.0.load(SeqCst) & WATCHING == 0
    }

    /// Notes that switches are watched from now on. C holds its lock of the watch.
    pub fn began(&self) {
        self.0.fetch_or(WATCHING, SeqCst);
    }

    /// Adds a watcher if switches are watched, and returns whether they are. The watch does not end
    /// then until the watcher [leaves](Self::leave). The caller needs no lock, so that a thread
    /// waits for nobody when it gets counters.
    pub fn join(&self) -> bool {
        let join = |state: u64| {
            let joined = state.wrapping_add(JOIN) & !WATCHING | WATCHING;
            (state & WATCHING != 0).then_some(joined)
        };
        self.0.fetch_update(SeqCst, SeqCst, join).is_ok()
    }

    /// Removes one watcher.
    pub fn leave(&self) {
        self.0.fetch_sub(1, SeqCst);
    }

    /// Returns whether there is no watcher, so that a CPU is to take its page back. The CPU itself
    /// asks this, because a watcher may have been added meanwhile.
    pub fn is_idle(&self) -> bool {
        self.0.load(SeqCst) & WATCHERS == 0
    }

    /// Returns the present moment if the watch may end as soon as no page is registered. C holds
    /// its lock of the watch.
    pub fn may_end(&self) -> Option<Unwanted> {
        let state = self.0.load(SeqCst);
        (state & WATCHING != 0 && state & WATCHERS == 0).then_some(Unwanted(state))
    }

    /// Ends the watch if there has been no watcher since `moment`, and no page was `shown` after
    /// it. Returns whether it has ended. The watch does not end while the hypervisor keeps a page.
    /// C holds its lock of the watch.
    pub fn end(&self, moment: Unwanted, shown: bool) -> bool {
        let Unwanted(state) = moment;
        // Somebody may have joined, registered a page and left since the caller looked at pages.
        // The number of those who have joined tells that.
        !shown && self.0.compare_exchange(state, state & !WATCHING, SeqCst, SeqCst).is_ok()
    }
}

/// Decides when counters that nobody reads are stopped. Stopping them interrupts each CPU on which
/// counters run.
///
/// The module checks some time after a thread has stopped. If no thread has started since the check
/// before, it stops the counters; otherwise it checks again later. So a program that starts and
/// stops all the time interrupts no CPU. After each round of interrupts, the time between two
/// checks doubles, so that a program which starts seldom interrupts CPUs seldom.
#[derive(Debug)]
pub struct StopTimer {
    /// The number of starts at the last check.
    starts: AtomicU32,
    delay_ms: AtomicU32,
}

/// What the threads have done since the last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// A thread counts. There will be another check after it has stopped.
    CountsNow,
    /// A thread has counted since the last check, so another check has to follow.
    HasCounted,
    /// No thread has counted since the last check, so counters are to be stopped.
    Idle,
}

impl StopTimer {
    /// Makes the state before anybody has counted.
    pub const fn new() -> Self {
        Self { starts: AtomicU32::new(0), delay_ms: AtomicU32::new(STOP_DELAY_MS) }
    }

    /// Returns the time from a thread's stop to the next check, and between two checks, unit: ms.
    pub fn delay_ms(&self) -> u32 {
        // ATOMICS: no other memory depends on the order of these numbers.
        self.delay_ms.load(Relaxed)
    }

    /// Checks what the threads have done since the last check. Callers make one check at a time.
    pub fn check(&self, counting: &Counting) -> Activity {
        let Some(starts) = counting.starts_if_idle() else { return Activity::CountsNow };
        if self.starts.load(Relaxed) != starts {
            self.starts.store(starts, Relaxed);
            return Activity::HasCounted;
        }
        Activity::Idle
    }

    /// Doubles the time between two checks, because CPUs are interrupted to stop their counters.
    pub fn wait_longer(&self) {
        self.delay_ms.store((2 * self.delay_ms()).min(STOP_DELAY_MAX_MS), Relaxed);
    }

    /// Makes the time between two checks short again, because the watch has ended: nobody has had
    /// counters for long.
    pub fn reset_delay(&self) {
        self.delay_ms.store(STOP_DELAY_MS, Relaxed);
    }
}

impl Default for StopTimer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    fn start_and_stop(counting: &Counting) {
        counting.counting_changed(false, true);
        counting.counting_changed(true, false);
    }

    #[test]
    fn who_starts_and_stops_all_the_time_interrupts_nobody() {
        let (timer, counting) = (StopTimer::new(), Counting::new());
        for _ in 0..1_000 {
            start_and_stop(&counting);
            assert_eq!(timer.check(&counting), Activity::HasCounted);
        }
        counting.counting_changed(false, true);
        assert_eq!(timer.check(&counting), Activity::CountsNow);
        counting.counting_changed(true, false);
        assert_eq!(timer.check(&counting), Activity::HasCounted, "it has started since");
        assert_eq!(timer.delay_ms(), STOP_DELAY_MS);
        assert_eq!(timer.check(&counting), Activity::Idle);
    }

    #[test]
    fn who_starts_seldom_interrupts_seldom() {
        let (timer, counting) = (StopTimer::new(), Counting::new());
        let mut delays = Vec::new();
        for _ in 0..6 {
            delays.push(timer.delay_ms());
            start_and_stop(&counting);
            let checks = [timer.check(&counting), timer.check(&counting)];
            assert_eq!(checks, [Activity::HasCounted, Activity::Idle]);
            timer.wait_longer();
        }
        assert_eq!(delays, [100, 200, 400, 800, 1_600, 1_600]);
        timer.reset_delay();
        assert_eq!(timer.delay_ms(), STOP_DELAY_MS);
    }

    fn watched() -> Watch {
        let watch = Watch::new();
        assert!(watch.must_begin() && watch.may_end().is_none());
        assert!(!watch.join(), "switches are not watched");
        watch.began();
        watch
    }

    #[test]
    fn the_watch_lasts_while_somebody_needs_pages() {
        let watch = watched();
        assert!(watch.join() && watch.join());
        assert!(!watch.must_begin());
        watch.leave();
        assert!(!watch.is_idle() && watch.may_end().is_none());
        watch.leave();
        assert!(watch.is_idle());
        let moment = watch.may_end().unwrap();
        assert!(!watch.end(moment, true), "a page is registered still");
        assert!(!watch.must_begin());
        assert!(watch.end(moment, false));
        assert!(watch.must_begin(), "the next one begins it again");
        assert!(!watch.end(moment, false) && watch.may_end().is_none(), "it has ended already");
        assert!(!watch.join());
    }

    #[test]
    fn nobody_needs_a_lock_to_join_while_switches_are_watched() {
        let watch = watched();
        for _ in 0..3 {
            assert!(watch.is_idle() && watch.join());
            watch.leave();
        }
        assert!(watch.is_idle() && !watch.must_begin());
    }

    #[test]
    fn somebody_who_joins_in_time_keeps_the_watch() {
        let watch = watched();
        let moment = watch.may_end().unwrap();
        assert!(watch.join());
        assert!(!watch.is_idle() && !watch.end(moment, false) && !watch.must_begin());
        watch.leave();
        assert!(!watch.end(moment, false), "a page that was registered meanwhile may be there");
        assert!(watch.end(watch.may_end().unwrap(), false));
    }

    #[test]
    fn the_number_of_those_who_have_joined_begins_anew() {
        let watch = Watch(AtomicU64::new(u64::MAX - WATCHERS));
        assert!(watch.join() && !watch.is_idle() && !watch.must_begin());
        watch.leave();
        assert_eq!(watch.may_end(), Some(Unwanted(WATCHING)));
    }
}
