// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The providers of counters, behind one type.

pub(crate) mod known;
pub(crate) mod native;
pub(crate) mod paravirt;
pub(crate) mod place;
pub(crate) mod refusal;
mod tsc;
pub(crate) mod types;

use shared_abi::read::{ReadError, Snapshot};

use self::native::Native;
use self::paravirt::Paravirt;
use self::refusal::Refusal;
use self::tsc::TscOnly;
use self::types::{Description, Notification, Provider, Taken};
use crate::error::Error;
use crate::event::Event;
use crate::map::Pages;

/// A thread's counters at one of the providers, and the pages from which they are read.
///
/// Providers without pages have [none](Pages::none), so that a direct read need not find out who
/// the provider is.
#[derive(Debug)]
pub(crate) struct Backend {
    counters: Counters,
    pages: Pages,
}

/// A thread's counters at one of the providers.
#[derive(Debug)]
enum Counters {
    Paravirt(Paravirt),
    Native(Native),
    Tsc(TscOnly),
}

impl Backend {
    /// Opens the first provider that has counters. Returns it, and the answers of those before it.
    pub(crate) fn open() -> Result<(Self, Vec<Refusal>), Error> {
        if !cfg!(target_arch = "x86_64") {
            // No other provider exists on this architecture.
            return Ok((Self::native()?, Vec::new()));
        }
        let mut refusals = Vec::new();
        for provider in [Provider::Paravirt, Provider::Native] {
            match Self::open_with(provider) {
                Err(Error::Refused(refusal)) => refusals.push(refusal),
                result => return result.map(|backend| (backend, refusals)),
            }
        }
        Ok((Self::tsc(), refusals))
    }

    pub(crate) fn open_with(provider: Provider) -> Result<Self, Error> {
        if !cfg!(target_arch = "x86_64") && provider != Provider::Native {
            return Err(Error::Refused(Refusal::not_x86(provider)));
        }
        match provider {
            Provider::Paravirt => Self::paravirt_with_pages(),
            Provider::Native => Self::native(),
            Provider::Tsc => Ok(Self::tsc()),
        }
    }

    fn paravirt_with_pages() -> Result<Self, Error> {
        let (paravirt, pages) = Paravirt::open()?;
        Ok(Self { counters: Counters::Paravirt(paravirt), pages })
    }

    fn native() -> Result<Self, Error> {
        Ok(Self { counters: Counters::Native(Native::open()?), pages: Pages::none() })
    }

    fn tsc() -> Self {
        Self { counters: Counters::Tsc(TscOnly::open()), pages: Pages::none() }
    }

    pub(crate) fn description(&self) -> &Description {
        match &self.counters {
            Counters::Paravirt(paravirt) => paravirt.description(),
            Counters::Native(native) => native.description(),
            Counters::Tsc(tsc) => tsc.description(),
        }
    }

    /// Starts to count `events` from 0. `notification` says how the thread learns of the overflows
    /// of those that sample.
    pub(crate) fn start(
        &mut self,
        events: &[Event],
        notification: Notification,
    ) -> Result<(), Error> {
        known::check(events)?;
        known::check_counters(events)?;
        let sampling = events.iter().find(|event| event.samples());
        match (&mut self.counters, sampling) {
            (Counters::Paravirt(paravirt), _) => paravirt.start(events, notification),
            (Counters::Native(_) | Counters::Tsc(_), Some(&event)) => {
                Err(Error::unavailable(event, "this provider does not sample"))
            }
            (Counters::Native(native), None) => native.start(events),
            (Counters::Tsc(tsc), None) => tsc.start(events),
        }
    }

    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        match &mut self.counters {
            Counters::Paravirt(paravirt) => paravirt.stop(),
            Counters::Native(native) => native.stop(),
            Counters::Tsc(_) => Ok(()),
        }
    }

    pub(crate) fn resume(&mut self) -> Result<(), Error> {
        match &mut self.counters {
            Counters::Paravirt(paravirt) => paravirt.resume(),
            Counters::Native(native) => native.resume(),
            Counters::Tsc(_) => Ok(()),
        }
    }

    #[inline(always)]
    pub(crate) fn read(&self, counts: &mut [u64]) -> Result<Taken, Error> {
        match self.pages.reader() {
            Some(reader) => self.taken(reader.read(counts), counts),
            None => self.read_without_pages(counts),
        }
    }

    /// Reads the counters like [`read`](Self::read), without the TSC. The TSC of the result has no
    /// meaning.
    #[inline(always)]
    pub(crate) fn counts(&self, counts: &mut [u64]) -> Result<Taken, Error> {
        match self.pages.reader() {
            Some(reader) => self.taken(reader.counts(counts), counts),
            None => self.read_without_pages(counts),
        }
    }

    #[inline(always)]
    fn taken(
        &self,
        snapshot: Result<Snapshot, ReadError>,
        counts: &mut [u64],
    ) -> Result<Taken, Error> {
        match snapshot {
            Ok(Snapshot { tsc, retries }) => Ok(Taken { tsc, retries, direct: true }),
            Err(error) => self.read_otherwise(error, counts),
        }
    }

    /// Reads counters of a provider that has no pages, or tells a forked child that it has none.
    #[inline(always)]
    fn read_without_pages(&self, counts: &mut [u64]) -> Result<Taken, Error> {
        match &self.counters {
            Counters::Native(native) => native.read(counts),
            _ => self.read_otherwise(ReadError::NotDirect, counts),
        }
    }

    /// Reads counters that cannot be read directly from pages.
    #[cold]
    #[inline(never)]
    fn read_otherwise(&self, error: ReadError, counts: &mut [u64]) -> Result<Taken, Error> {
        match &self.counters {
            Counters::Paravirt(paravirt) => paravirt.read_otherwise(error, &self.pages, counts),
            Counters::Native(native) => native.read(counts),
            Counters::Tsc(tsc) => tsc.read(counts),
        }
    }

    pub(crate) fn paravirt(&self) -> Option<&Paravirt> {
        match &self.counters {
            Counters::Paravirt(paravirt) => Some(paravirt),
            Counters::Native(_) | Counters::Tsc(_) => None,
        }
    }

    /// Returns the pages, which only [`Provider::Paravirt`] has.
    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }
}
