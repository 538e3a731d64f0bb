// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask install-c` builds and installs the library for C and C++ for this machine.

use std::path::PathBuf;

use anyhow::Result;

use crate::artefacts::counts;

/// Where to install it.
#[derive(clap::Args)]
pub struct Args {
    /// Install below this directory, such as /usr/local.
    prefix: PathBuf,
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<()> {
    counts::LIBRARY.install(&args.prefix)?;
    println!("installed in {}", args.prefix.display());
    Ok(())
}
