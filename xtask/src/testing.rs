// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask test`: every test, by tier, with counts.
//!
//! Tiers are named by what they need: `model` runs on any Linux machine, `vm` boots the testbed. A
//! VM suite boots as few machines as it can and reports any number of tests. A suite that cannot
//! run fails; nothing is skipped in silence.

use std::process::{ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::vm::{self, Outcome, Spec};
use crate::{sh, sim, tests, toolchain};

/// What a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tier {
    /// Any Linux machine.
    Model,
    /// The testbed's virtual machine.
    Vm,
}

/// Runs the tests and prints how many there were and how many failed.
#[derive(clap::Args)]
pub struct Args {
    /// Only this tier.
    #[arg(long)]
    tier: Option<Tier>,
    /// Only VM suites whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    suite: Option<String>,
}

/// Several tests that share their boots.
pub struct Suite {
    /// Its name, which starts the names of its tests.
    pub name: &'static str,
    /// Runs them. An error counts as one failed test.
    pub run: fn(&mut Report) -> Result<()>,
}

/// The tests that have run so far in a tier.
#[derive(Default)]
pub struct Report {
    suite: &'static str,
    passed: u32,
    failed: Vec<String>,
}

impl Report {
    /// Runs one test.
    pub fn test(&mut self, name: &str, test: impl FnOnce() -> Result<()>) {
        let start = Instant::now();
        let result = test();
        self.record(name, result, start.elapsed().as_secs_f64());
    }

    fn record(&mut self, name: &str, result: Result<()>, seconds: f64) {
        let name = format!("{}: {name}", self.suite);
        match result {
            Ok(()) => {
                println!("  ok      {name} ({seconds:.1} s)");
                self.passed += 1;
            }
            Err(error) => {
                println!("  FAILED  {name} ({seconds:.1} s)\n{}", indent(&format!("{error:#}")));
                self.failed.push(name);
            }
        }
    }

    /// Boots `spec`, runs `program` of the package `vm-tests` in the guest, and takes over its
    /// results: every line `ok NAME` and `FAILED NAME...` of its standard output is a test.
    pub fn program(&mut self, mut spec: Spec, program: &str) -> Result<()> {
        let path = crate::guest::programs("vm-tests")?.join(program);
        spec.files.push((path, format!("/work/{program}")));
        let outcome = vm::run(&spec)?;
        let stdout = String::from_utf8_lossy(&outcome.stdout).into_owned();
        let (passed, failed) = (self.passed, self.failed.len());
        for line in stdout.lines() {
            if let Some(name) = line.strip_prefix("ok ") {
                self.record(name.trim(), Ok(()), 0.0);
            } else if let Some(text) = line.strip_prefix("FAILED ") {
                let failure = anyhow::anyhow!("console log: {}", outcome.console.display());
                self.record(text.trim(), Err(failure), 0.0);
            }
        }
        let reported = self.failed.len() > failed;
        ensure!(reported || self.passed > passed, "no test ran\n{}", all(&outcome));
        ensure!(reported || outcome.status == vm::Status::Exited(0), "{}", all(&outcome));
        Ok(())
    }
}

/// Everything about a run that helps to understand why it failed.
pub fn all(outcome: &Outcome) -> String {
    format!(
        "{:?}\nstdout:\n{}stderr:\n{}{}",
        outcome.status,
        String::from_utf8_lossy(&outcome.stdout),
        String::from_utf8_lossy(&outcome.stderr),
        outcome.explain().unwrap_or_default()
    )
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut tiers = Vec::new();
    let wanted = |tier| args.tier.is_none_or(|only| only == tier);
    if wanted(Tier::Model) && args.suite.is_none() {
        tiers.push((Tier::Model, model()?));
    }
    if wanted(Tier::Vm) {
        tiers.push((Tier::Vm, vm_suites(args.suite.as_deref().unwrap_or_default())));
    }
    Ok(summary(&tiers))
}

fn vm_suites(filter: &str) -> Report {
    let mut report = Report::default();
    for suite in tests::SUITES.iter().filter(|suite| suite.name.contains(filter)) {
        report.suite = suite.name;
        println!("suite {}", suite.name);
        let start = Instant::now();
        if let Err(error) = (suite.run)(&mut report) {
            report.record("the suite as a whole", Err(error), start.elapsed().as_secs_f64());
        }
        println!("  {:.0} s", start.elapsed().as_secs_f64());
    }
    report
}

/// The workspace's own tests, run by cargo; their results are counted from what it prints.
fn model() -> Result<Report> {
    let mut report = Report { suite: "model", ..Report::default() };
    let mut cargo = toolchain::cargo();
    cargo.args(["test", "--workspace", "--no-fail-fast"]).current_dir(sh::project());
    let out = cargo.stderr(Stdio::inherit()).output().context("cargo test")?;
    let text = String::from_utf8_lossy(&out.stdout);
    print!("{text}");
    for line in text.lines() {
        let Some(result) = line.strip_prefix("test ") else { continue };
        if let Some(name) = result.strip_suffix(" ... FAILED") {
            report.failed.push(name.to_owned());
        } else if result.ends_with(" ... ok") {
            report.passed += 1;
        }
    }
    if !out.status.success() && report.failed.is_empty() {
        report.failed.push(format!("cargo test: {}", out.status));
    }
    sim::test(&mut report);
    Ok(report)
}

fn summary(tiers: &[(Tier, Report)]) -> ExitCode {
    println!("\ntier     tests  passed  failed");
    let (mut passed, mut failed) = (0, 0);
    for (tier, report) in tiers {
        let name = format!("{tier:?}").to_lowercase();
        let failures = report.failed.len() as u32;
        println!("{name:<8} {:>5}  {:>6}  {failures:>6}", report.passed + failures, report.passed);
        passed += report.passed;
        failed += failures;
    }
    for name in tiers.iter().flat_map(|(_, report)| &report.failed) {
        println!("failed: {name}");
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("          {line}")).collect::<Vec<_>>().join("\n")
}
