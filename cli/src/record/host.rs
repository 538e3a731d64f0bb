// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Samples a host until a command ends or the caller interrupts.

use std::collections::BTreeSet;
use std::str::FromStr;

use anyhow::Result;
use libc::pid_t;
use perfctr::host::Places;
use perfctr::{Error, Event};

use crate::host::Collects;
use crate::profile::Profile;
use crate::program::beside::{self, Beside};
use crate::program::{Signals, Target};
use crate::text::print_note;

/// A list of physical CPUs, like `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(Vec<u32>);

/// The most physical CPUs that can be named. CPUs behind them are sampled only together with all
/// others.
const NAMED_MAX: u32 = 64;

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (first.parse::<u32>(), last.parse::<u32>()) {
                (Ok(first), Ok(last)) if first <= last && last < NAMED_MAX => {
                    cpus.extend(first..=last);
                }
                _ => {
                    return Err(format!(
                        "`{part}` found, a CPU or a range like 0-3 below {NAMED_MAX} expected"
                    ));
                }
            }
        }
        Ok(Self(cpus.into_iter().collect()))
    }
}

/// Samples the host by this event. Returns the exit status of the command that is run meanwhile.
pub fn run(
    target: Target<'_>,
    event: Event,
    cpus: Option<&Cpus>,
    places: Places,
    collector: impl Collects,
    signals: &Signals,
) -> Result<(Profile, u8)> {
    let (command, _) = target.parts();
    let mut recording = Recording { event, cpus, places, collector, ended: None };
    let (status, _) = beside::run(command, None, signals, &mut recording)?;
    Ok((recording.finish()?, status))
}

struct Recording<'a, C> {
    event: Event,
    cpus: Option<&'a Cpus>,
    places: Places,
    collector: C,
    /// The reason why there are no more samples, if sampling has ended early.
    ended: Option<String>,
}

impl<C: Collects> Beside for Recording<'_, C> {
    fn begin(&mut self, _: Option<pid_t>) -> Result<()> {
        self.collector.begin(self.event, self.cpus.map(|cpus| &*cpus.0), self.places)
    }

    fn tick(&mut self) -> Result<()> {
        let taken = self.collector.take();
        self.goes_on(taken)
    }
}

impl<C: Collects> Recording<'_, C> {
    /// Notes the error if sampling has ended early. The samples until then are kept.
    fn goes_on(&mut self, taken: Result<(), Error>) -> Result<()> {
        match taken {
            Err(error @ Error::NotSampled(_)) => self.ended = Some(error.to_string()),
            taken => taken?,
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Profile> {
        let taken = self.collector.end();
        self.goes_on(taken)?;
        if let Some(why) = &self.ended {
            print_note(format_args!("sampling has ended early: {why}"));
        }
        let profile = self.collector.profile();
        for note in self.collector.notes() {
            print_note(note);
        }
        Ok(profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_physical_cpus_are_numbers_and_ranges() {
        let parsed = |text: &str| text.parse::<Cpus>().map(|cpus| cpus.0);
        assert_eq!(parsed("3,0-1,1"), Ok(vec![0, 1, 3]));
        assert_eq!(parsed("63"), Ok(vec![63]));
        for text in ["", "a", "2-1", "64", "0-4294967295", "1,", "-1"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
