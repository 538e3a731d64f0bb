// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask dist` builds Debian packages of this source tree.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::artefacts::packages::{self, kvm};

/// Builds Debian packages, and prints their names, their sizes and what lintian says of them.
#[derive(clap::Args)]
pub struct Args {
    /// Put the packages into this directory.
    #[arg(default_value = "target/dist")]
    dir: PathBuf,
    /// Build KVM's modules for the kernels of these versions of Linux. Nothing stands for none.
    #[arg(
        long,
        value_name = "VERSIONS",
        require_equals = true,
        default_value_t = kvm::VERSIONS.join(",")
    )]
    kvm: String,
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<()> {
    let linux: Vec<&str> = args.kvm.split(',').filter(|version| !version.is_empty()).collect();
    let built = packages::build(packages::VERSION, &linux)?;
    fs::create_dir_all(&args.dir)?;
    for deb in &built.debs {
        let place = args.dir.join(deb.file_name().context("a package has a name")?);
        println!("{:>9}  {}", fs::copy(deb, &place)?, place.display());
    }
    ensure!(built.tags.is_empty(), "lintian:\n{}", built.tags.join("\n"));
    println!("lintian: nothing that packaging/debian does not explain");
    Ok(())
}
