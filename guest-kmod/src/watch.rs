// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides when the guest's switches of threads are watched, and when pages and the watch end
//! (`docs/adr/0014-switches-are-watched-on-demand.md`).
//!
//! Whoever may need a page registered is a *watcher*. The watch begins before the first watcher
//! registers a page. When there is no watcher any more, each CPU takes its page back, and then the
//! watch ends.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// How long counters that nobody reads keep running, unit: ms.
///
/// Programs that stop often start again soon: they find their configuration loaded, and no CPU is
/// interrupted.
pub const STOP_DELAY_MS: u32 = 100;

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

#[cfg(test)]
mod tests {
    use super::*;

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
