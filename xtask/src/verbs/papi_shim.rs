// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask papi-shim` builds and installs the C library for this machine.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::artefacts::shim;

/// Works on the C library with perfctr's interface.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Build it and install it below PREFIX.
    Install {
        /// Install below this directory, such as /usr/local.
        prefix: PathBuf,
    },
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<ExitCode> {
    let Verb::Install { prefix } = &args.verb;
    shim::install(prefix)?;
    println!("installed in {}", prefix.display());
    Ok(ExitCode::SUCCESS)
}
