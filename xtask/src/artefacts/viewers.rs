// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gets the programs in which people look at pictures: Debian's Chromium, and a terminal. They are
//! in a system of their own.

use std::fs::File;
use std::path::PathBuf;

use anyhow::Result;

use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::chroot::Chroot;

/// The packages: the browser; a terminal in a window, a terminal that reports the content of each
/// of its cells, a screen without a monitor, and a program that takes a picture of it. Without a
/// font there are no letters, and terminals need a file system of their own.
const PACKAGES: [&str; 7] =
    ["chromium", "xterm", "tmux", "xvfb", "scrot", "fonts-dejavu-core", "mount"];

/// The system's directory, which one command uses at a time.
pub struct Viewers {
    /// The system itself.
    pub system: Chroot,
    _lock: File,
}

/// Returns the system. It is unpacked when it is used first.
pub fn viewers() -> Result<Viewers> {
    let key = Key::new("viewers 1").text(&PACKAGES.join(" "));
    let dir = cache::artefact("viewers", key, |dir| {
        apt::system(&PACKAGES, "true", &dir.join("root.tar"))
    })?;
    let lock = cache::lock("viewers-root")?;
    let work: PathBuf = cache::scratch("viewers")?;
    let system = Chroot::kept(&dir.join("root.tar"), &work)?;
    // Programs that were ended leave locks there.
    system.run("rm -rf /tmp; mkdir -m 1777 /tmp")?;
    Ok(Viewers { system, _lock: lock })
}
