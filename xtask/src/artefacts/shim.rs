// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds and installs the C library with perfctr's own interface.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::artefacts::c_library::{self, Library};
use crate::tools::sh::{self, cmd};

/// The library's name that programs ask the dynamic linker for.
pub const SONAME: &str = "libperfctr.so.6";

/// The library. Its version continues that of perfctr's own, since programs ask for that.
pub const LIBRARY: Library = Library {
    package: "papi-shim",
    built: "perfctr_c",
    folder: "papi-shim",
    name: "perfctr",
    soname: SONAME,
    version: "2.6.42",
    pkg_config: ("perfctr", "Hardware performance counters with perfctr's interface"),
};

/// Installs headers, libraries, pkg-config file and `perfex` below `prefix`.
pub fn install(prefix: &Path) -> Result<()> {
    let shared = stage(prefix, prefix, "lib")?;
    sh::output(cmd("strip", ["--strip-unneeded"]).arg(shared)).map(drop)
}

/// Puts files below `tree` that will be used below `prefix`, with libraries in its directory `lib`
/// and nothing stripped. Returns the shared library.
pub fn stage(tree: &Path, prefix: &Path, lib: &str) -> Result<PathBuf> {
    let (shared, built) = LIBRARY.stage(tree, prefix, lib)?;
    fs::create_dir_all(tree.join("bin"))?;
    c_library::replace(&built.join("perfex"), &tree.join("bin/perfex"))?;
    Ok(shared)
}
