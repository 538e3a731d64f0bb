// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the library's providers together: their counts, and their answers where they cannot count.

mod answers;
mod measure;
mod native;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use vm_tests::tally::Tally;

#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    role: Role,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
enum Role {
    #[command(flatten)]
    Judge(Place),
    /// Prints what the providers answer here, or executes this program. Other tests use it.
    Answer {
        /// Has `perf_event_open` fail with this error number first.
        #[arg(long)]
        filter: Option<u16>,
        /// The program and its arguments.
        #[arg(last = true)]
        program: Vec<String>,
    },
}

/// The counters that a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
enum Place {
    /// Linux with a PMU, without a hypervisor.
    Native,
    /// Linux without a PMU and without a hypervisor.
    Bare,
    /// A guest of Xen with the driver, and the module loaded.
    Guest,
    /// A guest of Xen whose driver is off, so that the module is not loaded.
    Off,
}

fn main() -> Result<ExitCode> {
    let place = match Options::parse().role {
        Role::Judge(place) => place,
        Role::Answer { filter, program } => {
            answers::print(filter, &program)?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let tests = match place {
        Place::Native => [native::TESTS, answers::NATIVE, watch::TESTS, measure::TESTS].concat(),
        Place::Bare => Vec::new(),
        Place::Guest => [answers::GUEST, watch::TESTS, measure::TESTS].concat(),
        Place::Off => answers::OFF.to_vec(),
    };
    let mut tally = Tally::default();
    answers::machines(&mut tally, place);
    for (name, test) in tests {
        tally.check(name, test().map_err(|error| format!("{error:#}")));
    }
    Ok(tally.finish())
}

/// A test and its name.
type Test = (&'static str, fn() -> Result<()>);
