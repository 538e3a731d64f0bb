// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The C library that programs are linked to which are built here and run in the testbed, or where
//! packages are installed: the testbed's release's, also where this machine's is a newer one.

use std::fs;

use anyhow::Result;

use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::sh::{self, cmd};

const PACKAGES: &[&str] = &["libc6-dev", "libgcc-s1", "libgomp1"];

/// Has links lead to files of the tree, and not of this machine; and one to a library of the
/// compiler's, which it finds beside itself else.
const LINKS: &str = r#"
ln -s libgomp.so.1 "$0/usr/lib/x86_64-linux-gnu/libgomp.so"
find "$0" -type l -lname '/*' | while read -r link; do
    ln -snrf "$0$(readlink "$link")" "$link"
done
"#;

/// The compiler's options: none if this machine is of that release.
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
    // The compiler would look beside itself first, where this machine's are.
    let libraries = tree.join("usr/lib/x86_64-linux-gnu");
    Ok(vec![format!("--sysroot={}", tree.display()), format!("-B{}", libraries.display())])
}
