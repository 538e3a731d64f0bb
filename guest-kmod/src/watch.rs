// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides when the guest's switches of threads are watched, and when pages and the watch end
//! (`docs/adr/0014-switches-are-watched-on-demand.md`).
//!
//! Whoever may need a page registered is a *watcher*. The watch begins before the first watcher
//! registers a page. When there is no watcher any more, each CPU takes its page back, and then the
//! watch ends.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use crate::refcount::increment_unless_zero;

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

/// The state of the watch: how many watchers there are, and whether switches are watched.
#[derive(Debug, Default)]
pub struct Watch {
    watchers: AtomicU32,
    watching: AtomicBool,
}

impl Watch {
    /// Makes the state in which switches are not watched.
    pub const fn new() -> Self {
        Self { watchers: AtomicU32::new(0), watching: AtomicBool::new(false) }
    }

    /// Returns whether the watch has to begin before a watcher is added. C holds its lock of the
    /// watch.
    pub fn must_begin(&self) -> bool {
        !self.watching.load(SeqCst)
    }

    /// Notes that switches are watched from now on. C holds its lock of the watch.
    pub fn began(&self) {
        self.watching.store(true, SeqCst);
    }

    /// Adds a watcher. C holds its lock of the watch.
    pub fn join(&self) {
        self.watchers.fetch_add(1, SeqCst);
    }

    /// Adds a watcher if there are others, and returns whether there are. The watch has begun then,
    /// and does not end. The caller needs no lock, so that threads get counters at the same time.
    pub fn join_others(&self) -> bool {
        increment_unless_zero(&self.watchers)
    }

    /// Removes one watcher.
    pub fn leave(&self) {
        self.watchers.fetch_sub(1, SeqCst);
    }

    /// Returns whether there is no watcher, so that a CPU is to take its page back. The CPU itself
    /// asks this, because a watcher may have been added meanwhile.
    pub fn is_idle(&self) -> bool {
        self.watchers.load(SeqCst) == 0
    }

    /// Returns whether the watch may end as soon as no page is registered. C holds its lock of the
    /// watch.
    pub fn may_end(&self) -> bool {
        self.watching.load(SeqCst) && self.is_idle()
    }

    /// Ends the watch if there is no watcher and no page is `shown`. Returns whether it has ended.
    /// The watch does not end while the hypervisor keeps a page. C holds its lock of the watch.
    pub fn end(&self, shown: bool) -> bool {
        let ends = self.may_end() && !shown;
        if ends {
            self.watching.store(false, SeqCst);
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watch_lasts_while_somebody_needs_pages() {
        let watch = Watch::new();
        assert!(watch.must_begin() && !watch.may_end());
        watch.began();
        watch.join();
        watch.join();
        assert!(!watch.must_begin());
        watch.leave();
        assert!(!watch.is_idle() && !watch.may_end() && !watch.end(false));
        watch.leave();
        assert!(watch.is_idle() && watch.may_end());
        assert!(!watch.end(true), "a page is registered still");
        assert!(!watch.must_begin());
        assert!(watch.end(false));
        assert!(watch.must_begin(), "the next one begins it again");
        assert!(!watch.end(false), "it has ended already");
    }

    #[test]
    fn others_are_joined_while_there_are_any() {
        let watch = Watch::new();
        assert!(!watch.join_others(), "nobody watches");
        watch.began();
        assert!(!watch.join_others(), "the watch may be about to end");
        watch.join();
        assert!(watch.join_others());
        watch.leave();
        assert!(!watch.is_idle());
        watch.leave();
        assert!(watch.is_idle() && !watch.join_others());
    }

    #[test]
    fn somebody_who_joins_in_time_keeps_the_watch() {
        let watch = Watch::new();
        watch.began();
        watch.join();
        watch.leave();
        assert!(watch.may_end());
        watch.join();
        assert!(!watch.is_idle() && !watch.end(false) && !watch.must_begin());
    }
}
