// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask check`: what has to hold before anything is committed.

use anyhow::{Result, bail};

use crate::checks::CHECKS;

/// Runs every check, and fails if any of them does.
pub fn run() -> Result<()> {
    let mut failed = Vec::new();
    for (name, check) in CHECKS {
        match check() {
            Ok(()) => println!("ok      {name}"),
            Err(error) => {
                println!("FAILED  {name}: {error:#}");
                failed.push(*name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} checks failed: {}", failed.len(), CHECKS.len(), failed.join(", "));
    }
    Ok(())
}
