// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The C headers that are generated from Rust and committed; both must agree.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::tools::{sh, toolchain};

/// The header, and the package and example that print it.
const HEADERS: &[(&str, &str, &str)] =
    &[("shared-abi/include/perfctr_abi.h", "shared-abi", "c_header")];

/// Generates every header and compares it with the committed one.
pub fn check() -> Result<()> {
    for (header, package, example) in HEADERS {
        let mut generator = toolchain::cargo();
        generator
            .args(["run", "--quiet", "--package", package, "--example", example])
            .current_dir(sh::project());
        let again = format!("cargo run -p {package} --example {example} > {header}");
        agrees(&sh::project().join(header), &sh::output(&mut generator)?, &again)?;
    }
    Ok(())
}

/// Compares the committed header with what is generated; `again` is how to write it.
fn agrees(header: &Path, generated: &str, again: &str) -> Result<()> {
    let committed = fs::read_to_string(header).with_context(|| header.display().to_string())?;
    let Some(line) = first_difference(&committed, generated) else { return Ok(()) };
    ensure!(
        committed == generated,
        "{}:{line} differs from what is generated; write it again with\n  {again}",
        header.display()
    );
    Ok(())
}

/// The number of the first line that differs.
fn first_difference(one: &str, other: &str) -> Option<usize> {
    if one == other {
        return None;
    }
    let same = one.lines().zip(other.lines()).take_while(|(a, b)| a == b).count();
    Some(same + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_drifts_is_found_in_its_line() {
        let path = sh::project().join("shared-abi/include/perfctr_abi.h");
        let committed = fs::read_to_string(&path).unwrap();
        assert!(agrees(&path, &committed, "").is_ok());
        let (at, _) = committed.match_indices("4096").next().unwrap();
        let drifted = format!("{}8192{}", &committed[..at], &committed[at + 4..]);
        let line = committed[..at].lines().count();
        let error = agrees(&path, &drifted, "make it").unwrap_err().to_string();
        assert!(error.contains(&format!("perfctr_abi.h:{line} differs")), "{error}");
        assert!(error.ends_with("make it"), "{error}");
    }
}
