// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements `perfctr record`, which notes where a program is, with all threads and processes that
//! it starts, whenever so many events have occurred.
//!
//! Every thread has a counter of its own and gets a signal at each overflow, at which its tracer
//! finds it stopped.  The tracer notes where it is, discards the signal, and lets counter and
//! thread continue. The program notices none of this, and nothing of it is counted.

mod counter;
mod recorder;
mod space;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use clap::Args;

use self::counter::Source;
use self::recorder::Recorder;
use crate::events::{EventList, EventParser};
use crate::info::Here;
use crate::profile::{Machine, Place, Profile};
use crate::program::tracer::{self, Followed};
use crate::program::{Signals, Target};
use crate::text::{counted, tell};

/// The options of `perfctr record`.
#[derive(Debug, Args)]
pub struct Options {
    /// Samples by this event in user mode.
    #[arg(
        short,
        long,
        value_parser = EventParser,
        hide_possible_values = true,
        default_value = "cycles:u"
    )]
    event: EventList,
    /// Samples by an event that is not known to be right on this CPU, too.
    #[arg(long)]
    unverified: bool,
    /// Takes a sample every so many events, unless the event says so itself (`/period=N/`).
    #[arg(short, long, default_value_t = 1_000_003, value_parser = period())]
    count: u64,
    /// Records the callers as well.
    #[arg(short = 'g', long)]
    call_graph: bool,
    /// Writes the profile to this file.
    #[arg(short, long, default_value = "perfctr.data")]
    output: PathBuf,
    /// The program and its arguments.
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// The shortest period. Several shorter ones would pass between two signals.
const PERIOD_MIN: u64 = 1_000;

fn period() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(PERIOD_MIN..)
}

/// Runs `perfctr record`.
pub fn run(options: &Options) -> Result<ExitCode> {
    let Options { event, unverified, count, call_graph, output, command } = options;
    let &[event] = event.events(*unverified).as_slice() else {
        bail!("several events found, one expected: programs are sampled by one event at a time");
    };
    let period = &if event.period() == 0 { *count } else { event.period() };
    ensure!(*period >= PERIOD_MIN, "{period} is no period: {PERIOD_MIN} events at least");
    let user = event.user();
    ensure!(event == user, "programs are sampled in user mode: {user} in place of {event}");
    let here = Here::find()?;
    let target = Target::Program(command);
    let signals = Signals::handle(target, None)?;
    let words = command.iter().map(|word| word.display().to_string()).collect();
    let provider = here.description.provider.to_string();
    let mut profile = Profile::new(words, provider, event.to_string(), *period);
    (profile.call_graph, profile.machine) = (*call_graph, Machine::this());
    let source = Source::new(&here, event.every(*period))?;
    let mut recorder = Recorder::new(source, profile);
    // The file is opened before the program runs, since the samples would be lost if it cannot be
    // written.
    let place = Place::open(output)?;
    let followed = tracer::run(target, &mut recorder, &signals);
    let Followed { status, unobserved, .. } = followed.inspect_err(|_| place.give_up())?;
    let profile = recorder.finish(unobserved);
    place.write(&profile)?;
    tell_of(&profile, output);
    Ok(ExitCode::from(status))
}

fn tell_of(profile: &Profile, output: &Path) {
    let samples = counted(profile.samples(), "sample");
    let threads = counted(profile.threads.len() as u64, "thread");
    tell(format_args!("{samples} of {threads} in {}", output.display()));
    if let missed @ 1.. = profile.missed() {
        let missed = counted(missed, "sample");
        tell(format_args!("missed {missed}, of threads that ended or were killed before"));
    }
    if let unobserved @ 1.. = profile.unobserved {
        tell(format_args!("threads or programs that could not be observed: {unobserved}"));
    }
}
