// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts how far readings are from the truth.

use std::collections::BTreeMap;

use crate::expected::Overhead;

/// How often readings were above the truth, by which amount, and after how many retries.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Number of readings for each number of retries and distance from the truth.
    readings: BTreeMap<(u32, i64), u64>,
    /// Sum of the true values.
    truth: u64,
}

/// How far readings are from the prediction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What most readings without a retry add to the truth; `None` if all were retried.
    pub constant: Option<i64>,
    /// What each retry adds in most readings; `None` if there was none.
    pub per_retry: Option<i64>,
    /// Largest distance from the prediction.
    pub error_max: u64,
    /// Readings with a distance.
    pub error_count: u64,
    /// Sum of the true values.
    pub truth: u64,
    /// Sum of the readings, without the cost of the reads themselves.
    pub reading: u64,
}

/// The cost of the reads themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    /// A reading without a retry adds this to the truth.
    pub constant: u64,
    /// What each retry adds.
    pub per_retry: u64,
}

impl Prediction {
    /// Predicts counts of instructions.
    pub const fn instructions(overhead: &Overhead) -> Self {
        let Overhead { once, per_retry } = overhead;
        Self { constant: once.instructions, per_retry: per_retry.instructions }
    }

    /// Predicts counts of branches.
    pub const fn branches(overhead: &Overhead) -> Self {
        let Overhead { once, per_retry } = overhead;
        Self { constant: once.branches, per_retry: per_retry.branches }
    }

    /// Predicts counts of the testbed's cycles.
    pub const fn cycles(overhead: &Overhead) -> Self {
        let Overhead { once, per_retry } = overhead;
        Self { constant: once.cycles(), per_retry: per_retry.cycles() }
    }
}

impl Histogram {
    /// Records one reading, and the true value.
    pub fn add(&mut self, retries: u32, reading: u64, truth: u64) {
        let distance = reading.wrapping_sub(truth) as i64;
        *self.readings.entry((retries, distance)).or_default() += 1;
        self.truth += truth;
    }

    /// Adds another thread's readings.
    pub fn merge(&mut self, other: &Self) {
        for (key, count) in &other.readings {
            *self.readings.entry(*key).or_default() += count;
        }
        self.truth += other.truth;
    }

    /// Returns the number of readings.
    pub fn readings(&self) -> u64 {
        self.readings.values().sum()
    }

    /// Returns the number of retries of all readings.
    pub fn retries(&self) -> u64 {
        self.readings.iter().map(|((retries, _), count)| u64::from(*retries) * count).sum()
    }

    /// Returns the most frequent distance among readings with the fewest retries that `wanted`
    /// accepts.
    fn typical(&self, wanted: impl Fn(u32) -> bool) -> Option<(u32, i64)> {
        let fewest = self.readings.keys().map(|key| key.0).find(|&retries| wanted(retries))?;
        let same = self.readings.iter().filter(|(key, _)| key.0 == fewest);
        same.max_by_key(|(_, count)| **count).map(|(key, _)| *key)
    }

    /// Compares all readings with the prediction. Returns `None` if there is no reading.
    pub fn judge(&self, predicted: Prediction) -> Option<Verdict> {
        if self.readings.is_empty() {
            return None;
        }
        let constant = self.typical(|retries| retries == 0).map(|(_, distance)| distance);
        let without_retries = constant.unwrap_or(predicted.constant as i64);
        let per_retry = self
            .typical(|retries| retries > 0)
            .map(|(retries, distance)| (distance - without_retries) / i64::from(retries));
        let mut verdict = Verdict {
            constant,
            per_retry,
            error_max: 0,
            error_count: 0,
            truth: self.truth,
            reading: self.truth,
        };
        for ((retries, distance), count) in &self.readings {
            let own = predicted.constant + predicted.per_retry * u64::from(*retries);
            let error = distance - own as i64;
            if error != 0 {
                verdict.error_max = verdict.error_max.max(error.unsigned_abs());
                verdict.error_count += count;
                let total = error.wrapping_mul(*count as i64);
                verdict.reading = verdict.reading.wrapping_add_signed(total);
            }
        }
        Some(verdict)
    }

    /// Returns the recorded distances, one line each, most frequent first, `lines` at most.
    pub fn describe(&self, lines: usize) -> String {
        let mut entries: Vec<_> = self.readings.iter().collect();
        entries.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let line = |((retries, distance), count): &(&(u32, i64), &u64)| {
            format!("{count:>9} readings after {retries} retries: {distance:+}\n")
        };
        entries.iter().take(lines).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(entries: &[(u32, u64, u64)]) -> Histogram {
        let mut histogram = Histogram::default();
        for &(retries, distance, count) in entries {
            (0..count).for_each(|_| histogram.add(retries, 1000 + distance, 1000));
        }
        histogram
    }

    const PREDICTED: Prediction = Prediction { constant: 30, per_retry: 21 };

    #[test]
    fn readings_that_are_as_predicted_are_no_error() {
        let verdict = histogram(&[(0, 30, 5), (1, 51, 2), (3, 93, 1)]).judge(PREDICTED).unwrap();
        assert_eq!((verdict.constant, verdict.per_retry), (Some(30), Some(21)));
        assert_eq!((verdict.error_max, verdict.error_count), (0, 0));
        assert_eq!((verdict.truth, verdict.reading), (8000, 8000));
    }

    #[test]
    fn whatever_is_off_is_an_error() {
        let readings = histogram(&[(0, 30, 5), (0, 33, 2), (1, 51, 1), (2, 70, 1)]);
        let verdict = readings.judge(PREDICTED).unwrap();
        assert_eq!((verdict.error_max, verdict.error_count), (3, 3));
        assert_eq!(verdict.reading, 9000 + 3 + 3 - 2);
    }

    #[test]
    fn a_fixed_amount_is_an_error() {
        let verdict = histogram(&[(0, 1_030, 5), (1, 1_051, 2)]).judge(PREDICTED).unwrap();
        assert_eq!((verdict.constant, verdict.per_retry), (Some(1_030), Some(21)));
        assert_eq!((verdict.error_max, verdict.error_count), (1_000, 7));
    }

    #[test]
    fn a_fixed_amount_for_each_retry_is_an_error() {
        let verdict = histogram(&[(0, 30, 5), (1, 5_051, 2)]).judge(PREDICTED).unwrap();
        assert_eq!((verdict.constant, verdict.per_retry), (Some(30), Some(5_021)));
        assert_eq!((verdict.error_max, verdict.error_count), (5_000, 2));
    }

    #[test]
    fn retries_alone_are_judged_and_nothing_is_not() {
        let verdict = histogram(&[(1, 51, 2)]).judge(PREDICTED).unwrap();
        assert_eq!((verdict.constant, verdict.per_retry, verdict.error_max), (None, Some(21), 0));
        assert_eq!(histogram(&[]).judge(PREDICTED), None);
    }
}
