// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The second emulator, which has VT-x: Debian's Bochs source package with the project's PMU.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::artefacts::emulators::{self, Recipe};
use crate::tools::apt;
use crate::tools::overlay::{self, Files};
use crate::tools::sh::{self, cmd};

/// The version that the patch is made for.
const UPSTREAM: &str = "3.0";

const PACKAGES: &[&str] = &["build-essential", "patch", "pkg-config"];

/// Firmware, which is not built from the source here.
const FIRMWARE: &[&str] = &["bochsbios", "vgabios"];

const CONFIGURE: &[&str] = &[
    "--enable-smp",
    "--enable-cpu-level=6",
    "--enable-x86-64",
    "--enable-vmx=2",
    "--enable-svm",
    "--enable-avx",
    "--enable-evex",
    "--enable-pci",
    "--enable-fpu",
    "--enable-long-phy-address",
    "--enable-all-optimizations",
    // Otherwise Bochs logs its speed from a signal handler, which may wait for a lock that the
    // interrupted code holds.
    "--disable-show-ips",
    "--with-nogui",
    "--disable-docbook",
    "--disable-readline",
];

const RECIPE: Recipe = Recipe {
    name: "bochs",
    title: "Bochs",
    packages: PACKAGES,
    configure: CONFIGURE,
    program: "bochs",
};

/// Builds the emulator, and returns its program.
pub fn bochs() -> Result<PathBuf> {
    apt::install(FIRMWARE, "Bochs' firmware")?;
    let source = apt::unpatched("bochs", &[UPSTREAM])?;
    emulators::program(&RECIPE, &source, |work, files, log| build(&source, work, files, log))
}

fn build(source: &Path, work: &Path, files: &Files, log: &Path) -> Result<PathBuf> {
    let tree = work.join("tree");
    // Its makefiles do not know everything that depends on a header.
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    overlay::apply(source, &tree, files)?;
    let mut configure = cmd("./configure", CONFIGURE);
    sh::logged(configure.current_dir(&tree), log)?;
    sh::logged(cmd("make", [&sh::jobs()]).current_dir(&tree), log)?;
    Ok(tree.join("bochs"))
}
