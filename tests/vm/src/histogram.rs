// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! How far readings are from the truth.

use std::collections::BTreeMap;

/// How often readings were by which amount more than the truth, after how many retries.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Number of readings for each number of retries and distance from the truth.
    readings: BTreeMap<(u32, i64), u64>,
    /// Sum of what was true.
    truth: u64,
}

/// What all readings have in common, and how far they are from that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What a reading without a retry adds to the truth.
    pub constant: i64,
    /// What each retry adds; `None` if there was none.
    pub per_retry: Option<i64>,
    /// Largest distance from truth + constant + retries x per_retry.
    pub error_max: u64,
    /// Readings with a distance.
    pub error_count: u64,
    /// Sum of what was true.
    pub truth: u64,
    /// Sum of what was read, less the constants.
    pub reading: u64,
}

impl Histogram {
    /// Records one reading, and what was true.
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

    /// Readings recorded.
    pub fn readings(&self) -> u64 {
        self.readings.values().sum()
    }

    /// Retries of all readings.
    pub fn retries(&self) -> u64 {
        self.readings.iter().map(|((retries, _), count)| u64::from(*retries) * count).sum()
    }

    /// The most frequent distance among readings with the fewest retries that `wanted` accepts.
    fn typical(&self, wanted: impl Fn(u32) -> bool) -> Option<(u32, i64)> {
        let fewest = self.readings.keys().map(|key| key.0).find(|&retries| wanted(retries))?;
        let same = self.readings.iter().filter(|(key, _)| key.0 == fewest);
        same.max_by_key(|(_, count)| **count).map(|(key, _)| *key)
    }

    /// Derives both constants from the data, each from the most typical readings, and holds all
    /// readings to them.  `None` if no reading went without a retry.
    pub fn judge(&self) -> Option<Verdict> {
        let (_, constant) = self.typical(|retries| retries == 0)?;
        let per_retry = self
            .typical(|retries| retries > 0)
            .map(|(retries, distance)| (distance - constant) / i64::from(retries));
        let mut verdict = Verdict {
            constant,
            per_retry,
            error_max: 0,
            error_count: 0,
            truth: self.truth,
            reading: self.truth,
        };
        for ((retries, distance), count) in &self.readings {
            let error = distance - constant - per_retry.unwrap_or(0) * i64::from(*retries);
            if error != 0 {
                verdict.error_max = verdict.error_max.max(error.unsigned_abs());
                verdict.error_count += count;
                let total = error.wrapping_mul(*count as i64);
                verdict.reading = verdict.reading.wrapping_add_signed(total);
            }
        }
        Some(verdict)
    }

    /// The recorded distances, one line each, most frequent first, `lines` at most.
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

    #[test]
    fn constants_are_found_and_hold() {
        let verdict = histogram(&[(0, 30, 5), (1, 51, 2), (3, 93, 1)]).judge().unwrap();
        assert_eq!((verdict.constant, verdict.per_retry), (30, Some(21)));
        assert_eq!((verdict.error_max, verdict.error_count), (0, 0));
        assert_eq!((verdict.truth, verdict.reading), (8000, 8000));
    }

    #[test]
    fn whatever_is_off_is_an_error() {
        let verdict = histogram(&[(0, 30, 5), (0, 33, 2), (1, 51, 1), (2, 70, 1)]).judge().unwrap();
        assert_eq!((verdict.error_max, verdict.error_count), (3, 3));
        assert_eq!(verdict.reading, 9000 + 3 + 3 - 2);
    }

    #[test]
    fn retries_alone_prove_nothing() {
        assert_eq!(histogram(&[(1, 51, 2)]).judge(), None);
    }
}
