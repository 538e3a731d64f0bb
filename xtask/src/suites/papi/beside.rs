// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs PAPI's tests on Linux's perf events, in the guest and on the bare machine, and compares the
//! results.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;

use super::boot::{DISTURBED, Place};
use super::verdict::Verdict;
use super::{Group, groups};
use crate::artefacts::papi::{Component, Papi};
use crate::suites::report::{Report, Volume};
use crate::tools::sh;

/// Tests that take seconds, and together cover each way of counting: exact counts and overflows of
/// threads, two events that overflow, profiles, events in turns, other processes, children, CPUs
/// and modes.
const SMALL: Group = (
    DISTURBED,
    "zero zero_pthreads overflow_exact overflow_single_event overflow_twoevents profile \
     max_multiplex zero_attach attach2 inherit attach_cpu exec_overflow perf_event_user_kernel",
);

/// The head of the document's table.
const DOCUMENTED: &str = "| does not pass on either | why |\n|---|---|\n";

/// The results of one test.
#[derive(Debug, Serialize)]
struct Row {
    test: String,
    native: Verdict,
    guest: Verdict,
}

impl Row {
    /// Fails if a test that passes on the bare machine does not pass in the guest, or must be exact
    /// and is not.
    fn check(&self) -> Result<()> {
        let is_small = SMALL.1.split_whitespace().any(|test| test == self.test);
        if is_small || self.native == Verdict::Passed { self.guest.passed() } else { Ok(()) }
    }
}

/// The results of each test on both machines, and of each machine that has failed as a whole.
#[derive(Debug, Default, Serialize)]
pub struct Beside {
    rows: Vec<Row>,
    failures: Vec<String>,
}

impl Beside {
    /// Runs tests on both machines, with one boot each, and prints their verdicts.
    pub fn run(&mut self, papi: &Papi, group: &str, tests: &[&str]) -> Result<()> {
        let native = papi.run(Place::Native, group, tests)?;
        let guest = papi.run(Place::Guest, group, tests)?;
        for (name, verdict) in native[tests.len()..].iter().chain(&guest[tests.len()..]) {
            println!("{name}: {}", verdict.reason());
            self.failures.push(format!("{name}: {}", verdict.reason()));
        }
        println!("{group:<32}native      guest");
        for ((test, native), (_, guest)) in native.into_iter().zip(guest).take(tests.len()) {
            let reason = if guest.reason().is_empty() { native.reason() } else { guest.reason() };
            println!("  {test:<30}{:<12}{:<12}{reason}", native.word(), guest.word());
            self.rows.push(Row { test: test.to_owned(), native, guest });
        }
        Ok(())
    }

    /// Returns whether everything that passes on the bare machine passes in the guest.
    pub fn is_good(&self) -> bool {
        self.failures.is_empty() && self.rows.iter().all(|row| row.check().is_ok())
    }

    /// Fails if a test does not pass and the document does not say why.
    fn is_documented(&self) -> Result<()> {
        let fails = |row: &&Row| row.guest != Verdict::Passed || row.native != Verdict::Passed;
        let failing = self.rows.iter().filter(fails).map(|row| row.test.clone());
        let (found, documented) = (failing.collect::<BTreeSet<_>>(), documented()?);
        ensure!(found.is_subset(&documented), "{found:?} found, {documented:?} documented");
        Ok(())
    }

    fn count(&self, is: impl Fn(&Verdict) -> bool) -> [usize; 2] {
        let of = |side: fn(&Row) -> &Verdict| self.rows.iter().filter(|row| is(side(row))).count();
        [of(|row| &row.native), of(|row| &row.guest)]
    }
}

/// Tables for a document: how many tests there are, and which do not pass.
impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n| PAPI's tests | native | guest |\n|---|---:|---:|")?;
        let passed = self.count(|verdict| *verdict == Verdict::Passed);
        let skipped = self.count(|verdict| matches!(verdict, Verdict::Skipped(_)));
        let failed = self.count(|verdict| matches!(verdict, Verdict::Failed(_)));
        for (word, [native, guest]) in
            [("passed", passed), ("skipped themselves", skipped), ("failed", failed)]
        {
            writeln!(f, "| {word} | {native} | {guest} |")?;
        }
        writeln!(f, "\n| does not pass | native | guest | because |\n|---|---|---|---|")?;
        for row in &self.rows {
            let reason = [&row.guest, &row.native].map(Verdict::reason);
            if let Some(reason) = reason.into_iter().find(|reason| !reason.is_empty()) {
                let (native, guest) = (row.native.word(), row.guest.word());
                let reason = reason.replace('|', "/");
                writeln!(f, "| `{}` | {native} | {guest} | {reason} |", row.test)?;
            }
        }
        Ok(())
    }
}

/// Returns the tests of which `papi-shim/README.md` says that they do not pass on either machine.
fn documented() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(sh::project().join("papi-shim/README.md"))?;
    let (_, table) = text.split_once(DOCUMENTED).context("papi-shim/README.md has no table")?;
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let tests = rows.filter_map(|row| row.split('|').nth(1));
    Ok(tests.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect())
}

/// Runs a few tests, or in the long tier all.
pub fn suite(report: &mut Report) -> Result<()> {
    let papi = Papi::new(Component::PerfEvent)?;
    let mut beside = Beside::default();
    let all: Vec<&Group> = groups(papi.component).collect();
    for (group, tests) in report.volume.pick(vec![&SMALL], all) {
        beside.run(&papi, group, &tests.split_whitespace().collect::<Vec<_>>())?;
    }
    for failure in &beside.failures {
        report.record(failure, Err(anyhow!("a machine came to no good end")), Duration::ZERO);
    }
    for row in &beside.rows {
        report.test(&row.test, || row.check());
    }
    if report.volume == Volume::Long {
        println!("{beside}");
        report.test("papi-shim/README.md says what does not pass", || beside.is_documented());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_read() {
        let documented = documented().unwrap();
        for test in ["derived", "zero_shmem", "sdsc4-mpx"] {
            assert!(documented.contains(test), "{test} is not in {documented:?}");
        }
    }
}
