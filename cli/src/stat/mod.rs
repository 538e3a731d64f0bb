// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `perfctr stat`: what a program counts, with all threads and processes that it starts.
//!
//! Counting begins with the program's first instruction: nothing of this program, and nothing of
//! what happens between `fork` and `exec`, is in the counts.

mod native;
mod output;
mod traced;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use perfctr::{Event, Provider};

use crate::info::Here;
use crate::program;

/// What to count.
#[derive(Debug, Args)]
pub struct Options {
    /// Events, separated by commas: `perfctr list` knows their names.
    #[arg(
        short,
        long,
        value_delimiter = ',',
        default_value = "instructions:u,branches:u,cycles:u"
    )]
    event: Vec<Event>,
    /// Runs the program so many times, and says how far the counts were apart.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Counts of each thread, too.
    #[arg(long)]
    per_thread: bool,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
    /// Where to write the counts in place of the standard error.
    #[arg(short, long)]
    output: Option<std::path::PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// How often an event occurred.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Count {
    value: u64,
    /// Which part of the time it was counted: less than 1 if there were not enough counters, and
    /// the value is an estimate then.
    share: f64,
}

/// What one thread did.
#[derive(Clone, Debug)]
struct Thread {
    pid: u32,
    name: String,
    counts: Vec<u64>,
    /// How long it executed.
    time: Duration,
}

/// What one run did.
#[derive(Clone, Debug)]
struct Run {
    /// The program's exit status, 128 and the signal if one ended it.
    status: u8,
    /// From the program's start on.
    elapsed: Duration,
    counts: Vec<Count>,
    /// Of each thread, if the provider tells.
    threads: Vec<Thread>,
    /// Programs that could not be counted, because they may do what the caller may not.
    unobserved: u32,
}

/// `perfctr stat`.
pub fn run(options: &Options) -> Result<ExitCode> {
    let here = Here::find()?;
    program::outlive_interrupts()?;
    let mut runs = Vec::new();
    for _ in 0..options.repeat {
        runs.push(once(options, &here)?);
    }
    output::write(options, &here, &runs)?;
    Ok(ExitCode::from(runs.last().map_or(0, |run| run.status)))
}

fn once(options: &Options, here: &Here) -> Result<Run> {
    let run = match (here.description.provider, here.description.caps) {
        (Provider::Paravirt, Some(caps)) => {
            let control = perfctr::raw::counting(&caps, &options.event, 0)?;
            traced::run(&options.command, &control, here.description.tsc_khz)
        }
        (Provider::Tsc, _) => Err(here.nobody(options.event[0]).into()),
        _ if options.per_thread => {
            anyhow::bail!(
                "--per-thread needs provider paravirt, this is {}",
                here.description.provider
            )
        }
        _ => native::run(&options.command, &options.event),
    };
    let program = options.command[0].display();
    run.with_context(|| program.to_string())
}
