// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gets the C library for programs that are built here and run in the testbed, or where packages
//! are installed. It is that of the testbed's release, even if this machine has a newer one.

use std::fs;

use anyhow::Result;

use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::sh::{self, cmd};

const PACKAGES: &[&str] = &["libc6-dev", "libgcc-s1", "libgomp1"];

/// A script that makes links point to files of the tree, and not of this machine. One of them
/// points to a library of the compiler's, which the compiler would otherwise take from its own
/// directory.
const LINKS: &str = r#"
ln -s libgomp.so.1 "$0/usr/lib/x86_64-linux-gnu/libgomp.so"
find "$0" -type l -lname '/*' | while read -r link; do
    ln -snrf "$0$(readlink "$link")" "$link"
done
"#;

/// Returns the compiler's options. There are none if this machine is of the testbed's release.
pub fn options() -> Result<Vec<String>> {
    if apt::is_testbeds()? {
        return Ok(Vec::new());
    }
    let key = Key::new("sysroot 3").text(&PACKAGES.join(" "));
    let dir = cache::artefact("sysroot", key, |dir| {
        let debs = apt::fetch(PACKAGES, true, dir)?;
        let tree = dir.join("tree");
        fs::create_dir_all(&tree)?;
        apt::unpack(&debs, &tree)?;
        sh::output(cmd("sh", ["-ec", LINKS]).arg(&tree))?;
        Ok(fs::remove_dir_all(dir.join("debs"))?)
    })?;
    let tree = dir.join("tree");
    // The compiler would first look in its own directory, where this machine's libraries are.
    let libraries = tree.join("usr/lib/x86_64-linux-gnu");
    Ok(vec![format!("--sysroot={}", tree.display()), format!("-B{}", libraries.display())])
}
