// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Computes for how long an event has not counted although perf believes that it counts.

/// The stall of one event. Times are perf's, by which perf computes how long the event has run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stall {
    /// The time since which the event does not count.
    since: Option<u64>,
}

impl Stall {
    /// Notes that the event is or is not stalled from now on. If it begins to be stalled, it has
    /// been so since `began`. Returns for how long it has been stalled since the last call, which
    /// perf has to subtract from the time for which the event has run.
    pub(crate) fn settle(&mut self, stalled: bool, began: u64, now: u64) -> u64 {
        let lost = self.since.map_or(0, |since| now.wrapping_sub(since));
        let since = if self.since.is_some() { now } else { began };
        self.since = stalled.then_some(since);
        lost
    }
}
