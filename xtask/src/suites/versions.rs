// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the releases of Xen and the versions of Linux that the project supports: each pair is
//! booted, and counts and samples in Xen's control domain, or in a guest of KVM. PVH and HVM
//! tenants of Xen do so with each version of Linux.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::artefacts::kernel::{self, RT, USUAL};
use crate::artefacts::{kvm, rootfs, xen};
use crate::machine::{self, Outcome, Spec, Status};
use crate::suites::pmu;
use crate::suites::report::{Report, Volume, all};
use crate::suites::tenants;
use crate::tools::sh;

/// The questions that each pair is asked: a word for the table, the test's name, and the command.
const ASKED: [(&str, &str, &str); 3] = [
    (
        "counts",
        "every reading of competing threads is exact",
        "/work/counting --regions 150 --reads 20000",
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

/// The programs whose work the module puts off until it may sleep, in a kernel with PREEMPT_RT.
/// They test records and their readers, threads that end while they sample, signals that are
/// ignored, and that the module can be unloaded. `hostile` and `lifecycle` also fail if the kernel
/// has complained of anything since it booted. Each boot fails as soon as the kernel's console
/// reports a bug, such as a lock that sleeps in an interrupt.
const PUT_OFF: &str = "failed=0; for tests in '/work/overflow --records' '/work/overflow --ends' \
                       '/work/hostile --only signals' /work/lifecycle; do \
                       $tests || failed=1; done; exit $failed";

/// The kinds of tenants, as the table names them.
const PVH: &str = "PVH";
const HVM: &str = "HVM";

/// Boots each pair of the suite's machine in the long run. The usual run compares the book's tables
/// with the pairs that there are.
pub fn run(report: &mut Report) -> Result<()> {
    let kinds: &[Kind] =
        if report.topology == "pv" { &[Kind::Xen, Kind::Tenant] } else { &[Kind::Kvm] };
    kinds.iter().try_for_each(|kind| run_kind(report, *kind))
}

/// Boots Debian 12's kernel with PREEMPT_RT twice, as the control domain of Xen or as a guest of
/// KVM. It does what each pair does, and then what the module puts off there.
pub fn real_time(report: &mut Report) -> Result<()> {
    let (kind, release) =
        if report.topology == "pv" { (Kind::Xen, xen::UPSTREAM) } else { (Kind::Kvm, USUAL) };
    let pair = (release.to_owned(), RT.to_owned());
    boot(report, kind, &pair)?;
    let mut spec = kind.spec(&pair, PUT_OFF)?;
    spec.add_program("vm-tests", "overflow")?;
    spec.add_program("vm-tests", "hostile")?;
    report.program(spec, "lifecycle")
}

fn run_kind(report: &mut Report, kind: Kind) -> Result<()> {
    let pairs = kind.pairs()?;
    let name = kind.name();
    if report.volume == Volume::Usual {
        let test = format!("the book's table of {name} has every pair");
        report.test(&test, || named(kind, &pairs));
        return Ok(());
    }
    let mut table = kind.head();
    for pair in &pairs {
        let can = match kind {
            Kind::Tenant => boot_tenant(report, pair)?,
            Kind::Xen | Kind::Kvm => boot(report, kind, pair)?,
        };
        table += &row(pair, &can);
    }
    println!("{table}");
    report.test(&format!("the book's table of {name} is this one"), || {
        ensure!(page()?.contains(&table), "{table}");
        Ok(())
    });
    Ok(())
}

/// The program that contains the driver, and its guest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Xen. The guest is its control domain.
    Xen,
    /// The usual Xen, with a PVH or an HVM tenant whose Linux is also that of the control domain.
    Tenant,
    /// Linux with KVM.
    Kvm,
}

/// A release of the program that contains the driver, or a kind of tenant, and a version of the
/// guest's Linux.
type Pair = (String, String);

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Xen => "Xen",
            Self::Tenant => "Tenant",
            Self::Kvm => "KVM on Linux",
        }
    }

    /// Returns the head of the book's table.
    fn head(self) -> String {
        let guest = if self == Self::Kvm { "Guest's Linux" } else { "Linux" };
        format!("| {} | {guest} | |\n|---|---|---|\n", self.name())
    }

    /// Returns the pairs that can count.
    fn pairs(self) -> Result<Vec<Pair>> {
        match self {
            Self::Xen => pairs_of_xen(),
            Self::Tenant => pairs_of_tenants(),
            Self::Kvm => Ok(pairs_of_kvm(kvm::releases()?)),
        }
    }

    /// Describes a machine of this pair that runs a script in the guest.
    fn spec(self, (release, version): &Pair, script: &str) -> Result<Spec> {
        let topology = if self == Self::Xen { "pv" } else { "kvm" };
        let mut spec = Spec::new(topology, ["sh", "-c", script])?.with_cost()?;
        spec.linux = (version != USUAL).then(|| version.clone());
        spec.timeout = Duration::from_secs(900);
        if self == Self::Xen {
            spec.hypervisor()?.release = Some(release.clone());
        } else {
            spec.host()?.release = Some(release.clone());
            // It is emulated twice.
            spec.timeout *= 2;
        }
        Ok(spec)
    }
}

/// Returns the versions that the tables have beside the usual one.
fn versions() -> Result<Vec<String>> {
    let mut versions = kernel::versions()?;
    versions.retain(|version| version != RT);
    Ok(versions)
}

/// Returns every kernel with the usual Xen, and with the Xen that its Debian has.
fn pairs_of_xen() -> Result<Vec<Pair>> {
    let mut versions = versions()?;
    versions.push(USUAL.to_owned());
    let mut pairs = Vec::new();
    for version in sorted(versions) {
        let beside = if version == USUAL { None } else { kernel::xen_beside(&version)? };
        pairs.push((xen::UPSTREAM.to_owned(), version.clone()));
        pairs.extend(beside.map(|release| (release, version)));
    }
    Ok(pairs)
}

/// Returns each kind of tenant with every kernel but the usual one, which other suites boot there.
fn pairs_of_tenants() -> Result<Vec<Pair>> {
    let versions = sorted(versions()?);
    let with_each =
        |kind: &'static str| versions.iter().map(move |version| (kind.to_owned(), version.clone()));
    Ok([PVH, HVM].into_iter().flat_map(with_each).collect())
}

/// Returns each of these releases of KVM with the kernel of each, among which is the usual one.
fn pairs_of_kvm(releases: Vec<String>) -> Vec<Pair> {
    let versions = sorted(releases);
    let with_each = |release: &String| {
        let release = release.clone();
        versions.iter().map(move |version| (release.clone(), version.clone()))
    };
    versions.iter().flat_map(with_each).collect()
}

/// Sorts versions by their numbers.
fn sorted(mut versions: Vec<String>) -> Vec<String> {
    versions.sort_by_key(|version| numbers(version));
    versions
}

fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

/// Boots a pair. Returns what it can do, in the table's words.
fn boot(report: &mut Report, kind: Kind, pair: &Pair) -> Result<String> {
    let mut script = "uname -r; ".to_owned();
    for (word, _, command) in ASKED {
        script += &format!("echo asked {word}; ({command}); echo status {word} $?\n");
    }
    let mut spec = kind.spec(pair, &script)?;
    spec.add_program("vm-tests", "counting")?;
    spec.add_program("vm-tests", "overflow")?;
    spec.files.push((pmu::known(pmu::ITERATIONS)?, "/work/loop".into()));
    spec.files.push((rootfs::perf()?, "/".into()));
    let outcome = machine::run(&spec)?;
    let (release, version) = pair;
    let pair = format!("{} {release}, Linux {version}", kind.name());
    let printed = String::from_utf8_lossy(&outcome.stdout).into_owned();
    report.note(format!("{pair}: {}", printed.lines().next().unwrap_or("did not boot")));
    let mut can = Vec::new();
    for (word, name, _) in ASKED {
        let result = answered(&outcome, &printed, word);
        if result.is_ok() {
            can.push(word);
        }
        report.record(&format!("{pair}: {name}"), result, Duration::ZERO);
    }
    Ok(if can.is_empty() { "-".to_owned() } else { can.join(", ") })
}

/// Fails unless the machine has answered one question as it should.
fn answered(outcome: &Outcome, printed: &str, word: &str) -> Result<()> {
    ensure!(outcome.status == Status::Exited(0), "{}", all(outcome));
    let (_, rest) = printed.split_once(&format!("asked {word}\n")).context("it was not asked")?;
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

/// Boots a tenant, which counts and samples, by itself and by perf, beside a control domain that
/// counts. Returns what it can do, in the table's words.
fn boot_tenant(report: &mut Report, (kind, version): &Pair) -> Result<String> {
    let mut spec = tenants::demo("pvh", kind == HVM, Some(version.clone()))?;
    spec.timeout *= 2;
    let failed = report.failed.len();
    report.program(spec, "tenants")?;
    let can: Vec<&str> = ASKED.iter().map(|(word, ..)| *word).collect();
    Ok(if report.failed.len() == failed { can.join(", ") } else { "-".to_owned() })
}

fn row((release, version): &Pair, can: &str) -> String {
    format!("| {release} | {version} | {can} |\n")
}

fn page() -> Result<String> {
    Ok(fs::read_to_string(sh::project().join("docs/supported.md"))?)
}

/// Fails unless the table has every pair, whatever its last column says.
fn named(kind: Kind, pairs: &[Pair]) -> Result<()> {
    let page = page()?;
    let head = kind.head();
    let (_, rows) = page.split_once(&head).context("docs/supported.md has no such table")?;
    let rows: Vec<&str> = rows.lines().take_while(|line| line.starts_with('|')).collect();
    ensure!(rows.len() == pairs.len(), "{} rows expected, found {}", pairs.len(), rows.len());
    for (found, pair) in rows.iter().zip(pairs) {
        let expected = row(pair, "");
        ensure!(found.starts_with(expected.trim_end_matches(" |\n")), "{expected}{found}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_release_of_kvm_has_the_kernel_of_each_as_its_guest() {
        let releases = ["7.3", "6.12", "6.1"].map(str::to_owned).to_vec();
        let expected = [
            ("6.1", "6.1"),
            ("6.1", "6.12"),
            ("6.1", "7.3"),
            ("6.12", "6.1"),
            ("6.12", "6.12"),
            ("6.12", "7.3"),
            ("7.3", "6.1"),
            ("7.3", "6.12"),
            ("7.3", "7.3"),
        ];
        assert_eq!(pairs_of_kvm(releases), expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }
}
