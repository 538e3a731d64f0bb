// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Brings the time-stamp counter of the host's samples and the clock of a guest's records to one
//! axis.

use anyhow::{Context, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use perfctr::rdpmc::Hardware;
use serde::{Deserialize, Serialize};
use shared_abi::read::Counters;

const NS_PER_SECOND: u128 = 1_000_000_000;

/// A moment by both clocks of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The time-stamp counter.
    pub tsc: u64,
    /// The clock of the kernel's records. Unit: ns.
    pub ns: u64,
    /// The moment of the counter may be earlier or later than that of the clock by so much. Unit:
    /// ticks of the counter.
    pub within: u64,
}

impl Moment {
    /// Reads both clocks so many times, and returns the time at which they were read in the
    /// shortest time.
    pub fn now(attempts: u32) -> Result<Self> {
        let read = |_| -> Result<Self> {
            let before = Hardware.clock();
            let time = clock_gettime(ClockId::CLOCK_MONOTONIC_RAW)?;
            let took = Hardware.clock().saturating_sub(before);
            let ns = NS_PER_SECOND as i64 * time.tv_sec() + time.tv_nsec();
            Ok(Self { tsc: before + took / 2, ns: ns as u64, within: took.div_ceil(2) })
        };
        let read: Vec<Self> = (0..attempts).map(read).collect::<Result<_>>()?;
        read.into_iter().min_by_key(|moment| moment.within).context("no attempts")
    }
}

/// The relation of a guest's clocks, from moments at which both were read.
#[derive(Debug)]
pub struct Clock {
    moments: Vec<Moment>,
    /// Unit: ns.
    error: u64,
}

impl Clock {
    /// Finds the relation. The moments may have any values.
    pub fn new(moments: Vec<Moment>) -> Result<Self> {
        ensure!(moments.len() > 1, "{} times of both clocks found, 2 expected", moments.len());
        let follows = |pair: &[Moment]| pair[0].tsc < pair[1].tsc && pair[0].ns < pair[1].ns;
        ensure!(moments.windows(2).all(follows), "times of both clocks found that go back");
        let mut clock = Self { moments, error: 0 };
        let within = clock.moments.iter().map(|moment| moment.within).max().unwrap_or(0);
        let within = u128::from(within) * NS_PER_SECOND;
        let within = within.div_ceil(u128::from(clock.ticks_per_second().max(1)));
        let bends = clock.moments.windows(3).map(|three| {
            // Between the outer two, the clock is taken for a straight line.
            let straight = between(&three[0], &three[2], three[1].tsc);
            straight.abs_diff(three[1].ns)
        });
        let bend = bends.max().unwrap_or(0);
        // Each of both axes is in whole numbers of ns.
        clock.error = u64::try_from(within).unwrap_or(u64::MAX).saturating_add(bend + 2);
        Ok(clock)
    }

    /// Returns the time of the records' clock at which the counter had this value, or `None` if
    /// the guest has not recorded then.
    pub fn ns(&self, tsc: u64) -> Option<u64> {
        let after = self.moments.partition_point(|moment| moment.tsc < tsc);
        match (after.checked_sub(1), self.moments.get(after)?) {
            (_, last) if last.tsc == tsc => Some(last.ns),
            (before, last) => Some(between(&self.moments[before?], last, tsc)),
        }
    }

    /// Returns by how much [`ns`](Self::ns) may be wrong, unit: ns.
    pub fn error(&self) -> u64 {
        self.error
    }

    pub fn ticks_per_second(&self) -> u64 {
        let (first, last) = (&self.moments[0], &self.moments[self.moments.len() - 1]);
        let ticks = u128::from(last.tsc - first.tsc) * NS_PER_SECOND;
        u64::try_from(ticks / u128::from(last.ns - first.ns)).unwrap_or(u64::MAX)
    }

    /// Returns the values of the counter between which the guest has recorded.
    pub fn span(&self) -> [u64; 2] {
        [self.moments[0].tsc, self.moments[self.moments.len() - 1].tsc]
    }
}

/// Returns the clock's time when the counter had a value between two moments.
fn between(first: &Moment, last: &Moment, tsc: u64) -> u64 {
    let ns = u128::from(tsc - first.tsc) * u128::from(last.ns - first.ns);
    // It is not larger than the difference of the two.
    first.ns + (ns / u128::from(last.tsc - first.tsc)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(all: &[(u64, u64, u64)]) -> Vec<Moment> {
        all.iter().map(|&(tsc, ns, within)| Moment { tsc, ns, within }).collect()
    }

    #[test]
    fn times_between_moments_are_on_a_line_and_others_are_unknown() {
        let clock = Clock::new(moments(&[(1_000, 50, 2), (3_000, 1_050, 6), (7_000, 3_050, 4)]));
        let clock = clock.unwrap();
        let found = [999, 1_000, 1_002, 2_999, 3_000, 5_000, 7_000, 7_001].map(|at| clock.ns(at));
        let known = [50, 51, 1_049, 1_050, 2_050, 3_050].map(Some);
        assert_eq!(found, [&[None][..], &known, &[None]].concat()[..]);
        assert_eq!(clock.ticks_per_second(), 2_000_000_000);
        assert_eq!((clock.error(), clock.span()), (3 + 2, [1_000, 7_000]));
    }

    #[test]
    fn a_bend_is_part_of_the_error() {
        let clock =
            Clock::new(moments(&[(0, 0, 0), (1_000, 1_007, 0), (2_000, 2_000, 0)])).unwrap();
        assert_eq!(clock.error(), 7 + 2);
    }

    #[test]
    fn moments_that_make_no_sense_are_refused() {
        for all in [&[][..], &[(1, 1, 0)], &[(1, 1, 0), (1, 2, 0)], &[(1, 2, 0), (2, 2, 0)]] {
            assert!(Clock::new(moments(all)).is_err(), "{all:?}");
        }
        let far = Clock::new(moments(&[(0, 0, u64::MAX), (u64::MAX, u64::MAX, 0)])).unwrap();
        assert_eq!(far.ns(u64::MAX / 2), Some(u64::MAX / 2));
        assert_eq!(far.error(), u64::MAX);
    }

    #[test]
    fn this_machines_clocks_can_be_read_together() {
        let first = Moment::now(10).unwrap();
        let last = Moment::now(10).unwrap();
        let clock = Clock::new(vec![first, last]).unwrap();
        assert!(clock.ns(first.tsc) == Some(first.ns), "{first:?} {last:?}");
    }
}
