// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The provider of the time-stamp counter alone, for machines on which there are no counters.

use shared_abi::read::Counters;

use crate::error::Error;
use crate::event::Event;
use crate::rdpmc::Hardware;

use super::types::{Description, Provider, Taken, cpu_signature};

/// A provider that reads the TSC itself.
#[derive(Debug)]
pub(crate) struct TscOnly {
    description: Description,
    start: u64,
}

impl TscOnly {
    pub(crate) fn open() -> Self {
        let description = Description {
            provider: Provider::Tsc,
            caps: None,
            vcpus: 0,
            cpu_signature: cpu_signature(),
            tsc_khz: 0,
        };
        Self { description, start: 0 }
    }

    pub(crate) fn description(&self) -> &Description {
        &self.description
    }

    pub(crate) fn start(&mut self, events: &[Event]) -> Result<(), Error> {
        if let Some(&event) = events.first() {
            return Err(Error::unavailable(event, "nobody provides counters"));
        }
        self.start = Hardware.clock();
        Ok(())
    }

    #[inline]
    pub(crate) fn read(&self, counts: &[u64]) -> Result<Taken, Error> {
        if !counts.is_empty() {
            return Err(Error::TooManyCounters { asked: counts.len(), available: 0 });
        }
        Ok(Taken { tsc: Hardware.clock().wrapping_sub(self.start), retries: 0, direct: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_refused_by_name() {
        let mut tsc = TscOnly::open();
        let error = tsc.start(&[Event::BRANCHES.user()]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "event branches:u is not available: nobody provides counters"
        );
        tsc.start(&[]).unwrap();
        assert!(tsc.read(&[0]).is_err());
    }

    #[test]
    fn a_reading_is_the_time_since_the_start() {
        let mut tsc = TscOnly::open();
        for _ in 0..2 {
            let earlier = Hardware.clock();
            tsc.start(&[]).unwrap();
            let [first, second] = [(); 2].map(|()| tsc.read(&[]).unwrap().tsc);
            let later = Hardware.clock();
            assert!(first < second && second < later - earlier, "{first}, {second}");
        }
    }
}
