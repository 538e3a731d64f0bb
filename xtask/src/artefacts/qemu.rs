// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds the emulator: Debian's QEMU source package with the project's PMU model.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::artefacts::emulators::{self, Recipe};
use crate::tools::apt;
use crate::tools::overlay::{self, Files};
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

const PROGRAM: &str = "qemu-system-x86_64";

const RECIPE: Recipe = Recipe {
    name: "qemu",
    title: "QEMU",
    packages: PACKAGES,
    configure: CONFIGURE,
    program: PROGRAM,
};

/// Builds the emulator, and returns its program.
pub fn qemu() -> Result<PathBuf> {
    apt::install(FIRMWARE, "QEMU's firmware")?;
    let source = apt::source("qemu", UPSTREAM)?;
    emulators::program(&RECIPE, &source, |work, files, log| build(&source, work, files, log))
}

fn build(source: &Path, work: &Path, files: &Files, log: &Path) -> Result<PathBuf> {
    overlay::apply(source, &work.join("tree"), files)?;
    let build = work.join("build");
    if !build.join("build.ninja").exists() {
        fs::create_dir_all(&build)?;
        let mut configure = cmd("../tree/configure", CONFIGURE);
        sh::logged(configure.current_dir(&build), log)?;
    }
    let mut ninja = cmd("ninja", [&sh::jobs(), PROGRAM]);
    sh::logged(ninja.current_dir(&build), log)?;
    Ok(build.join(PROGRAM))
}
