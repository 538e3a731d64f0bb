// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Suites, and the results of their tests.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::machine::{self, Boots, Outcome, Spec, Status};

/// The name that is listed as failed if a suite ends with an error, or runs no test.
pub const WHOLE: &str = "the suite as a whole";

/// What a suite needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// It runs on any Linux machine.
    Model,
    /// It boots the testbed's virtual machine.
    Vm,
    /// It boots the testbed for longer than the usual run may take. It runs in the long tier, or if
    /// it is named.
    Long,
}

/// How many rounds of the same test are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Volume {
    /// The number that fits into the time that the whole run may take.
    #[default]
    Usual,
    /// More rounds, with `--tier long`.
    Long,
}

impl Volume {
    /// The variable that tells the volume to programs in the guest, and to those of the model tier.
    const VARIABLE: &str = "PERFCTR_VOLUME";

    /// Returns the number of rounds for this volume.
    pub fn pick<T>(self, usual: T, long: T) -> T {
        match self {
            Self::Usual => usual,
            Self::Long => long,
        }
    }

    /// Returns the variable for the environment of the programs that a suite runs, as (name,
    /// value).
    pub fn variable(self) -> (&'static str, &'static str) {
        (Self::VARIABLE, self.pick("usual", "long"))
    }
}

/// Several tests that share their boots.
pub struct Suite {
    /// Its name, with which the names of its tests start.
    pub name: &'static str,
    /// What it needs.
    pub tier: Tier,
    /// The machine that it is run on, a file in `xtask/profiles`, or `None` for the usual one.
    pub topology: Option<&'static str>,
    /// Whether it runs beside suites that boot, with the CPU time that these leave. Such a suite
    /// needs no machine, or one with one thread and a clock that does not go on while it waits, or
    /// needs its machine only for a short time.
    pub is_concurrent: bool,
    /// Runs the tests. An error counts as one failed test.
    pub run: fn(&mut Report) -> Result<()>,
}

impl Suite {
    /// Makes a suite of the model tier.
    pub const fn model(name: &'static str, run: fn(&mut Report) -> Result<()>) -> Self {
        Self { name, tier: Tier::Model, topology: None, is_concurrent: true, run }
    }

    /// Makes a suite of the tier that boots machines.
    pub const fn vm(name: &'static str, run: fn(&mut Report) -> Result<()>) -> Self {
        Self { name, tier: Tier::Vm, topology: None, is_concurrent: false, run }
    }

    /// Makes a suite that boots, and still runs beside the others.
    pub const fn concurrent(name: &'static str, run: fn(&mut Report) -> Result<()>) -> Self {
        Self { is_concurrent: true, ..Self::vm(name, run) }
    }

    /// Makes a suite of the long tier.
    pub const fn long(name: &'static str, run: fn(&mut Report) -> Result<()>) -> Self {
        Self { name, tier: Tier::Long, topology: None, is_concurrent: false, run }
    }

    /// Makes a suite that boots another machine than the usual one.
    pub const fn on(
        topology: &'static str,
        name: &'static str,
        run: fn(&mut Report) -> Result<()>,
    ) -> Self {
        Self { name, tier: Tier::Long, topology: Some(topology), is_concurrent: false, run }
    }
}

/// The tests of one suite that have run so far.
#[derive(Default)]
pub struct Report {
    /// How much the suite is to run.
    pub volume: Volume,
    /// The suite's name.
    pub suite: &'static str,
    /// The machine that the suite is run on, if it can run on several.
    pub topology: &'static str,
    /// How many tests passed.
    pub passed: u32,
    /// The names of the tests that failed.
    pub failed: Vec<String>,
    /// Further lines for the summary.
    pub notes: Vec<String>,
    /// The time that the suite has taken.
    pub time: Duration,
    /// The machines that it has booted.
    pub boots: Boots,
}

impl Report {
    /// Runs a suite, and returns its results.
    pub fn of(suite: &Suite, volume: Volume) -> Self {
        println!("suite {}", suite.name);
        let topology = suite.topology.unwrap_or("pv");
        let mut report = Self { volume, suite: suite.name, topology, ..Self::default() };
        let (start, before) = (Instant::now(), machine::boots());
        if let Err(error) = (suite.run)(&mut report) {
            report.record(WHOLE, Err(error), start.elapsed());
        }
        if report.passed == 0 && report.failed.is_empty() {
            report.record(WHOLE, Err(anyhow::anyhow!("no test ran")), report.time);
        }
        report.time = start.elapsed();
        report.boots = machine::boots().since(&before);
        println!("  {:.0} s", report.time.as_secs_f64());
        report
    }

    /// Runs one test.
    pub fn test(&mut self, name: &str, test: impl FnOnce() -> Result<()>) {
        let start = Instant::now();
        let result = test();
        self.record(name, result, start.elapsed());
    }

    /// Adds a test that has run, with the time it took.
    pub fn record(&mut self, name: &str, result: Result<()>, time: Duration) {
        let name = format!("{}: {name}", self.suite);
        let seconds = time.as_secs_f64();
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

    /// Adds a line to the summary at the end of the whole run, such as the number of tested cases.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(format!("{}: {}", self.suite, text.into()));
    }

    /// Adds a program's lines `note TEXT` to the summary.
    pub fn notes_of(&mut self, printed: &str) {
        printed
            .lines()
            .filter_map(|line| line.strip_prefix("note "))
            .for_each(|text| self.note(text));
    }

    /// Boots `spec`, and tests by this name that its command succeeds. Returns the run for further
    /// tests.
    pub fn succeeds(&mut self, spec: &Spec, name: &str) -> Result<Outcome> {
        let outcome = machine::run(spec)?;
        self.test(name, || {
            ensure!(outcome.status == Status::Exited(0), "{}", all(&outcome));
            Ok(())
        });
        Ok(outcome)
    }

    /// Boots `spec`, runs `program` of the package `vm-tests` in the guest, and takes over its
    /// results: every line `ok NAME` and `FAILED NAME...` of its standard output is a test, every
    /// line `note TEXT` is for the summary.
    pub fn program(&mut self, spec: Spec, program: &str) -> Result<()> {
        self.program_outcome(spec, program).map(drop)
    }

    /// Does the same as [`Report::program`], and returns the run for further tests.
    pub fn program_outcome(&mut self, mut spec: Spec, program: &str) -> Result<Outcome> {
        spec.add_program("vm-tests", program)?;
        let (name, value) = self.volume.variable();
        spec.environment.push(format!("{name}={value}").into());
        let outcome = machine::run(&spec)?;
        let stdout = String::from_utf8_lossy(&outcome.stdout).into_owned();
        let (passed, failed) = (self.passed, self.failed.len());
        for line in stdout.lines() {
            if let Some(name) = line.strip_prefix("ok ") {
                self.record(name.trim(), Ok(()), Duration::ZERO);
            } else if let Some(text) = line.strip_prefix("FAILED ") {
                let failure = anyhow::anyhow!("console log: {}", outcome.console.display());
                self.record(text.trim(), Err(failure), Duration::ZERO);
            } else if let Some(text) = line.strip_prefix("note ") {
                self.note(text);
            }
        }
        let reported = self.failed.len() > failed;
        ensure!(reported || self.passed > passed, "no test ran\n{}", all(&outcome));
        ensure!(reported || outcome.status == Status::Exited(0), "{}", all(&outcome));
        Ok(outcome)
    }
}

/// Fails unless the console of a run contains this text.
pub fn console_says(outcome: &Outcome, what: &str) -> Result<()> {
    let console = fs::read(&outcome.console)?;
    let console = String::from_utf8_lossy(&console);
    ensure!(console.contains(what), "the console does not say `{what}`\n{console}");
    Ok(())
}

/// Fails if the console of a run contains this text.
pub fn console_lacks(outcome: &Outcome, what: &str) -> Result<()> {
    let console = fs::read(&outcome.console)?;
    let console = String::from_utf8_lossy(&console);
    ensure!(!console.contains(what), "the console says `{what}`\n{console}");
    Ok(())
}

/// Returns the text between these two on a line of a run's output.
pub fn line(outcome: &Outcome, before: &str, after: &str) -> Result<String> {
    let printed = String::from_utf8_lossy(&outcome.stdout);
    let found = printed.lines().find_map(|line| line.strip_prefix(before)?.strip_suffix(after));
    found.map(str::to_owned).with_context(|| format!("no `{before}`: {}", all(outcome)))
}

/// Fails unless this log, which a program of a run has left, ends with the line of a good status.
pub fn ended_well(log: &Path, outcome: &Outcome) -> Result<()> {
    let text = fs::read_to_string(log).with_context(|| all(outcome))?;
    ensure!(text.ends_with("exit status 0\n"), "{text}");
    Ok(())
}

/// Returns everything about a run that helps to understand why it failed.
pub fn all(outcome: &Outcome) -> String {
    format!(
        "{:?}\nstdout:\n{}stderr:\n{}{}",
        outcome.status,
        String::from_utf8_lossy(&outcome.stdout),
        String::from_utf8_lossy(&outcome.stderr),
        outcome.explain().unwrap_or_default()
    )
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("          {line}")).collect::<Vec<_>>().join("\n")
}
