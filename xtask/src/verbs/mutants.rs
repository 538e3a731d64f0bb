// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask mutants` tells whether the tests of the model tier notice small faults in the
//! cores.

use anyhow::Result;

use crate::suites::mutants;

/// Puts one small fault after another into the cores and runs the model tier's tests.
#[derive(clap::Args)]
pub struct Args {
    /// Try only the mutants of this package.
    #[arg(long)]
    package: Option<String>,
    /// Pass these options to cargo-mutants, which choose among mutants, such as `--file` or
    /// `--shard 0/8`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<String>,
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<()> {
    mutants::try_all(args.package.as_deref(), &args.options)
}
