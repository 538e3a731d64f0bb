// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts nested pieces of a thread's work, such as spans and regions.
//!
//! Each call of [`Nested::aside`] reads the counters when it begins and when it ends. Everything
//! that the thread executes between two calls is work, and is counted. Everything that it executes
//! within a call is bookkeeping, and is left out. Most programs use [`regions`](crate::regions) or
//! the crate `perfctr-tracing`, which use this module.

use shared_abi::limits::MAX_COUNTERS;

use crate::error::Error;
use crate::session::Session;

/// Number of times that an empty piece is measured. The least of their counts is the cost.
const CALIBRATIONS: usize = 8;
/// Number of attempts to measure empty pieces without a disturbance.
const ATTEMPTS: usize = 1_000;

/// A source of the calling thread's counts.
pub trait Source {
    /// Reads the first counters, as many as `counts` has room for. All values are of one moment.
    /// Returns the number of attempts that were disturbed and discarded before this one.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::read`].
    fn counts_into(&self, counts: &mut [u64]) -> Result<u32, Error>;
}

impl Source for Session {
    #[inline(always)]
    fn counts_into(&self, counts: &mut [u64]) -> Result<u32, Error> {
        self.counts_alone(counts)
    }
}

impl<S: Source + ?Sized> Source for Box<S> {
    #[inline(always)]
    fn counts_into(&self, counts: &mut [u64]) -> Result<u32, Error> {
        (**self).counts_into(counts)
    }
}

/// A number of counts, and how often their readings were disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Amount {
    /// The counts, in the order of the events. Those after the last event are 0.
    pub counts: [u64; MAX_COUNTERS],
    /// Number of attempts to read that were disturbed. Each adds a constant to the counts.
    pub retries: u64,
}

impl Amount {
    /// The amount that is 0 everywhere.
    pub const ZERO: Self = Self { counts: [0; MAX_COUNTERS], retries: 0 };

    /// Adds another amount to this one.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum = sum.wrapping_add(count);
        }
        self.retries = self.retries.wrapping_add(other.retries);
    }

    /// Returns the difference between this amount and an earlier one.
    fn since(&self, earlier: &Self) -> Self {
        Self {
            counts: std::array::from_fn(|n| self.counts[n].wrapping_sub(earlier.counts[n])),
            retries: self.retries.wrapping_sub(earlier.retries),
        }
    }
}

/// The counts of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spent {
    /// Everything from its start to its end.
    pub total: Amount,
    /// The part that was not within another piece that was started later.
    pub own: Amount,
    /// Whether another piece with the same key is still open, so that its total will contain this
    /// one.
    pub is_recursive: bool,
}

/// A piece that is not stopped yet.
#[derive(Debug)]
struct Open<K> {
    key: K,
    /// The thread's counts when it started the piece.
    began: Amount,
    own: Amount,
}

/// The pieces that a thread has started and not stopped.
#[derive(Debug)]
pub struct Pieces<K> {
    open: Vec<Open<K>>,
    /// The thread's counts within pieces.
    sum: Amount,
    /// The counters at the end of the last call of [`Nested::aside`].
    left: [u64; MAX_COUNTERS],
    /// The count between two calls of [`Nested::aside`] if the thread does nothing between them.
    cost: [u64; MAX_COUNTERS],
    /// The count since the last call of [`Nested::aside`], with the cost.
    gap: Amount,
}

impl<K: PartialEq> Pieces<K> {
    const fn new() -> Self {
        let (left, cost, gap) = ([0; MAX_COUNTERS], [0; MAX_COUNTERS], Amount::ZERO);
        Self { open: Vec::new(), sum: Amount::ZERO, left, cost, gap }
    }

    /// Adds the count since the last call of [`Nested::aside`] to the piece that was started last.
    fn account(&mut self, entered: &[u64; MAX_COUNTERS], retries: u32) {
        let counts = std::array::from_fn(|n| entered[n].wrapping_sub(self.left[n]));
        self.gap = Amount { counts, retries: retries.into() };
        let Some(last) = self.open.last_mut() else { return };
        let mut work = self.gap;
        for (count, cost) in work.counts.iter_mut().zip(self.cost) {
            // Counts of other events than retired instructions vary, and may be below the cost.
            *count = count.saturating_sub(cost);
        }
        last.own.add(&work);
        self.sum.add(&work);
    }

    /// Starts a piece within the pieces that are open.
    pub fn start(&mut self, key: K) {
        self.open.push(Open { key, began: self.sum, own: Amount::ZERO });
    }

    /// Stops the piece with this key that was started last. Returns what it has counted, or `None`
    /// if there is none. It need not be the last of all pieces: pieces may overlap.
    pub fn stop(&mut self, key: &K) -> Option<Spent> {
        let place = self.open.iter().rposition(|piece| piece.key == *key)?;
        let Open { began, own, .. } = self.open.remove(place);
        let is_recursive = self.open.iter().any(|piece| piece.key == *key);
        Some(Spent { total: self.sum.since(&began), own, is_recursive })
    }

    /// Returns the keys of the open pieces, in the order in which they were started.
    pub fn open(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.open.iter().map(|piece| &piece.key)
    }
}

/// Counts the pieces of the calling thread's work.
#[derive(Debug)]
pub struct Nested<K, S = Session> {
    source: S,
    events: usize,
    pieces: Pieces<K>,
}

impl<K: PartialEq, S: Source> Nested<K, S> {
    /// Counts by a source that counts this many events of the calling thread.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyCounters`].
    pub fn new(source: S, events: usize) -> Result<Self, Error> {
        let (asked, available) = (events, MAX_COUNTERS);
        if asked > available {
            return Err(Error::TooManyCounters { asked, available });
        }
        Ok(Self { source, events, pieces: Pieces::new() })
    }

    /// Reads the counters, calls `work`, and reads again. The count between the two readings
    /// belongs to no piece. Pieces are started and stopped in `work`.
    ///
    /// A few instructions of this function and of its caller lie outside of the two readings.
    /// [`Calibration`] measures them only once, so they have to be the same in every call: one
    /// function of a program should make all calls.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::read`]. Pieces that are open then end without being counted.
    #[inline(never)]
    pub fn aside(&mut self, work: &mut dyn FnMut(&mut Pieces<K>)) -> Result<(), Error> {
        let Self { source, events, pieces } = self;
        let mut entered = [0; MAX_COUNTERS];
        let first = source.counts_into(entered.get_mut(..*events).unwrap_or_default());
        let retries = first.inspect_err(|_| pieces.open.clear())?;
        pieces.account(&entered, retries);
        work(pieces);
        let last = source.counts_into(pieces.left.get_mut(..*events).unwrap_or_default());
        last.map(drop).inspect_err(|_| pieces.open.clear())
    }
}

/// Measures the count between two calls of [`Nested::aside`] if the thread does nothing between
/// them.
#[derive(Debug)]
pub struct Calibration {
    least: [u64; MAX_COUNTERS],
    /// Number of empty pieces that are still needed.
    left: usize,
    /// Number of empty pieces after which the calibration fails.
    attempts: usize,
}

impl Default for Calibration {
    fn default() -> Self {
        // In the first piece the dynamic linker may have to resolve functions.
        Self { least: [u64::MAX; MAX_COUNTERS], left: CALIBRATIONS + 1, attempts: ATTEMPTS }
    }
}

impl Calibration {
    /// Calls `empty` until it has started and stopped enough pieces without work, and
    /// [noted](Self::note) each.
    ///
    /// # Errors
    ///
    /// [`Error::Disturbed`] if hardly any of them was undisturbed, or the errors of `empty`.
    pub fn run(mut empty: impl FnMut() -> Result<Progress, Error>) -> Result<(), Error> {
        loop {
            match empty()? {
                Progress::More => {}
                Progress::Done => return Ok(()),
                Progress::Disturbed => return Err(Error::Disturbed),
            }
        }
    }

    /// Notes an empty piece. The caller calls it within [`Nested::aside`], in place of stopping the
    /// piece. Disturbed pieces are ignored. When enough pieces are noted, their cost is subtracted
    /// from every piece.
    pub fn note<K>(&mut self, pieces: &mut Pieces<K>) -> Progress {
        let is_first = self.left > CALIBRATIONS;
        if is_first || pieces.gap.retries == 0 {
            self.left = self.left.saturating_sub(1);
        }
        if !is_first && pieces.gap.retries == 0 {
            for (least, count) in self.least.iter_mut().zip(pieces.gap.counts) {
                *least = count.min(*least);
            }
        }
        self.attempts = self.attempts.saturating_sub(1);
        match (self.left, self.attempts) {
            (0, _) => {
                pieces.cost = self.least;
                Progress::Done
            }
            (_, 0) => Progress::Disturbed,
            _ => Progress::More,
        }
    }
}

/// The progress of a [`Calibration`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is nothing else")]
pub enum Progress {
    /// Further empty pieces are needed.
    More,
    /// The cost is known.
    Done,
    /// Something has disturbed nearly all empty pieces.
    Disturbed,
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// A source of counts, of which each reading executes 10 instructions and 3 branches.
    #[derive(Clone, Default)]
    struct Fake {
        executed: Rc<Cell<u64>>,
        retries: Rc<Cell<u32>>,
    }

    impl Fake {
        fn work(&self, rounds: u64) {
            self.executed.set(self.executed.get() + rounds);
        }
    }

    impl Source for Fake {
        fn counts_into(&self, counts: &mut [u64]) -> Result<u32, Error> {
            if self.retries.get() == u32::MAX {
                return Err(Error::Disturbed);
            }
            self.work(1);
            for (count, factor) in counts.iter_mut().zip([10, 3]) {
                *count = self.executed.get() * factor;
            }
            Ok(self.retries.get())
        }
    }

    fn calibrate(nested: &mut Nested<&'static str, Fake>) -> Result<(), Error> {
        let (mut calibration, mut progress) = (Calibration::default(), Progress::More);
        Calibration::run(|| {
            nested.aside(&mut |_| ())?;
            nested.aside(&mut |pieces| progress = calibration.note(pieces))?;
            Ok(progress)
        })
    }

    fn calibrated() -> (Fake, Nested<&'static str, Fake>) {
        let fake = Fake::default();
        let mut nested = Nested::new(fake.clone(), 2).unwrap();
        calibrate(&mut nested).unwrap();
        (fake, nested)
    }

    /// Stops a piece, and returns its total and its own counts of the first event.
    fn stop(nested: &mut Nested<&'static str, Fake>, key: &'static str) -> (u64, u64, bool) {
        let mut spent = None;
        nested.aside(&mut |pieces| spent = pieces.stop(&key)).unwrap();
        let Spent { total, own, is_recursive } = spent.unwrap();
        assert_eq!(
            (total.counts[1], own.counts[1]),
            (total.counts[0] * 3 / 10, own.counts[0] * 3 / 10)
        );
        (total.counts[0], own.counts[0], is_recursive)
    }

    fn start(nested: &mut Nested<&'static str, Fake>, fake: &Fake, key: &'static str) {
        nested
            .aside(&mut |pieces| {
                // The instructions of the bookkeeping belong to no piece.
                fake.work(1_000);
                pieces.start(key);
            })
            .unwrap();
    }

    #[test]
    fn the_cost_of_a_piece_is_that_of_the_cheapest_empty_one() {
        let fake = Fake::default();
        let mut nested = Nested::new(fake.clone(), 2).unwrap();
        let (mut calibration, mut pieces) = (Calibration::default(), 0);
        Calibration::run(|| {
            let mut progress = Progress::More;
            nested.aside(&mut |_| ())?;
            pieces += 1;
            // The first one is ignored. Something else executes in all others but the third.
            fake.work(if pieces == 3 { 0 } else { 5 + pieces });
            nested.aside(&mut |pieces| progress = calibration.note(pieces))?;
            Ok(progress)
        })
        .unwrap();
        assert!(pieces > 4, "the cheapest is neither the first nor the last");
        start(&mut nested, &fake, "some");
        fake.work(7);
        assert_eq!(stop(&mut nested, "some"), (70, 70, false));
    }

    #[test]
    fn pieces_have_their_own_counts_and_those_within_them() {
        let (fake, mut nested) = calibrated();
        start(&mut nested, &fake, "outer");
        fake.work(5);
        for _ in 0..2 {
            start(&mut nested, &fake, "inner");
            fake.work(7);
            assert_eq!(stop(&mut nested, "inner"), (70, 70, false));
        }
        fake.work(1);
        assert_eq!(stop(&mut nested, "outer"), (200, 60, false));
        fake.work(100);
        start(&mut nested, &fake, "empty");
        assert_eq!(stop(&mut nested, "empty"), (0, 0, false));
    }

    #[test]
    fn a_recursive_piece_is_within_one_of_its_own_name() {
        let (fake, mut nested) = calibrated();
        for _ in 0..3 {
            start(&mut nested, &fake, "again");
            fake.work(2);
        }
        assert_eq!(stop(&mut nested, "again"), (20, 20, true));
        assert_eq!(stop(&mut nested, "again"), (40, 20, true));
        assert_eq!(stop(&mut nested, "again"), (60, 20, false));
    }

    #[test]
    fn pieces_that_overlap_are_counted_from_their_start_to_their_end() {
        let (fake, mut nested) = calibrated();
        start(&mut nested, &fake, "one");
        fake.work(1);
        start(&mut nested, &fake, "other");
        fake.work(2);
        assert_eq!(stop(&mut nested, "one"), (30, 10, false));
        fake.work(4);
        assert_eq!(stop(&mut nested, "other"), (60, 60, false));
        let mut none = true;
        nested.aside(&mut |pieces| none = pieces.stop(&"one").is_none()).unwrap();
        assert!(none);
    }

    #[test]
    fn a_disturbed_reading_is_noted_and_does_not_calibrate() {
        let (fake, mut nested) = calibrated();
        fake.retries.set(2);
        assert!(matches!(calibrate(&mut nested), Err(Error::Disturbed)));
        start(&mut nested, &fake, "piece");
        let mut retries = (0, 0);
        nested
            .aside(&mut |pieces| {
                let spent = pieces.stop(&"piece").unwrap();
                retries = (spent.total.retries, spent.own.retries);
            })
            .unwrap();
        assert_eq!(retries, (2, 2));
    }

    #[test]
    fn after_an_error_no_piece_is_open() {
        let (fake, mut nested) = calibrated();
        for fails_first in [true, false] {
            start(&mut nested, &fake, "piece");
            fake.retries.set(if fails_first { u32::MAX } else { 0 });
            let failed = nested.aside(&mut |_| fake.retries.set(u32::MAX));
            assert!(matches!(failed, Err(Error::Disturbed)));
            fake.retries.set(0);
            let mut open = usize::MAX;
            nested.aside(&mut |pieces| open = pieces.open().count()).unwrap();
            assert_eq!(open, 0, "the first reading has failed: {fails_first}");
        }
        let many = Nested::<(), _>::new(fake, MAX_COUNTERS + 1).map(drop);
        assert!(matches!(many, Err(Error::TooManyCounters { asked: 19, available: 18 })));
    }
}
