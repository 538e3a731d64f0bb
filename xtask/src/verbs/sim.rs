// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask sim` runs the simulator: all of its tests, or what its own options ask for.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::suites;

/// Runs all tests of the simulator of hosts and guests, or what options ask for; see `cargo xtask
/// sim -- --help`.
#[derive(clap::Args)]
pub struct Args {
    /// Pass these options to the simulator, in place of all of its tests.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<String>,
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut simulator = suites::simulator(&args.options)?;
    let status = simulator.status().context("the simulator")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
