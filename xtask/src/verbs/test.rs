// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask test`: every test, by tier, with counts and what each suite cost.
//!
//! Tiers are named by what they need: `model` runs on any Linux machine, `vm` boots the testbed.
//! `long` is both with more rounds of the same. A suite that cannot run fails; nothing is skipped
//! in silence.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::suites::SUITES;
use crate::suites::report::{Report, Suite, Tier, Volume};

/// Which tests to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Choice {
    /// What runs on any Linux machine.
    Model,
    /// What boots the testbed's virtual machine.
    Vm,
    /// Everything, with more rounds of the same; takes hours.
    Long,
}

/// Runs the tests and prints how many there were, how many failed, and what they cost.
#[derive(clap::Args)]
pub struct Args {
    /// Only this tier, or both with more rounds.
    #[arg(long)]
    tier: Option<Choice>,
    /// Only suites whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    suite: Option<String>,
}

impl Args {
    fn wants(&self, suite: &Suite) -> bool {
        let tier = match self.tier {
            Some(Choice::Model) => suite.tier == Tier::Model,
            Some(Choice::Vm) => suite.tier == Tier::Vm,
            Some(Choice::Long) | None => true,
        };
        tier && suite.name.contains(self.suite.as_deref().unwrap_or_default())
    }

    fn volume(&self) -> Volume {
        if self.tier == Some(Choice::Long) { Volume::Long } else { Volume::Usual }
    }
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<ExitCode> {
    let wanted: Vec<&Suite> = SUITES.iter().filter(|suite| args.wants(suite)).collect();
    if wanted.is_empty() {
        let known: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        bail!("no such suite; there are: {}", known.join(", "));
    }
    let reports: Vec<Report> =
        wanted.into_iter().map(|suite| Report::of(suite, args.volume())).collect();
    let failed = reports.iter().any(|report| !report.failed.is_empty());
    print!("{}", summary(&reports));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A table of the suites, what they have to say, and the totals.
fn summary(reports: &[Report]) -> String {
    let mut text =
        format!("\n{:<18}{:>7}{:>8}{:>7}{:>10}\n", "suite", "passed", "failed", "boots", "seconds");
    let (mut passed, mut failed, mut boots, mut seconds) = (0, 0, 0, 0.0);
    for report in reports {
        let (failures, time) = (report.failed.len(), report.time.as_secs_f64());
        let (suite, ok, booted) = (report.suite, report.passed, report.boots.count);
        text += &format!("{suite:<18}{ok:>7}{failures:>8}{booted:>7}{time:>10.0}\n");
        passed += ok;
        failed += failures;
        boots += booted;
        seconds += time;
    }
    text += &format!("{:<18}{passed:>7}{failed:>8}{boots:>7}{seconds:>10.0}\n", "total");
    for note in reports.iter().flat_map(|report| &report.notes) {
        text += &format!("{note}\n");
    }
    for report in reports {
        for log in &report.boots.repeated {
            let log = log.display();
            text += &format!("repeated: {}: a boot that never came up: {log}\n", report.suite);
        }
    }
    let repeated: usize = reports.iter().map(|report| report.boots.repeated.len()).sum();
    text += &format!("{repeated} of {boots} boots repeated\n");
    for name in reports.iter().flat_map(|report| &report.failed) {
        text += &format!("failed: {name}\n");
    }
    text + &format!("{passed} passed, {failed} failed\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::machine::Boots;

    #[test]
    fn the_summary_hides_nothing() {
        let quick = Report {
            suite: "quick",
            passed: 3,
            notes: vec!["quick: 125 simulated steps".into()],
            time: Duration::from_secs(2),
            ..Report::default()
        };
        let slow = Report {
            suite: "slow",
            passed: 1,
            failed: vec!["slow: a name".into()],
            time: Duration::from_secs(90),
            boots: Boots { count: 4, repeated: vec!["/logs/1".into()], ..Boots::default() },
            ..Report::default()
        };
        let text = summary(&[quick, slow]);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "suite              passed  failed  boots   seconds",
                "quick                   3       0      0         2",
                "slow                    1       1      4        90",
                "total                   4       1      4        92",
                "quick: 125 simulated steps",
                "repeated: slow: a boot that never came up: /logs/1",
                "1 of 4 boots repeated",
                "failed: slow: a name",
                "4 passed, 1 failed",
            ]
        );
    }
}
