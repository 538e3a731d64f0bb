// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gets the vendors' tables of events and metrics out of Debian's source of Linux. They are their
//! vendors' and stay in the cache.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use super::kernel::USUAL;
use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::sh::{self, cmd};

/// Returns the directory with the tables of x86 processors.
pub fn tables() -> Result<PathBuf> {
    let package = format!("linux-source-{USUAL}");
    let key = Key::new("tables 1").text(&package);
    let dir = cache::artefact("tables", key, |dir| {
        apt::install(&["xz-utils"], "unpacking sources")?;
        let tree = dir.join("tree");
        fs::create_dir_all(&tree)?;
        apt::unpack(&apt::fetch(&[&package], false, dir)?, &tree)?;
        let mut tar = cmd("tar", ["-x", "--no-same-owner", "--strip-components=3", "-f"]);
        tar.arg(tree.join(format!("usr/src/{package}.tar.xz"))).arg("-C").arg(dir);
        sh::output(tar.arg(format!("{package}/tools/perf/pmu-events/arch/x86")))?;
        fs::remove_dir_all(tree)?;
        Ok(fs::remove_dir_all(dir.join("debs"))?)
    })?;
    Ok(dir.join("pmu-events/arch/x86"))
}
