// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks the layout of our C and C++ by the `.clang-format` nearest to each file. It is Linux'
//! style, or Xen's if Xen builds the file.

use std::path::Path;

use anyhow::{Result, bail};

use super::tidy::{Tree, is_generated};
use crate::tools::apt;
use crate::tools::sh::{self, cmd};

/// The folders with the C that is checked. QEMU's style cannot be expressed for `testbed/qemu`,
/// whose tables are aligned by hand.
const FOLDERS: &[&str] = &[
    "guest-kmod/glue/",
    "hv-driver/glue/",
    "papi-shim/tests/c/",
    "libperfctr-rs/c/include/",
    "libperfctr-rs/c/tests/",
    "libperfctr-rs/python/tests/",
];

/// Makes clang-format check every file.
pub fn check() -> Result<()> {
    apt::install(&["clang-format"], "checking the layout of C")?;
    let tree = Tree::new(sh::project())?;
    let mut faults = Vec::new();
    for (name, text) in tree.files(&["c", "h", "cpp", "hpp"])? {
        let is_ours = FOLDERS.iter().any(|folder| name.starts_with(folder));
        if is_ours && !is_generated(&text) {
            faults.extend(first_fault(&tree.path(name)).map(|line| format!("{name}:{line}")));
        }
    }
    if !faults.is_empty() {
        bail!("layout, mended by `clang-format -i FILE`:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

/// Returns the first line of a file whose layout is not that of its style.
fn first_fault(path: &Path) -> Option<usize> {
    let printed = sh::output(cmd("clang-format", ["--dry-run", "--Werror"]).arg(path)).err()?;
    // "FILE:LINE:COLUMN: error: ..."
    let printed = format!("{printed:#}");
    let place = format!("{}:", path.display());
    // The command's own line names the file, too.
    let number = |after: &str| after.split(':').next()?.parse().ok();
    Some(printed.split(&place).find_map(number).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_style_finds_its_fault() {
        apt::install(&["clang-format"], "checking the layout of C").unwrap();
        for (style, good, bad) in [
            ("", "int f(int a)\n{\n\tif (a)\n\t\treturn 1;\n\treturn 0;\n}\n", "if ( a )"),
            (
                "hv-driver/glue/xen",
                "int f(int a)\n{\n    if ( a )\n        return 1;\n    return 0;\n}\n",
                "if (a)",
            ),
        ] {
            let dir = std::env::temp_dir().join(format!("xtask-c-style-{}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            let style = sh::project().join(style).join(".clang-format");
            fs::copy(style, dir.join(".clang-format")).unwrap();
            let file = dir.join("f.c");
            fs::write(&file, good).unwrap();
            assert_eq!(first_fault(&file), None);
            let planted = good.replace("if (a)", bad).replace("if ( a )", bad);
            fs::write(&file, planted).unwrap();
            assert_eq!(first_fault(&file), Some(3));
            fs::remove_dir_all(dir).unwrap();
        }
    }
}
