// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The library's providers, beside each other: what each one counts, and what it answers where it
//! cannot.

mod answers;
mod native;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use vm_tests::tally::Tally;

#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    place: Place,
}

/// What there is to count with.
#[derive(Debug, Subcommand)]
enum Place {
    /// Linux with a PMU, without a hypervisor.
    Native,
    /// Linux without either.
    Bare,
    /// A guest of Xen with the driver, and the module loaded.
    Guest,
    /// A guest of Xen whose driver is off, so that the module is not loaded.
    Off,
    /// Prints what the providers answer here; for the others.
    Answer {
        /// Has `perf_event_open` fail with this error number first.
        #[arg(long)]
        filter: Option<u16>,
    },
}

fn main() -> Result<ExitCode> {
    let tests = match Options::parse().place {
        Place::Native => [native::TESTS, answers::NATIVE].concat(),
        Place::Bare => answers::BARE.to_vec(),
        Place::Guest => answers::GUEST.to_vec(),
        Place::Off => answers::OFF.to_vec(),
        Place::Answer { filter } => {
            answers::print(filter)?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let mut tally = Tally::default();
    for (name, test) in tests {
        tally.check(name, test().map_err(|error| format!("{error:#}")));
    }
    Ok(tally.finish())
}

/// A test and its name.
type Test = (&'static str, fn() -> Result<()>);
