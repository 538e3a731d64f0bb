// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks that a disk has room for the files that the tests build.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::tools::sh::{self, cmd};

const GIB: u64 = 1 << 30;

/// The room that the build directories of all tests take in the end. Unit: GiB.
const NEEDED: u64 = 20;

/// Fails if these directories cannot grow to the size that a run of all tests needs.
pub fn ensure_room(dirs: &[PathBuf]) -> Result<()> {
    let (mut built, mut free) = (0, u64::MAX);
    for dir in dirs.iter().filter(|dir| dir.exists()) {
        // Files may disappear meanwhile.
        built += number(cmd("sh", ["-c", "du -s -B1 \"$0\" 2> /dev/null; true"]).arg(dir))?;
        free = free.min(number(cmd("df", ["--output=avail", "-B1"]).arg(dir))?);
    }
    let missing = (NEEDED * GIB).saturating_sub(built);
    let names: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    ensure!(
        free >= missing,
        "expected {} GiB of free disk for what the tests build in {}, found {} GiB",
        missing.div_ceil(GIB),
        names.join(" and "),
        free / GIB
    );
    Ok(())
}

/// Returns the last number that a command prints.
fn number(command: &mut Command) -> Result<u64> {
    let printed = sh::output(command)?;
    let words = printed.split_whitespace();
    words.filter_map(|word| word.parse().ok()).next_back().with_context(|| printed.clone())
}
