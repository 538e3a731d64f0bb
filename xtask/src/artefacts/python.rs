// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The package for Python.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::tools::apt;
use crate::tools::sh::{self, cmd};

/// Its folder in the project.
pub const FOLDER: &str = "libperfctr-rs/python";

/// Returns a command that runs Python in the package's folder and leaves no files there.
pub fn command(arguments: &[&str]) -> Command {
    // This is the system's own Python, to which its pytest and its pip belong.
    let mut command = cmd("/usr/bin/python3", arguments);
    command.current_dir(sh::project().join(FOLDER)).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Builds the wheel in a directory, and returns its path.
pub fn wheel(dir: &Path) -> Result<PathBuf> {
    apt::install(&["python3"], "building the package for Python")?;
    Ok(dir.join(sh::output(command(&["backend.py"]).arg(dir))?.trim()))
}

/// Moves the contents of a wheel into the directory where Debian's Python looks for modules. Two
/// things are left out: the wheel's own list of files, which only pip reads, and the licences,
/// which a Debian package has in its list of copyrights.
pub fn unpack(wheel: &Path, modules: &Path) -> Result<()> {
    fs::create_dir_all(modules)?;
    sh::output(command(&["-m", "zipfile", "-e"]).args([wheel, modules]))?;
    fs::remove_file(wheel)?;
    for entry in fs::read_dir(modules)? {
        let entry = entry?;
        let (list, licences) = (entry.path().join("RECORD"), entry.path().join("licenses"));
        if list.exists() {
            fs::remove_file(list)?;
        }
        if licences.exists() {
            fs::remove_dir_all(licences)?;
        }
    }
    Ok(())
}
