// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Suites, and what came of their tests.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::machine::{self, Boots, Outcome, Spec, Status};

/// What a suite needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Any Linux machine.
    Model,
    /// The testbed's virtual machine.
    Vm,
    /// The same, for longer than the usual run may take: in the long tier, or where it is named.
    Long,
}

/// How much of the same is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Volume {
    /// What fits the time that the whole run may take.
    #[default]
    Usual,
    /// More rounds of it: `--tier long`.
    Long,
}

impl Volume {
    /// The variable that tells programs in the guest, and those of the model tier.
    const VARIABLE: &str = "PERFCTR_VOLUME";

    /// The number of rounds.
    pub fn pick<T>(self, usual: T, long: T) -> T {
        match self {
            Self::Usual => usual,
            Self::Long => long,
        }
    }

    /// For the environment of the programs that a suite runs, as (name, value).
    pub fn variable(self) -> (&'static str, &'static str) {
        (Self::VARIABLE, self.pick("usual", "long"))
    }
}

/// Several tests that share their boots.
pub struct Suite {
    /// Its name, which starts the names of its tests.
    pub name: &'static str,
    /// What it needs.
    pub tier: Tier,
    /// The machine that it is run on, if that is not the usual one: a file in `xtask/profiles`.
    pub topology: Option<&'static str>,
    /// Runs them. An error counts as one failed test.
    pub run: fn(&mut Report) -> Result<()>,
}

impl Suite {
    /// Of the model tier.
    pub const fn model(name: &'static str, run: fn(&mut Report) -> Result<()>) -> Self {
        Self { name, tier: Tier::Model, topology: None, run }
    }

    /// Of the tier that boots machines.
    pub const fn vm(name: &'static str, run: fn(&mut Report) -> Result<()>) -> Self {
        Self { name, tier: Tier::Vm, topology: None, run }
    }

    /// Of the long tier.
    pub const fn long(name: &'static str, run: fn(&mut Report) -> Result<()>) -> Self {
        Self { name, tier: Tier::Long, topology: None, run }
    }

    /// The same on another machine.
    pub const fn on(
        topology: &'static str,
        name: &'static str,
        run: fn(&mut Report) -> Result<()>,
    ) -> Self {
        Self { name, tier: Tier::Long, topology: Some(topology), run }
    }
}

/// The tests of one suite that have run so far.
#[derive(Default)]
pub struct Report {
    /// How much the suite is to run.
    pub volume: Volume,
    /// The suite's name.
    pub suite: &'static str,
    /// The machine that it is run on, where it has a choice.
    pub topology: &'static str,
    /// How many tests passed.
    pub passed: u32,
    /// The names of those that failed.
    pub failed: Vec<String>,
    /// What the summary should say, too.
    pub notes: Vec<String>,
    /// What the suite has taken.
    pub time: Duration,
    /// What it has booted.
    pub boots: Boots,
}

impl Report {
    /// Runs a suite.
    pub fn of(suite: &Suite, volume: Volume) -> Self {
        println!("suite {}", suite.name);
        let topology = suite.topology.unwrap_or("pv");
        let mut report = Self { volume, suite: suite.name, topology, ..Self::default() };
        let (start, before) = (Instant::now(), machine::boots());
        if let Err(error) = (suite.run)(&mut report) {
            report.record("the suite as a whole", Err(error), start.elapsed());
        }
        if report.passed == 0 && report.failed.is_empty() {
            report.record("the suite as a whole", Err(anyhow::anyhow!("no test ran")), report.time);
        }
        report.time = start.elapsed();
        // What boots meanwhile belongs to the suites that run beside this one.
        if suite.tier != Tier::Model {
            report.boots = machine::boots().since(&before);
        }
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

    /// Says something at the end of the whole run, such as how much of something it was.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(format!("{}: {}", self.suite, text.into()));
    }

    /// Boots `spec`, runs `program` of the package `vm-tests` in the guest, and takes over its
    /// results: every line `ok NAME` and `FAILED NAME...` of its standard output is a test, every
    /// line `note TEXT` is for the summary.
    pub fn program(&mut self, spec: Spec, program: &str) -> Result<()> {
        self.program_outcome(spec, program).map(drop)
    }

    /// The same; gives the run, for further tests.
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

/// The console of a run says this.
pub fn says(outcome: &Outcome, what: &str) -> Result<()> {
    let console = fs::read(&outcome.console)?;
    let console = String::from_utf8_lossy(&console);
    ensure!(console.contains(what), "the console does not say `{what}`\n{console}");
    Ok(())
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

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("          {line}")).collect::<Vec<_>>().join("\n")
}
