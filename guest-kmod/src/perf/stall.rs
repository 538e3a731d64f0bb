// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! For how long an event has not counted although perf takes it for one that counts.

/// The stall of one event; of perf's time, by which perf reckons how long the event has run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stall {
    /// Since when the event does not count.
    since: Option<u64>,
}

impl Stall {
    /// The event is or is not stalled from now on; if it was not before, it is so since `began`.
    /// Gives for how long it has been stalled since the last call, which perf has to take off the
    /// time for which the event has run.
    pub(crate) fn settle(&mut self, stalled: bool, began: u64, now: u64) -> u64 {
        let lost = self.since.map_or(0, |since| now.wrapping_sub(since));
        let since = if self.since.is_some() { now } else { began };
        self.since = stalled.then_some(since);
        lost
    }
}
