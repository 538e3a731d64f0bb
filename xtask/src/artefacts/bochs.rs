// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The second emulator, which has VT-x: Debian's Bochs source package with the project's PMU.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::overlay;
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
    // A line about the speed would be logged from a signal handler, which may wait for the lock of
    // what it has interrupted.
    "--disable-show-ips",
    "--with-nogui",
    "--disable-docbook",
    "--disable-readline",
];

/// The emulator's binary.
pub fn bochs() -> Result<PathBuf> {
    apt::install(FIRMWARE, "Bochs' firmware")?;
    let source = apt::unpatched("bochs", &[UPSTREAM])?;
    let ours = sh::project().join("testbed/bochs");
    let key = Key::new("bochs 1")
        .text(&source.to_string_lossy())
        .text(&CONFIGURE.join(" "))
        .path(&ours.join("src"))?
        .path(&ours.join("hooks.patch"))?;
    let dir = cache::artefact("bochs", key, |dir| {
        apt::install(PACKAGES, "building Bochs")?;
        let binary = build(&source, &ours)?;
        fs::copy(binary, dir.join("bochs"))?;
        Ok(())
    })?;
    Ok(dir.join("bochs"))
}

fn build(source: &Path, ours: &Path) -> Result<PathBuf> {
    let work = cache::root()?.join("work/bochs");
    let log = cache::log("bochs")?;
    let mut files = overlay::read(&ours.join("src"), "")?;
    files.extend(overlay::patched(source, &ours.join("hooks.patch"), &work)?);
    let tree = work.join("tree");
    // Its makefiles do not know all that depends on a header.
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    overlay::apply(source, &tree, &files)?;
    let mut configure = cmd("./configure", CONFIGURE);
    sh::logged(configure.current_dir(&tree), &log)?;
    sh::logged(cmd("make", [&sh::jobs()]).current_dir(&tree), &log)?;
    Ok(tree.join("bochs"))
}
