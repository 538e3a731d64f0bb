// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The total of one event.

use std::iter::Sum;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A total says how often one event occurred, and for how long it was counted.
///
/// Differences (`later - earlier`) and sums are computed field by field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Total {
    /// The count, unit: events.
    pub count: u64,
    /// How long the event was enabled, summed over all threads.
    pub enabled: Duration,
    /// How long the event was counted, summed over all threads. This is less than `enabled` if
    /// there were not enough counters.
    pub running: Duration,
}

impl Total {
    pub(crate) fn of_ns(count: u64, enabled: u64, running: u64) -> Self {
        let (enabled, running) = (Duration::from_nanos(enabled), Duration::from_nanos(running));
        Self { count, enabled, running }
    }

    /// Returns the part of the time in which the event was counted. It is 1 if it was always
    /// counted.
    pub fn share(&self) -> f64 {
        if self.running >= self.enabled {
            return 1.0;
        }
        self.running.as_secs_f64() / self.enabled.as_secs_f64()
    }

    /// Returns the count if the event was counted all the time. Otherwise returns an estimate of
    /// that count, or `None` if the event was never counted.
    pub fn scaled(&self) -> Option<u64> {
        let share = self.share();
        if share == 1.0 {
            return Some(self.count);
        }
        (!self.running.is_zero()).then(|| (self.count as f64 / share).round() as u64)
    }
}

impl Add for Total {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            count: self.count.wrapping_add(other.count),
            enabled: self.enabled.saturating_add(other.enabled),
            running: self.running.saturating_add(other.running),
        }
    }
}

impl Sub for Total {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            count: self.count.saturating_sub(earlier.count),
            enabled: self.enabled.saturating_sub(earlier.enabled),
            running: self.running.saturating_sub(earlier.running),
        }
    }
}

impl Sum for Total {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_counted_all_the_time_is_an_estimate() {
        let of = |count, enabled, running| {
            let total = Total::of_ns(count, enabled, running);
            (total.scaled(), total.share())
        };
        assert_eq!(of(u64::MAX, 8, 8), (Some(u64::MAX), 1.0));
        assert_eq!(of(100, 8, 2), (Some(400), 0.25));
        assert_eq!(of(0, 8, 0), (None, 0.0));
        assert_eq!(of(7, 0, 0), (Some(7), 1.0));
    }

    #[test]
    fn sums_and_differences_are_of_each_field() {
        let (one, other) = (Total::of_ns(5, 30, 20), Total::of_ns(2, 10, 10));
        assert_eq!([one, other].into_iter().sum::<Total>(), Total::of_ns(7, 40, 30));
        assert_eq!(one - other, Total::of_ns(3, 20, 10));
    }
}
