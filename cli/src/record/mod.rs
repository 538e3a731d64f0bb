// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `perfctr record`: where a program is, with all threads and processes that it starts, whenever
//! so many events have occurred.
//!
//! Every thread has a counter of its own and gets a signal at each overflow, at which its tracer
//! finds it stopped.  The tracer notes where it is, keeps the signal to itself, and lets counter
//! and thread go on: neither is told to the program, and nothing of it is counted.

mod counter;
mod recorder;
mod space;

pub use self::space::build_id;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use perfctr::Event;

use self::counter::Source;
use self::recorder::Recorder;
use crate::info::Here;
use crate::profile::Profile;
use crate::program::tracer::{self, Followed};
use crate::program::{Signals, Target};

/// What to note, and when.
#[derive(Debug, Args)]
pub struct Options {
    /// An event in user mode: `perfctr list` knows their names.
    #[arg(short, long, default_value = "cycles:u")]
    event: Event,
    /// How many events lie between two samples, if the event itself does not say (`/period=N/`).
    #[arg(short, long, default_value_t = 1_000_003, value_parser = period())]
    count: u64,
    /// Notes the callers, too.
    #[arg(short = 'g', long)]
    call_graph: bool,
    /// Where to write the profile.
    #[arg(short, long, default_value = "perfctr.data")]
    output: PathBuf,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Of shorter periods several would pass between two signals.
const PERIOD_MIN: u64 = 1_000;

fn period() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(PERIOD_MIN..)
}

/// `perfctr record`.
pub fn run(options: &Options) -> Result<ExitCode> {
    let Options { event, count, call_graph, output, command } = options;
    let period = &if event.period() == 0 { *count } else { event.period() };
    ensure!(*period >= PERIOD_MIN, "{period} is no period: {PERIOD_MIN} events at least");
    let user = event.user();
    ensure!(*event == user, "programs are sampled in user mode: {user} in place of {event}");
    let here = Here::find()?;
    let target = Target::Program(command);
    let signals = Signals::handle(target, None)?;
    let words = command.iter().map(|word| word.display().to_string()).collect();
    let provider = here.description.provider.to_string();
    let mut profile = Profile::new(words, provider, event.to_string(), *period);
    profile.call_graph = *call_graph;
    let source = Source::new(&here, event.every(*period))?;
    let mut recorder = Recorder::new(source, profile);
    let followed = tracer::run(target, &mut recorder, &signals);
    let Followed { status, unobserved, .. } =
        followed.with_context(|| command[0].display().to_string())?;
    let profile = recorder.finish(unobserved);
    profile.write(output)?;
    let (samples, missed) = (profile.samples(), profile.missed());
    let threads = profile.threads.len();
    eprintln!("perfctr: {samples} samples of {threads} threads in {}", output.display());
    if missed > 0 {
        eprintln!("perfctr: {missed} samples were missed: their threads ended, or were killed");
    }
    if unobserved > 0 {
        eprintln!("perfctr: {unobserved} threads or programs could not be observed");
    }
    Ok(ExitCode::from(status))
}
