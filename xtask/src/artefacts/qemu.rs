// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds the emulator: Debian's QEMU source package with the project's PMU model.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::overlay;
use crate::tools::sh::{self, cmd};

/// The version in Debian 12, for which the patch is made.
const UPSTREAM: &str = "7.2";

const PACKAGES: &[&str] = &[
    "build-essential",
    "ninja-build",
    "meson",
    "python3",
    "pkg-config",
    "patch",
    "libglib2.0-dev",
    "libpixman-1-dev",
    "zlib1g-dev",
    "libfdt-dev",
];

/// Firmware, which Debian's source does not contain.
const FIRMWARE: &[&str] = &["seabios", "qemu-system-data"];

const CONFIGURE: &[&str] = &[
    "--target-list=x86_64-softmmu",
    "--without-default-features",
    "--enable-tcg",
    "--enable-fdt=system",
    "--disable-docs",
    "--disable-debug-info",
];

/// Builds the emulator, and returns its program.
pub fn qemu() -> Result<PathBuf> {
    apt::install(FIRMWARE, "QEMU's firmware")?;
    let source = apt::source("qemu", UPSTREAM)?;
    let ours = sh::project().join("testbed/qemu");
    let key = Key::new("qemu 1")
        .text(&source.to_string_lossy())
        .text(&CONFIGURE.join(" "))
        .path(&ours.join("src"))?
        .path(&ours.join("hooks.patch"))?;
    let dir = cache::artefact("qemu", key, |dir| {
        apt::install(PACKAGES, "building QEMU")?;
        let binary = build(&source, &ours)?;
        fs::copy(binary, dir.join("qemu-system-x86_64"))?;
        Ok(())
    })?;
    Ok(dir.join("qemu-system-x86_64"))
}

fn build(source: &Path, ours: &Path) -> Result<PathBuf> {
    let work = cache::root()?.join("work/qemu");
    let log = cache::log("qemu")?;
    let mut files = overlay::read(&ours.join("src"), "")?;
    files.extend(overlay::patched(source, &ours.join("hooks.patch"), &work)?);
    overlay::apply(source, &work.join("tree"), &files)?;
    let build = work.join("build");
    if !build.join("build.ninja").exists() {
        fs::create_dir_all(&build)?;
        let mut configure = cmd("../tree/configure", CONFIGURE);
        sh::logged(configure.current_dir(&build), &log)?;
    }
    let mut ninja = cmd("ninja", [&sh::jobs(), "qemu-system-x86_64"]);
    sh::logged(ninja.current_dir(&build), &log)?;
    Ok(build.join("qemu-system-x86_64"))
}
