// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs `perfctr`.

use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

pub const PERFCTR: &str = "/work/perfctr";

pub fn run(words: &[&str]) -> Result<Output> {
    Command::new(PERFCTR).args(words).output().context(PERFCTR)
}

/// Returns what the command writes to its standard output.
pub fn printed(words: &[&str]) -> Result<String> {
    let output = run(words)?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{words:?}: {}: {error}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
