// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides when threads are searched for contexts of perf's that name the module's PMU.
//!
//! Up to Linux 6.1 a task may keep such a context after its last event has ended. The module must
//! stay loaded as long. A search may look at every thread, and any user can end events as often as
//! it likes, so there are at most two searches in a second.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The time between two searches, unit: ns.
const BETWEEN_NS: u64 = 500_000_000;

/// The moment from which on the next search may begin, by the kernel's clock, unit: ns.
#[derive(Debug, Default)]
pub struct Searches(AtomicU64);

impl Searches {
    /// Makes the state before the first search.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Notes that a search begins now. There is one search at a time.
    pub fn begins(&self, now: u64) {
        // ATOMICS: who reads the moment before searches sooner by as much.
        self.0.store(now.saturating_add(BETWEEN_NS), Relaxed);
    }

    /// Returns in how much time the next search may begin, unit: ms.
    pub fn wait_ms(&self, now: u64) -> u32 {
        self.0.load(Relaxed).saturating_sub(now).div_ceil(1_000_000) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Ends an event each time this many milliseconds have passed, for ten seconds, as C does.
    /// Returns the number of searches.
    fn searches(period_ms: u64) -> u32 {
        let (searches, mut count, mut queued) = (Searches::new(), 0, None);
        for ms in 1_000..11_000 {
            if queued == Some(ms) {
                searches.begins(ms * MS);
                (count, queued) = (count + 1, None);
            }
            if ms % period_ms == 0 && queued.is_none() {
                queued = Some(ms + 1 + u64::from(searches.wait_ms(ms * MS)));
            }
        }
        count
    }

    #[test]
    fn who_ends_events_all_the_time_causes_few_searches() {
        assert_eq!([1, 200].map(searches), [20; 2]);
        assert_eq!(searches(800), 12, "one after each event");
    }

    #[test]
    fn who_ends_an_event_seldom_does_not_wait() {
        let searches = Searches::new();
        assert_eq!(searches.wait_ms(7 * MS), 0, "there was none");
        searches.begins(7 * MS);
        assert_eq!(searches.wait_ms(8 * MS), 499);
        assert_eq!(searches.wait_ms(506 * MS + 1), 1, "a search is not too early");
        assert_eq!([507, 9_000].map(|ms| searches.wait_ms(ms * MS)), [0, 0]);
    }
}
