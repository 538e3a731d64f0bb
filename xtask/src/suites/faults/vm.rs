// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tries the faults that a suite which boots the testbed must notice: those in C, and those between
//! parts that only meet there.

use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::{Found, Verdict};
use crate::artefacts::faults::{self, Fault};
use crate::suites::report::WHOLE;

/// Tries each of the faults in a copy of its own, with the suite that it names.
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
    let said = String::from_utf8_lossy(&out.stdout);
    let text = fault.test.as_deref().unwrap_or_default();
    let found = match noticed(&said, text) {
        Some(test) if text.is_empty() => Found::By(format!("{test} (any failed test is accepted)")),
        Some(test) => Found::By(test.to_owned()),
        None if failed(&said).next().is_none() && out.status.success() => Found::Alive,
        None => {
            // This happens if other tests have failed, if the fault does not compile, or if the
            // guest does not come up.
            let why = String::from_utf8_lossy(&out.stderr);
            bail!("{}: the test that it names did not fail, but\n{said}{why}", fault.name)
        }
    };
    Ok(Verdict { fault, found, time: start.elapsed() })
}

/// Returns the names of the tests that have failed, as a run of suites prints them.
fn failed(said: &str) -> impl Iterator<Item = &str> {
    said.lines().filter_map(|line| line.strip_prefix("failed: "))
}

/// Returns the first failed test whose name contains this text. A suite that fails as a whole has
/// noticed nothing: the fault does not compile, or the guest does not come up.
fn noticed<'a>(said: &'a str, text: &str) -> Option<&'a str> {
    failed(said).find(|test| test.contains(text) && !test.ends_with(&format!(": {WHOLE}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_test_that_is_named_notices() {
        let said = "  FAILED  kvm: b (1.0 s)\n0 repeated\nfailed: kvm: a\nfailed: kvm: b\n";
        assert_eq!(noticed(said, "b"), Some("kvm: b"));
        assert_eq!(noticed(said, "c"), None);
        assert_eq!(failed(said).count(), 2);
    }

    #[test]
    fn a_suite_that_fails_as_a_whole_notices_nothing() {
        let whole = "failed: kvm: the suite as a whole\n";
        assert_eq!([noticed(whole, ""), noticed(whole, "whole")], [None; 2]);
        assert_eq!(failed(whole).count(), 1);
        assert_eq!(noticed(&format!("{whole}failed: kvm: a\n"), ""), Some("kvm: a"));
    }
}
