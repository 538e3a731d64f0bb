// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Threads sample themselves, each with its own periods, while everything moves under them, and
//! every overflow is compared with what the thread has counted.

mod sampled;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use perfctr::{Event, Provider, Session};
use vm_tests::region::Region;

/// Compares overflows with counts under competition and migration.
#[derive(Debug, Parser)]
struct Options {
    /// Unit: instructions.
    #[arg(long, default_value_t = 1_000)]
    period: u64,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    sampled::handle()?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    sampled::expect(&[options.period])?;
    let mut store = 0;
    for half in [100, 400, 500, 1_000, 10_000, 1_000_000] {
        let region = Region { first: half, second: half };
        sampled::expect(&[options.period, 0])?;
        let events = [Event::INSTRUCTIONS.user().every(options.period), Event::BRANCHES.user()];
        session.start_sampling(&events, sampled::SIGNAL)?;
        region.execute(&mut store);
        session.stop()?;
        let reading = session.read::<2>()?;
        let told = sampled::told();
        println!(
            "{} {:?} {:?} {:?}",
            region.instructions(),
            reading.counts,
            reading.counts[0].wrapping_sub(region.instructions()),
            told
        );
    }
    let skids = sampled::skids();
    println!("{:?} elsewhere {}", &skids[..32], sampled::elsewhere());
    Ok(ExitCode::SUCCESS)
}
