// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides when a thread's sampling counters overflow.
//!
//! The hypervisor's virtual interrupt only says that something on this vCPU has overflowed; the
//! thread that caused the overflow may be suspended by now. The counts alone tell which counter it
//! was: a counter has overflowed whenever its count has reached the next multiple of its period. So
//! nothing depends on when, or how often, the interrupt comes: no overflow is lost, doubled or
//! given to another thread.

use shared_abi::arch::EVNTSEL_OS;
use shared_abi::config::MODE_SAMPLING;
use shared_abi::ioctl::{Control, Sums};
use shared_abi::limits::MAX_COUNTERS;
use shared_abi::slot::bits_of;

/// The least number of events between two interrupts of a counter that counts its own handler.
///
/// If its period is shorter, it interrupts at the first multiple of the period that is at least
/// this far away. The overflows before that are merged. Otherwise the next one would come before
/// the handler has ended, and the thread would make no progress. A counter counts its own handler
/// if the handler is a signal's, or if the counter counts the kernel.
const EVENTS_BETWEEN_MIN: u64 = 1_000;

/// The notification of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The signal's number, or 0 if the thread gets no signal, but a record in its ring for each
    /// counter.
    pub number: u32,
    /// One bit per counter that has overflowed.
    pub counters: u32,
}

/// The sampling counters of one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overflows {
    /// The signal's number, or 0 if overflows are records in the thread's ring.
    signal: u32,
    /// One bit per sampling counter.
    sampling: u32,
    period: [u64; MAX_COUNTERS],
    /// The counts at which they overflow next.
    next: [u64; MAX_COUNTERS],
    /// Counters that have overflowed since the last report to the thread.
    pending: u32,
    /// Whether an overflow was reported, and the thread has not let its counters continue.
    paused: bool,
}

impl Overflows {
    pub(crate) const NONE: Self = Self {
        signal: 0,
        sampling: 0,
        period: [0; MAX_COUNTERS],
        next: [0; MAX_COUNTERS],
        pending: 0,
        paused: false,
    };

    /// Makes the sampling counters of a valid control, whose periods have not begun.
    pub(crate) fn new(control: &Control) -> Self {
        let mut overflows = Self { signal: control.signal, ..Self::NONE };
        let counters = control.counter.iter().take(control.counters as usize);
        for (index, (period, counter)) in overflows.period.iter_mut().zip(counters).enumerate() {
            if counter.mode == MODE_SAMPLING {
                *period = counter.period;
                overflows.sampling |= 1 << index;
            }
        }
        overflows
    }

    /// Begins the periods at these counts.
    pub(crate) fn begin(&mut self, sums: &Sums) {
        for ((next, period), sum) in self.next.iter_mut().zip(&self.period).zip(&sums.counter) {
            *next = sum.wrapping_add(*period);
        }
    }

    /// Continues the periods that were left at the counts `stopped` of the same counters.
    pub(crate) fn go_on_from(&mut self, before: &Self, stopped: &Sums, sums: &Sums) {
        let left =
            before.next.iter().zip(&stopped.counter).map(|(next, sum)| next.wrapping_sub(*sum));
        for ((next, left), sum) in self.next.iter_mut().zip(left).zip(&sums.counter) {
            *next = sum.wrapping_add(left);
        }
        self.pending = before.pending;
    }

    /// Returns whether the same counters sample with the same periods.
    pub(crate) fn like(&self, other: &Self) -> bool {
        self.sampling == other.sampling
            && self.period.iter().zip(&other.period).all(|(one, two)| one == two)
    }

    /// Stops the counters. Overflows that were not reported to the thread yet are reported when the
    /// counters continue.
    pub(crate) fn stop(&mut self) {
        if core::mem::take(&mut self.paused) {
            self.pending = 0;
        }
    }

    #[inline(always)]
    pub(crate) const fn any(&self) -> bool {
        self.sampling != 0
    }

    #[inline(always)]
    pub(crate) const fn paused(&self) -> bool {
        self.paused
    }

    /// Returns whether there is an overflow that was not reported to the thread yet.
    #[inline(always)]
    pub(crate) const fn pending(&self) -> bool {
        self.pending != 0 && !self.paused
    }

    /// Returns the number of events from these counts to counter `index`'s next overflow, if it
    /// samples.
    pub(crate) fn distance(&self, index: usize, sums: &Sums) -> Option<u64> {
        let next = self.next.get(index).filter(|_| self.sampling & 1 << index != 0)?;
        Some(next.wrapping_sub(*sums.counter.get(index)?))
    }

    /// Returns the number of events until counter `index`, whose event select is `evntsel`, is to
    /// interrupt, if it samples.
    pub(crate) fn armed(&self, index: usize, evntsel: u64, sums: &Sums) -> Option<u64> {
        let distance = self.distance(index, sums)?;
        if self.recorded() && evntsel & EVNTSEL_OS == 0 {
            return Some(distance);
        }
        Some(interrupt_distance(distance, *self.period.get(index)?))
    }

    /// Notes which counters have overflowed at these counts. Returns how many overflows will be
    /// merged with the one before of the same counter.
    #[inline(always)]
    #[must_use]
    pub(crate) fn notice(&mut self, sums: &Sums) -> u64 {
        let mut merged = 0_u64;
        // Every switch of a thread that samples comes here.
        for index in bits_of(self.sampling).map(|bit| bit as usize) {
            let Some(distance) = self.distance(index, sums).filter(|&distance| is_past(distance))
            else {
                continue;
            };
            // The number of periods is computed and not found by a loop, since the counts, which
            // somebody else has written, must not decide how long this takes.
            if let (Some(next), Some(&period)) = (self.next.get_mut(index), self.period.get(index))
            {
                let more = distance.wrapping_neg().checked_div(period).unwrap_or(0);
                *next = next.wrapping_add(more.wrapping_add(1).wrapping_mul(period));
                merged =
                    merged.wrapping_add(more).wrapping_add(u64::from(self.pending >> index & 1));
            }
            self.pending |= 1 << index;
        }
        merged
    }

    /// Returns whether overflows are records, so that the counters do not pause.
    pub(crate) const fn recorded(&self) -> bool {
        self.any() && self.signal == 0
    }

    /// Returns what to report to the thread if a counter has overflowed. With a signal the counters
    /// pause.
    #[inline(always)]
    pub(crate) fn report(&mut self) -> Option<Signal> {
        if !self.pending() {
            return None;
        }
        let signal = Signal { number: self.signal, counters: self.pending };
        if self.recorded() {
            self.pending = 0;
        } else {
            self.paused = true;
        }
        Some(signal)
    }

    /// Lets the counters continue. Returns false if they were not paused.
    pub(crate) fn go_on(&mut self) -> bool {
        let paused = core::mem::take(&mut self.paused);
        if paused {
            self.pending = 0;
        }
        paused
    }
}

/// Returns the distance at which to interrupt for an overflow at `distance`, or for a later one.
pub(crate) const fn interrupt_distance(distance: u64, period: u64) -> u64 {
    if period >= EVENTS_BETWEEN_MIN || period == 0 {
        return distance;
    }
    let more = EVENTS_BETWEEN_MIN.saturating_sub(distance).div_ceil(period);
    distance.wrapping_add(more.wrapping_mul(period))
}

/// Returns whether a distance has already been passed.
const fn is_past(distance: u64) -> bool {
    distance as i64 <= 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_abi::CounterConfig;
    use shared_abi::arch::EVNTSEL_USR;

    fn sampling(periods: &[u64]) -> Overflows {
        let mut control =
            Control { signal: 27, counters: periods.len() as u32, ..Control::default() };
        for (counter, &period) in control.counter.iter_mut().zip(periods) {
            let mode = if period > 0 { MODE_SAMPLING } else { 0 };
            *counter = CounterConfig { mode, period, ..CounterConfig::default() };
        }
        Overflows::new(&control)
    }

    fn sums(counts: &[u64]) -> Sums {
        let mut sums = Sums::default();
        sums.counter[..counts.len()].copy_from_slice(counts);
        sums
    }

    #[test]
    fn multiples_of_the_period_overflow() {
        let mut overflows = sampling(&[0, 1_000]);
        overflows.begin(&sums(&[5, 70]));
        assert_eq!(overflows.distance(0, &sums(&[5, 70])), None);
        assert_eq!(overflows.distance(1, &sums(&[5, 70])), Some(1_000));
        assert_eq!(overflows.notice(&sums(&[9_999, 1_069])), 0);
        assert_eq!(overflows.report(), None);
        assert_eq!(overflows.notice(&sums(&[9_999, 1_072])), 0);
        assert_eq!(overflows.report(), Some(Signal { number: 27, counters: 0b10 }));
        assert_eq!(overflows.report(), None, "once");
        assert!(overflows.go_on() && !overflows.go_on());
        // What was too many of the first period counts for the second.
        assert_eq!(overflows.distance(1, &sums(&[0, 1_072])), Some(998));
    }

    #[test]
    fn what_is_not_paused_yet_cannot_go_on() {
        let mut overflows = sampling(&[1_000]);
        overflows.begin(&sums(&[0]));
        assert_eq!(overflows.notice(&sums(&[1_001])), 0);
        assert!(!overflows.go_on(), "the thread has not been told");
        assert_eq!(overflows.report().map(|signal| signal.counters), Some(1));
    }

    #[test]
    fn overflows_behind_a_pending_one_are_counted() {
        let mut overflows = sampling(&[1_000]);
        overflows.begin(&sums(&[u64::MAX - 99]));
        assert_eq!(overflows.notice(&sums(&[3_500 - 100])), 2);
        assert_eq!(overflows.report().map(|signal| signal.counters), Some(1));
        assert_eq!(overflows.distance(0, &sums(&[3_400])), Some(500));
    }

    #[test]
    fn records_pause_nothing() {
        let mut overflows = Overflows { signal: 0, ..sampling(&[1_000]) };
        overflows.begin(&sums(&[0]));
        for count in [1_003, 2_000, 3_500] {
            assert_eq!(overflows.notice(&sums(&[count])), 0);
            assert_eq!(overflows.report(), Some(Signal { number: 0, counters: 1 }));
            assert_eq!(overflows.report(), None, "once");
            assert!(!overflows.paused() && !overflows.go_on());
        }
        assert_eq!(overflows.distance(0, &sums(&[3_500])), Some(500));
    }

    #[test]
    fn each_counter_has_its_own_pending_overflow() {
        let mut overflows = sampling(&[1_000, 1_000]);
        overflows.begin(&sums(&[0, 0]));
        assert_eq!(overflows.notice(&sums(&[0, 1_000])), 0, "the first of each");
        assert_eq!(overflows.notice(&sums(&[1_000, 1_000])), 0, "the first of each");
        assert_eq!(overflows.notice(&sums(&[1_000, 2_000])), 1);
        assert_eq!(overflows.report().map(|signal| signal.counters), Some(0b11));
    }

    #[test]
    fn short_periods_leave_the_thread_room_between_signals() {
        let mut overflows = sampling(&[25, 999, 1_000, 0]);
        overflows.begin(&sums(&[0; 4]));
        let armed = |counts: &[u64]| {
            let counts = sums(counts);
            [0, 1, 2, 3].map(|index| overflows.armed(index, EVNTSEL_USR, &counts))
        };
        assert_eq!(armed(&[0; 4]), [Some(1_000), Some(1_998), Some(1_000), None]);
        // At multiples, however much of a period is left.
        assert_eq!(armed(&[10, 1, 990, 0]), [Some(1_015), Some(1_997), Some(10), None]);
    }

    #[test]
    fn short_periods_that_are_recorded_interrupt_where_they_end() {
        let selects = [EVNTSEL_USR, EVNTSEL_OS, EVNTSEL_USR | EVNTSEL_OS];
        for (signal, user) in [(0, 25), (27, 1_000)] {
            let mut overflows = Overflows { signal, ..sampling(&[25]) };
            overflows.begin(&sums(&[0]));
            let armed = selects.map(|evntsel| overflows.armed(0, evntsel, &sums(&[0])));
            assert_eq!(armed, [Some(user), Some(1_000), Some(1_000)], "signal {signal}");
        }
    }
}
