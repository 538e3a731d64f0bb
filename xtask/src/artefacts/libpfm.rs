// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Debian's libpfm4, and the program that comes with it as an example and lists encodings.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::sh::{self, cmd};

/// The library, and what programs are built with.
const PACKAGES: &[&str] = &["libpfm4", "libpfm4-dev"];
const EXAMPLE: &str = "usr/share/doc/libpfm4-dev/examples/showevtinfo.c";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// What is taken out of the packages.
pub struct Libpfm {
    /// A directory with the shared library.
    pub libraries: PathBuf,
    /// `showevtinfo`.
    pub showevtinfo: PathBuf,
}

/// Takes it out of its packages, and builds the example.
pub fn libpfm() -> Result<Libpfm> {
    let key = Key::new("libpfm 1").text(&PACKAGES.join(" ")).text(EXAMPLE);
    let dir = cache::artefact("libpfm", key, |dir| {
        apt::install(&["gcc", "libc6-dev"], "building libpfm4's example")?;
        let tree = dir.join("tree");
        fs::create_dir_all(&tree)?;
        apt::unpack(&apt::fetch(PACKAGES, false, dir)?, &tree)?;
        // The one header of its own that the package leaves out is the C library's of that name.
        let include = tree.join("usr/include");
        fs::write(include.join("perfmon/err.h"), "#include <err.h>\n")?;
        let mut gcc = cmd("gcc", ["-O1", "-w", "-o"]);
        gcc.arg(dir.join("showevtinfo")).arg("-I").arg(include).arg(tree.join(EXAMPLE));
        sh::output(gcc.arg(tree.join(LIBRARIES).join("libpfm.a")))?;
        Ok(fs::remove_dir_all(dir.join("debs"))?)
    })?;
    Ok(Libpfm { libraries: dir.join("tree").join(LIBRARIES), showevtinfo: dir.join("showevtinfo") })
}
