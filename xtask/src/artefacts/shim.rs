// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds and installs the C library with perfctr's own interface.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::artefacts::c_library::{self, Library};

/// The library. Its version continues that of perfctr's own, since programs ask for that.
pub const LIBRARY: Library = Library {
    package: "papi-shim",
    built: "perfctr_c",
    folder: "papi-shim",
    name: "perfctr",
    soname: "libperfctr.so.6",
    version: "2.6.42",
    pkg_config: ("perfctr", "Hardware performance counters with perfctr's interface"),
};

/// Installs headers, libraries, pkg-config file and `perfex` below `prefix`.
pub fn install(prefix: &Path) -> Result<()> {
    perfex(&LIBRARY.install(prefix)?, prefix)
}

/// Puts files below `tree` that will be used below `prefix`, with libraries in its directory `lib`
/// and nothing stripped.
pub fn stage(tree: &Path, prefix: &Path, lib: &str) -> Result<()> {
    let (_, built) = LIBRARY.stage(tree, prefix, lib)?;
    perfex(&built, tree)
}

/// Copies the program from what the crate has built.
fn perfex(built: &Path, tree: &Path) -> Result<()> {
    fs::create_dir_all(tree.join("bin"))?;
    c_library::replace(&built.join("perfex"), &tree.join("bin/perfex"))
}
