// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Lists the foreign crates that are linked into distributed files, and checks that their licences
//! allow it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use spdx::{Expression, LicenseReq, ParseMode};

use crate::tools::{sh, toolchain};

/// The packages that are distributed: programs, libraries, and the objects for hypervisor and
/// kernel.
const DISTRIBUTED: [&str; 6] = [
    "perfctr",
    "papi-shim",
    "libperfctr-rs",
    "libperfctr-counts",
    "hv-driver-ffi",
    "guest-kmod-ffi",
];

/// SPDX's names of the licences that require only notices, or the source of the crate itself
/// (CDDL-1.0, which excludes the GPL: the command is distributed under MIT).
const ALLOWED: [&str; 8] =
    ["0BSD", "Apache-2.0", "BSD-2-Clause", "BSL-1.0", "CDDL-1.0", "MIT", "Unlicense", "Zlib"];

/// The licences allowed in code of ring 0, which is linked into programs under the GPL: they are
/// compatible with its version 2.
const IN_RING_0: [&str; 4] = ["0BSD", "BSD-2-Clause", "MIT", "Zlib"];

/// Fails if any crate's licence is not one of these.
pub fn check() -> Result<()> {
    let rules = [(&DISTRIBUTED[..], &ALLOWED[..]), (&DISTRIBUTED[4..], &IN_RING_0[..])];
    for (packages, allowed) in rules {
        for (name, licence) in linked(packages)? {
            ensure!(
                is_allowed(&licence, allowed),
                "{name} has the licence `{licence}`, expected one of {}",
                allowed.join(", ")
            );
        }
    }
    Ok(())
}

/// Returns every crate that is distributed, by name and version, with its licence.
pub fn all() -> Result<BTreeMap<String, String>> {
    linked(&DISTRIBUTED)
}

fn linked(packages: &[&str]) -> Result<BTreeMap<String, String>> {
    let mut tree = toolchain::cargo();
    tree.args(["tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none"])
        .args(["--no-dedupe", "--format", "{p}: {l}"])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .current_dir(sh::project());
    let text = sh::output(&mut tree)?;
    let mut crates = BTreeMap::new();
    // `cargo tree` prints a directory after the names of our own crates.
    for line in text.lines().filter(|line| !line.is_empty() && !line.contains(" (/")) {
        let (name, licence) = line.split_once(": ").with_context(|| format!("`{line}`"))?;
        crates.insert(name.to_owned(), licence.to_owned());
    }
    ensure!(!crates.is_empty(), "cargo tree names no crate\n{text}");
    Ok(crates)
}

/// Returns whether allowed licences satisfy an expression. A slash is the older form of `OR`, and
/// exceptions (`WITH`) only permit more.
fn is_allowed(licence: &str, allowed: &[&str]) -> bool {
    let is_known = |required: &LicenseReq| {
        required.license.id().is_some_and(|licence| allowed.contains(&licence.name))
    };
    Expression::parse_mode(licence, ParseMode::LAX)
        .is_ok_and(|expression| expression.evaluate(is_known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alternative_is_enough() {
        let allowed = |licence| is_allowed(licence, &ALLOWED);
        assert!(allowed("MIT") && allowed("GPL-3.0 OR MIT") && allowed("MIT/GPL-3.0"));
        assert!(allowed("Apache-2.0 WITH LLVM-exception") && allowed("MIT AND Zlib"));
        assert!(!allowed("") && !allowed("GPL-3.0") && !allowed("MIT AND GPL-3.0"));
        assert!(!is_allowed("Apache-2.0", &IN_RING_0));
    }

    #[test]
    fn an_alternative_within_parentheses_does_not_stand_for_the_whole() {
        let allowed = |licence| is_allowed(licence, &ALLOWED);
        assert!(allowed("(MIT OR GPL-3.0) AND Zlib") && allowed("MIT AND (Zlib OR GPL-3.0)"));
        assert!(!allowed("(MIT OR Apache-2.0) AND GPL-3.0"));
    }
}
