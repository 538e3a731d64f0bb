// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Computes for how long an event has not counted although perf believes that it counts.

/// The stall of one event. Times are perf's, by which perf computes how long the event has run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Stall {
    /// The event counts, as far as is known.
    #[default]
    None,
    /// The event was found not to count any more. Nobody knows since when.
    Found,
    /// The event does not count since this time.
    Since(u64),
}

impl Stall {
    /// Notes that the event, which has counted, was found not to count any more.
    pub(crate) fn note_found(&mut self) {
        if let Self::None = self {
            *self = Self::Found;
        }
    }

    /// Notes that the event is or is not stalled from now on. If it begins to be stalled, it has
    /// been so since `began`. Returns for how long it has been stalled since the last call, which
    /// perf has to subtract from the time for which the event has run.
    pub(crate) fn settle(&mut self, stalled: bool, began: u64, now: u64) -> u64 {
        let (lost, since) = match *self {
            Self::Since(since) => (now.wrapping_sub(since), now),
            Self::None | Self::Found => (0, began),
        };
        *self = if stalled { Self::Since(since) } else { Self::None };
        lost
    }

    /// Does [`settle`](Self::settle) when perf gets what the event has counted.
    ///
    /// If the event was [found](Self::note_found) not to count before the host's interrupt has said
    /// so, this adds the shortest time, 1 ns, so that perf does not say that the event has counted
    /// all the time.
    pub(crate) fn settle_with_count(&mut self, stalled: bool, now: u64) -> u64 {
        let unseen = u64::from(matches!(self, Self::Found));
        self.settle(stalled, now, now) + unseen
    }
}
