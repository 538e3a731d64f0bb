// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The claim of a session, of which a thread has at most one at a time.

use std::cell::Cell;

use crate::error::Error;
use crate::sys::Generation;

thread_local! {
    /// The process in which this thread has a session. A forked child inherits the word, and may
    /// open a session of its own beside the one that it inherits and cannot use.
    static CLAIMED: Cell<Option<Generation>> = const { Cell::new(None) };
}

/// The claim that the calling thread's session holds as long as it lives.
#[derive(Debug)]
pub(crate) struct Claim(Generation);

impl Claim {
    /// Takes the calling thread's claim.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyOpen`].
    pub(crate) fn take() -> Result<Self, Error> {
        Generation::watch().map_err(Error::kernel("watch for forks"))?;
        let now = Generation::current();
        if CLAIMED.get() == Some(now) {
            return Err(Error::AlreadyOpen);
        }
        CLAIMED.set(Some(now));
        Ok(Self(now))
    }

    /// Returns a claim that another process has taken, for tests.
    #[cfg(test)]
    pub(crate) fn of_child() -> Self {
        Self(Generation::of_child())
    }

    /// Returns whether this process was forked from the one that has taken the claim.
    #[inline(always)]
    pub(crate) fn forked(&self) -> bool {
        self.0 != Generation::current()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if CLAIMED.get() == Some(self.0) {
            CLAIMED.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_of_another_process_frees_nothing() {
        let own = Claim::take().unwrap();
        for _ in 0..2 {
            drop(Claim::of_child());
            assert!(matches!(Claim::take(), Err(Error::AlreadyOpen)));
        }
        drop(own);
        assert!(Claim::take().is_ok());
    }

    #[test]
    fn a_forked_child_may_have_a_session_beside_that_of_its_parent() {
        // The child inherits its parent's claim, but is of another generation.
        CLAIMED.set(Some(Generation::of_child()));
        let own = Claim::take();
        assert!(own.is_ok(), "{own:?} in {:?}", Generation::current());
        assert!(matches!(Claim::take(), Err(Error::AlreadyOpen)), "{own:?} is its own");
        drop(own);
        assert_eq!(CLAIMED.get(), None);
    }
}
