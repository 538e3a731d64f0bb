// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask faults` says for each fault of the catalogue whether a test notices it.

use std::process::ExitCode;

use anyhow::Result;

use crate::artefacts::faults::{Tier, write_counts};
use crate::suites::faults::{self, Choice};
use crate::suites::shard::Shard;
use crate::tools::sh;

/// Switches on each fault of tests/faults in turn, and runs the tests that must notice it.
#[derive(clap::Args)]
pub struct Args {
    /// Try only the faults of this tier.
    #[arg(long, value_enum)]
    tier: Option<Tier>,
    /// Try only this fault.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Try only the faults of one list, such as driver.
    #[arg(long, value_name = "NAME")]
    list: Option<String>,
    /// Try only the faults that share one build, as the usual run of the tests does.
    #[arg(long)]
    switched_only: bool,
    /// Try only a part of the faults, such as 0/8, 1/8 and so on.
    #[arg(long, value_name = "K/N")]
    shard: Option<Shard>,
    /// Try none, but count those of each part of the project, here and in docs/faults.md.
    #[arg(long)]
    counts: bool,
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode> {
    let Args { tier, only, list, switched_only, shard, counts } = args;
    if counts {
        print!("{}", write_counts(&sh::project())?);
        return Ok(ExitCode::SUCCESS);
    }
    let verdicts = faults::try_all(&Choice { tier, only, list, switched_only, shard })?;
    print!("{}", faults::table(&verdicts));
    faults::all_caught(&verdicts)?;
    Ok(ExitCode::SUCCESS)
}
