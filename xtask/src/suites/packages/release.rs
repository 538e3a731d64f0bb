// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What a release has beside the packages: sources that anybody can build them from.

use std::fs;

use anyhow::{Result, ensure};

use crate::artefacts::rustobj::{self, Purpose};
use crate::artefacts::source;
use crate::suites::report::Report;
use crate::tools::sh;
use crate::tools::{cache, toolchain};

/// In the long run.
pub fn run(report: &mut Report) -> Result<()> {
    report.test("a copy of the sources elsewhere gives the same Rust objects", same_objects);
    report.test("the library's crates can be published", publishable);
    report.test("the archive of the sources is the same when it is made again", same_archive);
    Ok(())
}

/// Built where nothing was built before, in another directory: byte by byte the same.
fn same_objects() -> Result<()> {
    let copy = cache::root()?.join("work/copy");
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    source::copy(&copy)?;
    let here = [rustobj::hypervisor(Purpose::Use)?, rustobj::module(Purpose::Use)?];
    let there =
        [rustobj::hypervisor_of(&copy, Purpose::Use)?, rustobj::module_of(&copy, Purpose::Use)?];
    for (here, there) in here.iter().zip(&there) {
        ensure!(fs::read(here)? == fs::read(there)?, "{} differs", there.display());
    }
    Ok(fs::remove_dir_all(copy)?)
}

/// What cargo would upload compiles, on its own.
fn publishable() -> Result<()> {
    let mut cargo = toolchain::cargo();
    cargo.args(["publish", "--dry-run", "--allow-dirty", "--locked"]);
    cargo.args(["-p", "shared-abi", "-p", "libperfctr-rs"]).current_dir(sh::project());
    sh::output(&mut cargo).map(drop)
}

/// Byte by byte.
fn same_archive() -> Result<()> {
    let dir = cache::root()?.join("work/release");
    let made = [source::archive(&dir)?, source::archive(&dir.join("again"))?];
    ensure!(fs::read(&made[0])? == fs::read(&made[1])?, "{} differs", made[1].display());
    Ok(fs::remove_dir_all(dir)?)
}
