// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs perf's own tests, `perf test`, on Linux alone and in a guest, and compares the verdicts
//! with those in `docs/perf-test.md`.

use std::collections::BTreeMap;
use std::fs;
use std::iter::zip;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::artefacts::rootfs;
use crate::machine::{self, Spec};
use crate::suites::report::{Report, all};
use crate::tools::sh;

/// A row of the document's table.
struct Row {
    /// The test's number, and its name.
    test: String,
    /// Its verdicts on Linux alone and in the guest. There are several if they differ from run to
    /// run.
    verdicts: [String; 2],
    /// Why it does not pass.
    why: String,
}

/// Boots two machines.
pub fn run(report: &mut Report) -> Result<()> {
    let rows = documented()?;
    let numbers: Vec<&str> =
        rows.iter().filter_map(|row| row.test.split(['.', ':']).next()).collect();
    let [alone, guest] = ["native", "pv"].map(|topology| verdicts(topology, &numbers));
    let (alone, guest) = (alone?, guest?);
    for row in &rows {
        report.test(&format!("perf test {}", row.test), || {
            let found = [&alone, &guest].map(|verdicts| verdicts.get(&row.test));
            let agree = zip(found, &row.verdicts).all(|(found, documented)| {
                found.is_some_and(|found| documented.split(" or ").any(|one| one == found))
            });
            ensure!(agree, "{found:?} found, {:?} documented", row.verdicts);
            let passes = row.verdicts.iter().all(|verdict| verdict == "Ok");
            ensure!(passes || !row.why.is_empty(), "nobody says why: {:?}", row.verdicts);
            Ok(())
        });
    }
    Ok(())
}

fn documented() -> Result<Vec<Row>> {
    let text = fs::read_to_string(sh::project().join("docs/perf-test.md"))?;
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(|cell| cell.trim().to_owned()).collect();
        let [_, test, alone, guest, why, _] = <[String; 6]>::try_from(cells).ok()?;
        test.starts_with(|c: char| c.is_ascii_digit()).then_some(Row {
            test,
            verdicts: [alone, guest],
            why,
        })
    };
    let rows: Vec<Row> = text.lines().filter_map(row).collect();
    ensure!(!rows.is_empty(), "docs/perf-test.md has no table");
    Ok(rows)
}

/// Returns each test's verdict, by the test's number and name.
fn verdicts(topology: &str, numbers: &[&str]) -> Result<BTreeMap<String, String>> {
    let mut spec = Spec::new(topology, [&["perf", "test"], numbers].concat())?;
    spec.module = topology == "pv";
    spec.files.push((rootfs::perf()?, "/".into()));
    spec.timeout = Duration::from_secs(900);
    let outcome = machine::run(&spec)?;
    let printed = [&outcome.stdout[..], &outcome.stderr].concat();
    let verdict = |line: &str| {
        let (test, verdict) = line.trim().rsplit_once(" : ")?;
        Some((test.trim().to_owned(), verdict.trim().to_owned()))
    };
    let verdicts: BTreeMap<_, _> =
        String::from_utf8_lossy(&printed).lines().filter_map(verdict).collect();
    (!verdicts.is_empty()).then_some(verdicts).with_context(|| all(&outcome))
}
