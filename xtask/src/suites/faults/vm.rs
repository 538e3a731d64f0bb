// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Faults that a suite which boots the testbed must notice: those in C, and those between parts
//! that only meet there.

use std::time::Instant;

use anyhow::{Context, Result};

use super::{Found, Verdict};
use crate::artefacts::faults::{self, Fault};

/// Tries them, each in a copy of its own, by the suite that it names.
pub fn run(faults: Vec<Fault>) -> Result<Vec<Verdict>> {
    faults.into_iter().map(one).collect()
}

fn one(fault: Fault) -> Result<Verdict> {
    let suite = fault.suite.as_deref();
    let suite = suite.with_context(|| format!("{}: no suite is named", fault.name))?.to_owned();
    let copy = faults::copy_with(&fault)?;
    let start = Instant::now();
    let mut cargo = copy.cargo();
    cargo.args(["run", "--quiet", "--package", "xtask", "--", "test", "--suite", &suite]);
    let out = cargo.output().context("the suite")?;
    let text = String::from_utf8_lossy(&out.stdout);
    let failed = text.lines().find_map(|line| line.strip_prefix("failed: "));
    let found = match failed {
        Some(test) => Found::By(test.to_owned()),
        None if out.status.success() => Found::Alive,
        None => anyhow::bail!(
            "{}: the suite does not run\n{}",
            fault.name,
            String::from_utf8_lossy(&out.stderr)
        ),
    };
    Ok(Verdict { fault, found, time: start.elapsed() })
}
