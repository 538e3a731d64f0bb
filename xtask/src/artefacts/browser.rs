// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gets Debian's Chromium, in a system of its own.

use std::path::PathBuf;

use anyhow::Result;

use crate::tools::apt;
use crate::tools::cache::{self, Key};

/// The packages. Without a font it would draw no letters.
const PACKAGES: [&str; 2] = ["chromium", "fonts-dejavu-core"];

/// Returns an archive of all files of that system.
pub fn system() -> Result<PathBuf> {
    let key = Key::new("browser 1").text(&PACKAGES.join(" "));
    let dir = cache::artefact("browser", key, |dir| {
        apt::system(&PACKAGES, "true", &dir.join("root.tar"))
    })?;
    Ok(dir.join("root.tar"))
}
