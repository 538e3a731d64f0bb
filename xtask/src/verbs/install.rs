// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask install` installs the command `perfctr` on this machine.

use std::path::PathBuf;

use anyhow::Result;

use crate::artefacts::command;

/// Builds the command `perfctr` and installs it with its man pages and completions.
#[derive(clap::Args)]
pub struct Args {
    /// Install below this directory, such as /usr/local.
    prefix: PathBuf,
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<()> {
    command::install(&args.prefix)?;
    println!("installed in {}", args.prefix.display());
    Ok(())
}
