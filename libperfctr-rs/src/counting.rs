// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counting a number of events of the calling thread that is known when the program is compiled.

use crate::error::Error;
use crate::event::Event;
use crate::session::{Counts, Reading, Session};

/// Starts to count these events of the calling thread.
///
/// ```no_run
/// use perfctr::{Event, start};
///
/// # fn main() -> Result<(), perfctr::Error> {
/// let counting = start([Event::INSTRUCTIONS.user(), Event::BRANCHES.user()])?;
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
/// The errors of [`Session::open`] and [`Session::start`].
pub fn start<const N: usize>(events: [Event; N]) -> Result<Counting<N>, Error> {
    let mut session = Session::open()?;
    session.start(&events)?;
    Ok(Counting::from_session(session))
}

/// A session that counts `N` events, which [`start`] has started.
#[derive(Debug)]
pub struct Counting<const N: usize> {
    session: Session,
}

impl<const N: usize> Counting<N> {
    /// Makes a `Counting` of a session that has started to count these events.
    pub(crate) fn from_session(session: Session) -> Self {
        Self { session }
    }

    /// Reads the TSC and all counters; all values are of one moment.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::read`].
    #[inline(always)]
    pub fn read(&self) -> Result<Reading<N>, Error> {
        self.session.read()
    }

    /// Reads all counters without the TSC; all values are of one moment.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::counts`].
    #[inline(always)]
    pub fn counts(&self) -> Result<Counts<N>, Error> {
        self.session.counts()
    }

    /// Counts what `body` executes, without what the measurement itself executes.
    ///
    /// The first call measures an empty closure several times, and each call subtracts the count of
    /// the empty closure. The same instructions call every closure, so the difference is exact for
    /// events that count retired instructions. A closure returns a value by storing it in a
    /// variable that it borrows; this store is counted, too.
    ///
    /// If [`retries`](Counts::retries) is not 0, something has disturbed the second reading. The
    /// counts then include that many discarded attempts of the second reading.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::read`].
    pub fn measure(&self, mut body: impl FnMut()) -> Result<Counts<N>, Error> {
        let mut counts = [0; N];
        let Counts { retries, direct, .. } =
            self.session.measure([&mut body, &mut || {}], &mut counts)?;
        Ok(Counts { counts, retries, direct })
    }

    /// Returns the session, which continues to count.
    pub fn into_session(self) -> Session {
        self.session
    }

    /// Returns the session, which has functions that a `Counting` does not have.
    pub fn session(&self) -> &Session {
        &self.session
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_runs_once_and_its_value_is_kept() {
        let counting = start([]).unwrap();
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
