// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask dist` builds Debian packages of this source tree.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::artefacts::packages;

/// Builds Debian packages, and prints their names, their sizes and what lintian says of them.
#[derive(clap::Args)]
pub struct Args {
    /// Put the packages into this directory.
    #[arg(default_value = "target/dist")]
    dir: PathBuf,
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<()> {
    let built = packages::build(packages::VERSION)?;
    fs::create_dir_all(&args.dir)?;
    for deb in &built.debs {
        let place = args.dir.join(deb.file_name().context("a package has a name")?);
        println!("{:>9}  {}", fs::copy(deb, &place)?, place.display());
    }
    ensure!(built.tags.is_empty(), "lintian:\n{}", built.tags.join("\n"));
    println!("lintian: nothing that packaging/debian does not explain");
    Ok(())
}
