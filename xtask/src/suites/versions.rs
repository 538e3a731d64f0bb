// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the releases of Xen and the versions of Linux that the project supports: each pair is
//! booted, and counts and samples in the control domain.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::artefacts::kernel::{self, USUAL};
use crate::artefacts::{rootfs, xen};
use crate::machine::{self, Outcome, Spec, Status};
use crate::suites::pmu;
use crate::suites::report::{Report, Volume, all};
use crate::tools::sh;

/// The questions that each pair is asked: a word for the table, the test's name, and the command.
const ASKED: [(&str, &str, &str); 3] = [
    (
        "counts",
        "every reading of competing threads is exact",
        "/work/counting --regions 150 --reads 2000",
    ),
    ("samples", "every overflow reaches its own thread", "/work/overflow --rounds 1"),
    (
        "perf",
        "perf stat is exact, and perf record has its samples",
        "perf stat -x, -e instructions:u,branches:u /work/loop 2>&1; \
         perf record -q -e instructions:u -c 10007 -o /tmp/data /work/loop && \
         echo \"$(perf script -i /tmp/data -F event | wc -l) samples\"",
    ),
];

/// Boots each pair in the long run. The usual run compares the book's table with the pairs that
/// there are.
pub fn run(report: &mut Report) -> Result<()> {
    let pairs = pairs()?;
    if report.volume == Volume::Usual {
        report.test("the book's table has every pair", || named(&pairs));
        return Ok(());
    }
    let mut table = HEAD.to_owned();
    for pair in &pairs {
        table += &row(pair, &boot(report, pair)?);
    }
    println!("{table}");
    report.test("the book's table is this one", || {
        ensure!(page()?.contains(&table), "{table}");
        Ok(())
    });
    Ok(())
}

/// A release of Xen and a version of Linux.
type Pair = (String, String);

/// Returns every kernel with the usual Xen, and with the Xen that its Debian has.
fn pairs() -> Result<Vec<Pair>> {
    let mut versions = kernel::versions()?;
    versions.push(USUAL.to_owned());
    let mut pairs = Vec::new();
    for version in sorted(versions) {
        let beside = if version == USUAL { None } else { kernel::xen_beside(&version)? };
        pairs.push((xen::UPSTREAM.to_owned(), version.clone()));
        pairs.extend(beside.map(|release| (release, version)));
    }
    Ok(pairs)
}

/// Sorts versions by their numbers.
fn sorted(mut versions: Vec<String>) -> Vec<String> {
    versions.sort_by_key(|version| {
        version.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>()
    });
    versions
}

/// Boots a pair. Returns what it can do, in the table's words.
fn boot(report: &mut Report, (release, version): &Pair) -> Result<String> {
    let mut script = String::new();
    for (word, _, command) in ASKED {
        script += &format!("echo asked {word}; ({command}); echo status {word} $?\n");
    }
    let mut spec = Spec::new("pv", ["sh", "-c", &format!("uname -r; {script}")])?.with_cost()?;
    spec.linux = (version != USUAL).then(|| version.clone());
    spec.hypervisor()?.release = Some(release.clone());
    spec.timeout = Duration::from_secs(900);
    spec.add_program("vm-tests", "counting")?;
    spec.add_program("vm-tests", "overflow")?;
    spec.files.push((pmu::known(pmu::ITERATIONS)?, "/work/loop".into()));
    spec.files.push((rootfs::perf()?, "/".into()));
    let outcome = machine::run(&spec)?;
    let pair = format!("Xen {release}, Linux {version}");
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    report.note(format!("{pair}: {}", said.lines().next().unwrap_or("did not boot")));
    let mut can = Vec::new();
    for (word, name, _) in ASKED {
        let result = answered(&outcome, &said, word);
        if result.is_ok() {
            can.push(word);
        }
        report.record(&format!("{pair}: {name}"), result, Duration::ZERO);
    }
    Ok(if can.is_empty() { "-".to_owned() } else { can.join(", ") })
}

/// Fails unless the machine has answered one question as it should.
fn answered(outcome: &Outcome, said: &str, word: &str) -> Result<()> {
    ensure!(outcome.status == Status::Exited(0), "{}", all(outcome));
    let (_, rest) = said.split_once(&format!("asked {word}\n")).context("it was not asked")?;
    let status = format!("status {word} 0\n");
    let (answer, _) = rest.split_once(&status).with_context(|| format!("failed: {rest}"))?;
    if word == "perf" {
        let samples = format!("{} samples", (2 * pmu::ITERATIONS + 4) / 10_007);
        for line in [pmu::PERF_LINES[0], pmu::PERF_LINES[1], &samples] {
            ensure!(answer.contains(line), "`{line}` expected\n{answer}");
        }
    }
    Ok(())
}

/// The head of the book's table.
const HEAD: &str = "| Xen | Linux | |\n|---|---|---|\n";

fn row((release, version): &Pair, can: &str) -> String {
    format!("| {release} | {version} | {can} |\n")
}

fn page() -> Result<String> {
    Ok(fs::read_to_string(sh::project().join("docs/supported.md"))?)
}

/// Fails unless the table has every pair, whatever its last column says.
fn named(pairs: &[Pair]) -> Result<()> {
    let page = page()?;
    let (_, rows) = page.split_once(HEAD).context("docs/supported.md has no such table")?;
    let rows: Vec<&str> = rows.lines().take_while(|line| line.starts_with('|')).collect();
    ensure!(rows.len() == pairs.len(), "{} rows expected, found {}", pairs.len(), rows.len());
    for (found, pair) in rows.iter().zip(pairs) {
        let expected = row(pair, "");
        ensure!(found.starts_with(expected.trim_end_matches(" |\n")), "{expected}{found}");
    }
    Ok(())
}
