// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The providers of counters, behind one type.

pub(crate) mod known;
pub(crate) mod native;
pub(crate) mod paravirt;
pub(crate) mod place;
pub(crate) mod refusal;
mod tsc;
pub(crate) mod types;

use self::native::Native;
use self::paravirt::Paravirt;
use self::refusal::Refusal;
use self::tsc::TscOnly;
use self::types::{Description, Notification, Provider, Taken};
use crate::error::Error;
use crate::event::Event;

/// A thread's counters at one of the providers.
#[derive(Debug)]
// With `repr(u8)` the type has a tag of its own, and each read finds out the provider by two
// instructions. Otherwise the compiler encodes the provider in unused values of a field, and each
// read takes six instructions for that.
#[repr(u8)]
pub(crate) enum Backend {
    Paravirt(Paravirt),
    Native(Native),
    Tsc(TscOnly),
}

impl Backend {
    /// Opens the first provider that has counters. Returns it, and the answers of those before it.
    pub(crate) fn open() -> Result<(Self, Vec<Refusal>), Error> {
        if !cfg!(target_arch = "x86_64") {
            // No other provider exists on this architecture.
            return Ok((Self::Native(Native::open()?), Vec::new()));
        }
        let mut refusals = Vec::new();
        for provider in [Provider::Paravirt, Provider::Native] {
            match Self::open_with(provider) {
                Err(Error::Refused(refusal)) => refusals.push(refusal),
                result => return result.map(|backend| (backend, refusals)),
            }
        }
        Ok((Self::Tsc(TscOnly::open()), refusals))
    }

    pub(crate) fn open_with(provider: Provider) -> Result<Self, Error> {
        if !cfg!(target_arch = "x86_64") && provider != Provider::Native {
            return Err(Error::Refused(Refusal::not_x86(provider)));
        }
        Ok(match provider {
            Provider::Paravirt => Self::Paravirt(Paravirt::open()?),
            Provider::Native => Self::Native(Native::open()?),
            Provider::Tsc => Self::Tsc(TscOnly::open()),
        })
    }

    pub(crate) fn description(&self) -> &Description {
        match self {
            Self::Paravirt(paravirt) => paravirt.description(),
            Self::Native(native) => native.description(),
            Self::Tsc(tsc) => tsc.description(),
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
        match (self, sampling) {
            (Self::Paravirt(paravirt), _) => paravirt.start(events, notification),
            (Self::Native(_) | Self::Tsc(_), Some(&event)) => {
                Err(Error::unavailable(event, "this provider does not sample"))
            }
            (Self::Native(native), None) => native.start(events),
            (Self::Tsc(tsc), None) => tsc.start(events),
        }
    }

    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        match self {
            Self::Paravirt(paravirt) => paravirt.stop(),
            Self::Native(native) => native.stop(),
            Self::Tsc(_) => Ok(()),
        }
    }

    pub(crate) fn resume(&mut self) -> Result<(), Error> {
        match self {
            Self::Paravirt(paravirt) => paravirt.resume(),
            Self::Native(native) => native.resume(),
            Self::Tsc(_) => Ok(()),
        }
    }

    #[inline(always)]
    pub(crate) fn read(&self, counts: &mut [u64]) -> Result<Taken, Error> {
        match self {
            Self::Paravirt(paravirt) => paravirt.read(counts),
            Self::Native(native) => native.read(counts),
            Self::Tsc(tsc) => tsc.read(counts),
        }
    }

    /// Reads the counters like [`read`](Self::read), without the TSC. The TSC of the result has no
    /// meaning.
    #[inline(always)]
    pub(crate) fn counts(&self, counts: &mut [u64]) -> Result<Taken, Error> {
        match self {
            Self::Paravirt(paravirt) => paravirt.counts(counts),
            Self::Native(native) => native.read(counts),
            Self::Tsc(tsc) => tsc.read(counts),
        }
    }

    pub(crate) fn paravirt(&self) -> Option<&Paravirt> {
        match self {
            Self::Paravirt(paravirt) => Some(paravirt),
            Self::Native(_) | Self::Tsc(_) => None,
        }
    }
}
