// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gets Go's reader of profiles, for this machine.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::tools::apt;
use crate::tools::cache::{self, Key};

/// Debian's package, and the reader's path in it.
const PACKAGE: &str = "golang-1.19-go";
const PROGRAM: &str = "usr/lib/go-1.19/pkg/tool/linux_amd64/pprof";

/// Takes the program out of its package.
pub fn pprof() -> Result<PathBuf> {
    let dir = cache::artefact("pprof", Key::new("pprof 1").text(PROGRAM), |dir| {
        let tree = dir.join("tree");
        fs::create_dir_all(&tree)?;
        apt::unpack(&apt::fetch(&[PACKAGE], false, dir)?, &tree)?;
        fs::copy(tree.join(PROGRAM), dir.join("pprof"))?;
        fs::remove_dir_all(dir.join("debs"))?;
        Ok(fs::remove_dir_all(tree)?)
    })?;
    Ok(dir.join("pprof"))
}
