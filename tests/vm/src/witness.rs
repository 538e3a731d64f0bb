// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A session that notices whatever changes its thread's counters.

use perfctr::{Error, Event, Provider, Reading, Session};

use crate::region::{Region, measure};
use crate::tally::equal;

const REGION: Region = Region { first: 100, second: 50 };

/// Tries to get an undisturbed reading.
const ATTEMPTS: usize = 100;

/// The calling thread counts its instructions and branches.
#[derive(Debug)]
pub struct Witness {
    session: Session,
    constant: [u64; 2],
}

impl Witness {
    /// Opens a session and finds out what two reads around a region cost.
    ///
    /// # Errors
    ///
    /// Those of the library.
    pub fn new() -> Result<Self, Error> {
        let mut session = Session::open_with(Provider::Paravirt)?;
        session.start(&[Event::INSTRUCTIONS.user(), Event::BRANCHES.user()])?;
        let mut witness = Self { session, constant: [0; 2] };
        witness.constant = witness.undisturbed()?.counts;
        Ok(witness)
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// `Ok` if the thread's counters still count, and exactly.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub fn unchanged(&self) -> Result<(), String> {
        let reading = self.undisturbed().map_err(|error| error.to_string())?;
        equal(reading.counts, self.constant)?;
        equal(reading.direct, true)
    }

    /// Measures the region without a retry, whose cost is another constant.
    fn undisturbed(&self) -> Result<Reading<2>, Error> {
        let mut store = 0;
        for _ in 0..ATTEMPTS {
            let reading = measure::<2>(&self.session, REGION, &mut store)?;
            if reading.retries == 0 {
                let [instructions, branches] = reading.counts;
                let counts = [
                    instructions.wrapping_sub(REGION.instructions()),
                    branches.wrapping_sub(REGION.branches()),
                ];
                return Ok(Reading { counts, ..reading });
            }
        }
        Err(Error::Disturbed)
    }
}
