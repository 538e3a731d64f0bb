// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Measures how many of its own instructions a measurement counts.

use std::cell::Cell;
use std::hint::black_box;

use shared_abi::limits::MAX_COUNTERS;

use crate::error::Error;

/// Number of measurements of an empty closure. The least of their counts is the overhead of a
/// measurement.
const CALIBRATIONS: usize = 8;
/// Number of attempts to make one of these measurements without a disturbance.
const ATTEMPTS: usize = 1_000;

/// Reads the counters into the first list, calls the closure, and reads again into the second list.
/// Returns the second reading's retries, and whether both readings were made without a system call.
pub(crate) type Around<'a> =
    &'a dyn Fn(&mut dyn FnMut(), [&mut [u64]; 2]) -> Result<(u32, bool), Error>;

/// The overhead of a session's measurements, as soon as it is known.
#[derive(Debug, Default)]
pub(crate) struct Overhead(Cell<Option<Known>>);

#[derive(Clone, Copy, Debug)]
struct Known {
    /// Number of counters that these measurements read.
    counters: usize,
    /// The counts of an empty closure's measurement.
    counts: [u64; MAX_COUNTERS],
}

impl Overhead {
    /// Discards the overhead, since the session counts other events from now on.
    pub(crate) fn forget(&self) {
        self.0.set(None);
    }

    /// Counts what `body` executes, and subtracts the count of `nothing`. Returns retries, and
    /// whether the measurement was made without a system call.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyCounters`], [`Error::Disturbed`], or the errors of `around`.
    pub(crate) fn measure(
        &self,
        around: Around<'_>,
        [body, nothing]: [&mut dyn FnMut(); 2],
        counts: &mut [u64],
    ) -> Result<(u32, bool), Error> {
        let (asked, available) = (counts.len(), MAX_COUNTERS);
        if asked > available {
            return Err(Error::TooManyCounters { asked, available });
        }
        let known = match self.0.get() {
            Some(known) if known.counters == asked => known,
            _ => Known { counters: asked, counts: calibrate(around, nothing, asked)? },
        };
        self.0.set(Some(known));
        let measured = measure(around, body, counts)?;
        for (count, overhead) in counts.iter_mut().zip(known.counts) {
            // Counts of other events than retired instructions vary, and may be below the overhead.
            *count = count.saturating_sub(overhead);
        }
        Ok(measured)
    }
}

/// Measures an empty closure.
fn calibrate(
    around: Around<'_>,
    nothing: &mut dyn FnMut(),
    counters: usize,
) -> Result<[u64; MAX_COUNTERS], Error> {
    let (mut least, mut taken) = ([u64::MAX; MAX_COUNTERS], 0);
    let mut counts = [0; MAX_COUNTERS];
    let counts = counts.get_mut(..counters).unwrap_or_default();
    // In the first measurement the dynamic linker may have to resolve functions.
    measure(around, nothing, counts)?;
    for _ in 0..ATTEMPTS {
        let (retries, _) = measure(around, nothing, counts)?;
        if retries > 0 {
            continue;
        }
        for (least, &count) in least.iter_mut().zip(counts.iter()) {
            *least = count.min(*least);
        }
        taken += 1;
        if taken == CALIBRATIONS {
            return Ok(least);
        }
    }
    Err(Error::Disturbed)
}

/// Measures `body` without subtracting the overhead.
///
/// The compiler must know neither the body nor the number of counters here. Otherwise it could
/// generate different instructions for each.
fn measure(
    around: Around<'_>,
    body: &mut dyn FnMut(),
    counts: &mut [u64],
) -> Result<(u32, bool), Error> {
    let mut before = [0; MAX_COUNTERS];
    let before = before.get_mut(..counts.len()).unwrap_or_default();
    let lists = [&mut before[..], &mut counts[..]];
    let measured = around(black_box(body), black_box(lists))?;
    for (count, before) in counts.iter_mut().zip(before) {
        *count = count.wrapping_sub(*before);
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a measurement in which each reading executes 10 instructions and 3 branches, and
    /// each call of a body executes one instruction and one branch.
    fn counting(clock: &Cell<u64>) -> impl Fn(&mut dyn FnMut(), [&mut [u64]; 2]) -> Answer {
        move |body, lists| {
            for (n, list) in lists.into_iter().enumerate() {
                let now = clock.get();
                let values = [now * 10, now * 3];
                list.copy_from_slice(&values[..list.len()]);
                clock.set(now + 1);
                if n == 0 {
                    body();
                }
            }
            Ok((0, true))
        }
    }

    type Answer = Result<(u32, bool), Error>;

    #[test]
    fn what_an_empty_closure_counts_is_left_out() {
        let (clock, overhead) = (Cell::new(7), Overhead::default());
        let around = counting(&clock);
        let mut counts = [u64::MAX; 2];
        overhead.measure(&around, [&mut || (), &mut || ()], &mut counts).unwrap();
        assert_eq!(counts, [0, 0]);
        let mut later = || clock.set(clock.get() + 5);
        overhead.measure(&around, [&mut later, &mut || ()], &mut counts).unwrap();
        assert_eq!(counts, [50, 15]);
        // Measurements with another number of counters have another overhead, which is measured
        // anew.
        let calls = clock.get();
        overhead.measure(&around, [&mut || (), &mut || ()], &mut counts[..1]).unwrap();
        assert_eq!((counts[0], clock.get() - calls), (0, 2 * (2 + CALIBRATIONS as u64)));
        let calls = clock.get();
        overhead.measure(&around, [&mut || (), &mut || ()], &mut counts[..1]).unwrap();
        assert_eq!(clock.get() - calls, 2);
        overhead.forget();
        overhead.measure(&around, [&mut || (), &mut || ()], &mut counts[..1]).unwrap();
        assert!(clock.get() - calls > 4);
    }

    #[test]
    fn what_counts_less_than_the_overhead_counts_nothing() {
        let (clock, overhead) = (Cell::new(0), Overhead::default());
        // Each measurement of an empty closure has 8 cycles, until the CPU runs faster.
        let cycles = Cell::new(8);
        let around = |_: &mut dyn FnMut(), [before, after]: [&mut [u64]; 2]| {
            before.fill(clock.get());
            clock.set(clock.get() + cycles.get());
            after.fill(clock.get());
            Ok((0, true))
        };
        let mut counts = [u64::MAX];
        overhead.measure(&around, [&mut || (), &mut || ()], &mut counts).unwrap();
        assert_eq!(counts, [0]);
        cycles.set(5);
        overhead.measure(&around, [&mut || (), &mut || ()], &mut counts).unwrap();
        assert_eq!(counts, [0]);
    }

    #[test]
    fn a_calibration_that_is_always_disturbed_ends() {
        let tried = Cell::new(0);
        let around = |_: &mut dyn FnMut(), _: [&mut [u64]; 2]| {
            tried.set(tried.get() + 1);
            Ok((1, true))
        };
        let error =
            Overhead::default().measure(&around, [&mut || (), &mut || ()], &mut [0]).unwrap_err();
        assert!(matches!(error, Error::Disturbed) && tried.get() > ATTEMPTS, "{error}");
        let many = &mut [0; MAX_COUNTERS + 1];
        let error =
            Overhead::default().measure(&around, [&mut || (), &mut || ()], many).unwrap_err();
        assert!(matches!(error, Error::TooManyCounters { asked: 19, available: 18 }), "{error}");
    }
}
