// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Packs the project's sources with those of all crates, which can be built without a network.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::artefacts::packages::VERSION;
use crate::tools::sh::{self, cmd};
use crate::tools::toolchain::{self, VENDOR};
use crate::tools::{apt, cache};

/// The file in the project from which cargo reads its settings.
const SETTINGS: &str = ".cargo/config.toml";

/// What the archive tells cargo about the crates in it.
const VENDORED: &str = "
# Crates are those in this archive.
[source.crates-io]
replace-with = \"vendor\"
[source.vendor]
directory = \"vendor\"
";

/// Writes the archive into `dir`. It has the tree as it is here, as far as git knows its files, and
/// every crate that `Cargo.lock` names. The same sources give the same archive.
pub fn archive(dir: &Path) -> Result<PathBuf> {
    apt::install(&["xz-utils"], "packing the sources")?;
    let _lock = cache::lock("source")?;
    let name = format!("perfctr-{VERSION}");
    let work = cache::scratch("source")?;
    let tree = work.join(&name);
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    copy(&tree)?;
    let mut vendor = toolchain::cargo();
    vendor.args(["vendor", "--quiet", "--locked", "--versioned-dirs", VENDOR]);
    sh::output(vendor.current_dir(&tree))?;
    let settings = fs::read_to_string(tree.join(SETTINGS)).context(SETTINGS)?;
    fs::write(tree.join(SETTINGS), settings + VENDORED)?;

    let mut date = cmd("git", ["log", "-1", "--format=%cI"]);
    let date = sh::output(date.current_dir(sh::project()))?;
    fs::create_dir_all(dir)?;
    let archive = dir.canonicalize()?.join(format!("{name}.tar.xz"));
    let mut tar = cmd("tar", ["-c", "--xz", "--sort=name", "--owner=0", "--group=0"]);
    tar.args(["--numeric-owner", "--mode=u+rw,go+r-w,a+X"]).arg(format!("--mtime={}", date.trim()));
    // xz writes other bytes if its number of threads differs.
    tar.env("XZ_OPT", "-3 -T1").arg("-f").arg(&archive).arg("-C").arg(&work).arg(&name);
    sh::output(&mut tar)?;
    fs::remove_dir_all(work)?;
    Ok(archive)
}

/// Copies what git has of the project, as it is here, to a directory that does not exist yet.
pub fn copy(to: &Path) -> Result<()> {
    ensure!(!to.exists(), "{} is there already", to.display());
    fs::create_dir_all(to)?;
    let script = "git ls-files -z | xargs -0 cp --parents -t \"$0\"";
    sh::output(cmd("sh", ["-ec", script]).arg(to).current_dir(sh::project())).map(drop)
}
