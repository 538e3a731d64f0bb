// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds and installs the library for C, and what is made of it for C++ and Python.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::artefacts::c_library::Library;
use crate::tools::sh::{self, cmd};

/// The library's name that programs ask the dynamic linker for.
pub const SONAME: &str = "libperfctr-counts.so.1";

/// The library.
pub const LIBRARY: Library = Library {
    package: "libperfctr-counts",
    built: "perfctr_counts",
    folder: "libperfctr-rs/c",
    name: "perfctr-counts",
    soname: SONAME,
    version: env!("CARGO_PKG_VERSION"),
    pkg_config: ("perfctr-counts", "Exact hardware performance counts of the calling thread"),
};

/// Installs headers, libraries and pkg-config file below `prefix`.
pub fn install(prefix: &Path) -> Result<()> {
    let shared = stage(prefix, prefix, "lib")?;
    sh::output(cmd("strip", ["--strip-unneeded"]).arg(shared)).map(drop)
}

/// Puts files below `tree` that will be used below `prefix`, with libraries in its directory `lib`
/// and nothing stripped. Returns the shared library.
fn stage(tree: &Path, prefix: &Path, lib: &str) -> Result<PathBuf> {
    LIBRARY.stage(tree, prefix, lib).map(|(shared, _)| shared)
}
