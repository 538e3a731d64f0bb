// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A session that notices whatever changes its thread's counters.

use perfctr::{Event, Provider, Session};

use crate::region::{self, Region, measure_undisturbed};
use crate::tally::equal;

const REGION: Region = Region { first: 100, second: 50 };

/// A session that counts the calling thread's instructions and branches.
#[derive(Debug)]
pub struct Witness {
    session: Session,
    expected: [u64; 2],
}

impl Witness {
    /// Opens a session.
    ///
    /// # Errors
    ///
    /// Those of the library and of [`region::overhead`].
    pub fn new() -> anyhow::Result<Self> {
        let expected = REGION.executed().plus(region::overhead()?.once);
        let mut session = Session::open_with(Provider::Paravirt)?;
        session.start(&[Event::INSTRUCTIONS.user(), Event::BRANCHES.user()])?;
        Ok(Self { session, expected: [expected.instructions, expected.branches] })
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns `Ok` if the thread's counters still count, and exactly.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn unchanged(&self) -> Result<(), String> {
        let reading = measure_undisturbed::<2>(&self.session, REGION, &mut 0);
        let reading = reading.map_err(|error| error.to_string())?;
        equal(reading.counts, self.expected)?;
        equal(reading.direct, true)
    }

    /// Does the same as [`unchanged`](Self::unchanged), with another type of error.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn exact(&self) -> anyhow::Result<()> {
        self.unchanged().map_err(anyhow::Error::msg)
    }
}
