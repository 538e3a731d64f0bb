// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A known number of events of the calling thread.

use std::hint::black_box;

use crate::error::Error;
use crate::event::Event;
use crate::session::{Counts, Reading, Session};

/// Measurements of nothing, of which the least is what a measurement itself counts.
const CALIBRATIONS: usize = 8;
/// Attempts to take one that nothing has disturbed.
const ATTEMPTS: usize = 1_000;

/// Counts these events of the calling thread from now on.
///
/// ```no_run
/// use perfctr::{Event, start};
///
/// # fn main() -> Result<(), perfctr::Error> {
/// let mut counting = start([Event::INSTRUCTIONS.user(), Event::BRANCHES.user()])?;
/// let mut sum = 0;
/// let spent = counting.measure(|| sum = (0..1000_u64).map(|n| n * n).sum())?;
/// let [instructions, branches] = spent.counts;
/// println!("{sum}: {instructions} instructions, {branches} branches");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Those of [`Session::open`] and [`Session::start`].
pub fn start<const N: usize>(events: [Event; N]) -> Result<Counting<N>, Error> {
    let mut session = Session::open()?;
    session.start(&events)?;
    Ok(Counting { session, overhead: None })
}

/// A session that counts `N` events, which [`start`] has started.
#[derive(Debug)]
pub struct Counting<const N: usize> {
    session: Session,
    /// What a measurement of nothing counts, once that is known.
    overhead: Option<[u64; N]>,
}

impl<const N: usize> Counting<N> {
    /// Reads the TSC and all counters at once.
    ///
    /// # Errors
    ///
    /// Those of [`Session::read`].
    #[inline(always)]
    pub fn read(&self) -> Result<Reading<N>, Error> {
        self.session.read()
    }

    /// Reads all counters at once, and not the TSC.
    ///
    /// # Errors
    ///
    /// Those of [`Session::counts`].
    #[inline(always)]
    pub fn counts(&self) -> Result<Counts<N>, Error> {
        self.session.counts()
    }

    /// What `body` counts, and nothing of the measurement itself.
    ///
    /// The first call measures an empty closure some times, and each call subtracts what that has
    /// counted.  Every closure is called by the same instructions, so the difference is exact for
    /// events that count retired instructions.  A closure that hands a value out stores it in a
    /// variable that it borrows, which then is counted, too.
    ///
    /// If [`retries`](Counts::retries) is not 0 then something has disturbed the second reading,
    /// and the counts include that many further attempts of it.
    ///
    /// # Errors
    ///
    /// Those of [`Session::read`].
    pub fn measure(&mut self, mut body: impl FnMut()) -> Result<Counts<N>, Error> {
        let overhead = match self.overhead {
            Some(overhead) => overhead,
            None => *self.overhead.insert(self.calibrate()?),
        };
        let mut measured = self.around(&mut body)?;
        for (count, overhead) in measured.counts.iter_mut().zip(overhead) {
            // Events that are not about retired instructions vary.
            *count = count.saturating_sub(overhead);
        }
        Ok(measured)
    }

    /// What a measurement of nothing counts.
    fn calibrate(&self) -> Result<[u64; N], Error> {
        let (mut least, mut taken) = ([u64::MAX; N], 0);
        // The first one may have the dynamic linker find functions.
        self.around(&mut || {})?;
        for _ in 0..ATTEMPTS {
            let nothing = self.around(&mut || {})?;
            if nothing.retries > 0 {
                continue;
            }
            least = std::array::from_fn(|n| least[n].min(nothing.counts[n]));
            taken += 1;
            if taken == CALIBRATIONS {
                return Ok(least);
            }
        }
        Err(Error::Disturbed)
    }

    /// The compiler must know neither the body nor the number of counters where they are used:
    /// otherwise it could make instructions of their own for each.
    fn around(&self, body: &mut dyn FnMut()) -> Result<Counts<N>, Error> {
        let (mut before, mut after) = ([0; N], [0; N]);
        let [first, last] = [&mut before[..], &mut after[..]];
        let (retries, direct) = self.session.around(black_box(body), black_box([first, last]))?;
        let before = Counts { counts: before, retries: 0, direct };
        Ok(Counts { counts: after, retries, direct } - before)
    }

    /// The session, which goes on counting.
    pub fn into_session(self) -> Session {
        self.session
    }

    /// The session, for what else there is to know of it.
    pub fn session(&self) -> &Session {
        &self.session
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_runs_once_and_its_value_is_kept() {
        let mut counting = start([]).unwrap();
        let mut calls = 0;
        for _ in 0..3 {
            counting.measure(|| calls += 1).unwrap();
        }
        assert_eq!(calls, 3);
        assert!(counting.read().unwrap().tsc > 0);
        let session = counting.into_session();
        assert!(matches!(start([]), Err(Error::AlreadyOpen)));
        drop(session);
        start([]).unwrap();
    }
}
