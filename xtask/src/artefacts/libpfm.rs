// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gets Debian's libpfm4, and builds the program that comes with it as an example and lists
//! encodings.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::sh::{self, cmd};

/// The library's package, and the one that programs are built with.
const PACKAGES: &[&str] = &["libpfm4", "libpfm4-dev"];
const EXAMPLE: &str = "usr/share/doc/libpfm4-dev/examples/showevtinfo.c";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// What is taken out of these packages.
pub struct Libpfm {
    /// A directory with the shared library.
    pub libraries: PathBuf,
    /// The program `showevtinfo`.
    pub showevtinfo: PathBuf,
}

/// Takes the library out of its packages, and builds the example.
pub fn libpfm() -> Result<Libpfm> {
    let key = Key::new("libpfm 1").text(&PACKAGES.join(" ")).text(EXAMPLE);
    let dir = cache::artefact("libpfm", key, |dir| {
        apt::install(&["gcc", "libc6-dev"], "building libpfm4's example")?;
        let tree = dir.join("tree");
        fs::create_dir_all(&tree)?;
        apt::unpack(&apt::fetch(PACKAGES, false, dir)?, &tree)?;
        // The example needs one header of libpfm4's that the package omits. The C library's header
        // of that name works as well.
        let include = tree.join("usr/include");
        fs::write(include.join("perfmon/err.h"), "#include <err.h>\n")?;
        let mut gcc = cmd("gcc", ["-O1", "-w", "-o"]);
        gcc.arg(dir.join("showevtinfo")).arg("-I").arg(include).arg(tree.join(EXAMPLE));
        sh::output(gcc.arg(tree.join(LIBRARIES).join("libpfm.a")))?;
        Ok(fs::remove_dir_all(dir.join("debs"))?)
    })?;
    Ok(Libpfm { libraries: dir.join("tree").join(LIBRARIES), showevtinfo: dir.join("showevtinfo") })
}
