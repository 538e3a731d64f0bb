// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! How far readings are from the truth.

use std::collections::BTreeMap;

/// How often `N` counters read by which amounts more than the truth, after how many retries.
#[derive(Clone, Debug)]
pub struct Histogram<const N: usize>(BTreeMap<(u32, [i64; N]), u64>);

/// What all readings have in common, and how far they are from that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict<const N: usize> {
    /// What a reading without a retry adds to the truth.
    pub constant: [i64; N],
    /// What each retry adds; `None` if there was none.
    pub per_retry: Option<[i64; N]>,
    /// Largest distance from truth + constant + retries x per_retry.
    pub error_max: [u64; N],
    /// Readings with a distance.
    pub error_count: [u64; N],
}

impl<const N: usize> Default for Histogram<N> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<const N: usize> Histogram<N> {
    /// Records one reading.
    pub fn add(&mut self, retries: u32, errors: [i64; N]) {
        *self.0.entry((retries, errors)).or_default() += 1;
    }

    /// Adds another thread's readings.
    pub fn merge(&mut self, other: &Self) {
        for (key, count) in &other.0 {
            *self.0.entry(*key).or_default() += count;
        }
    }

    /// Readings recorded.
    pub fn readings(&self) -> u64 {
        self.0.values().sum()
    }

    /// Retries of all readings.
    pub fn retries(&self) -> u64 {
        self.0.iter().map(|((retries, _), count)| u64::from(*retries) * count).sum()
    }

    /// The most frequent distances among readings with the fewest retries that `wanted` accepts.
    fn typical(&self, wanted: impl Fn(u32) -> bool) -> Option<(u32, [i64; N])> {
        let fewest = self.0.keys().map(|key| key.0).find(|&retries| wanted(retries))?;
        let same = self.0.iter().filter(|(key, _)| key.0 == fewest);
        same.max_by_key(|(_, count)| **count).map(|(key, _)| *key)
    }

    /// Derives both constants from the data, each from the most typical readings, and holds all
    /// readings to them.  `None` if no reading went without a retry.
    pub fn judge(&self) -> Option<Verdict<N>> {
        let (_, constant) = self.typical(|retries| retries == 0)?;
        let per_retry = self.typical(|retries| retries > 0).map(|(retries, errors)| {
            std::array::from_fn(|n| (errors[n] - constant[n]) / i64::from(retries))
        });
        let mut verdict = Verdict { constant, per_retry, error_max: [0; N], error_count: [0; N] };
        for ((retries, errors), count) in &self.0 {
            for n in 0..N {
                let added = per_retry.map_or(0, |each: [i64; N]| each[n]) * i64::from(*retries);
                let distance = (errors[n] - constant[n] - added).unsigned_abs();
                verdict.error_max[n] = verdict.error_max[n].max(distance);
                verdict.error_count[n] += if distance == 0 { 0 } else { *count };
            }
        }
        Some(verdict)
    }

    /// The recorded distances, one line each, most frequent first, `lines` at most.
    pub fn describe(&self, lines: usize) -> String {
        let mut entries: Vec<_> = self.0.iter().collect();
        entries.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let line = |((retries, errors), count): &(&(u32, [i64; N]), &u64)| {
            format!("{count:>9} readings after {retries} retries: {errors:?}\n")
        };
        entries.iter().take(lines).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(entries: &[(u32, i64, u64)]) -> Histogram<1> {
        let mut histogram = Histogram::default();
        for &(retries, error, count) in entries {
            (0..count).for_each(|_| histogram.add(retries, [error]));
        }
        histogram
    }

    #[test]
    fn constants_are_found_and_hold() {
        let verdict = histogram(&[(0, 30, 5), (1, 51, 2), (3, 93, 1)]).judge().unwrap();
        assert_eq!((verdict.constant, verdict.per_retry), ([30], Some([21])));
        assert_eq!((verdict.error_max, verdict.error_count), ([0], [0]));
    }

    #[test]
    fn whatever_is_off_is_an_error() {
        let verdict = histogram(&[(0, 30, 5), (0, 33, 2), (1, 51, 1), (2, 70, 1)]).judge().unwrap();
        assert_eq!((verdict.error_max, verdict.error_count), ([3], [3]));
    }

    #[test]
    fn retries_alone_prove_nothing() {
        assert_eq!(histogram(&[(1, 51, 2)]).judge(), None);
    }
}
