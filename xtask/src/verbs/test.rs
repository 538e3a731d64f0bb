// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask test` runs every test, by tier, and says how many there were and what each suite
//! cost.
//!
//! Tiers are named by what they need: `model` runs on any Linux machine, `vm` boots the testbed.
//! `long` runs both with more rounds of the same tests. A suite that cannot run fails; nothing is
//! skipped silently.

use std::collections::BTreeSet;
use std::fs;
use std::iter;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;

use crate::machine::HostLinux;
use crate::suites::report::{Report, Suite, Tier, Volume};
use crate::suites::{SUITES, changed};
use crate::tools::sh::{self, cmd};
use crate::tools::{cache, disk};

/// The tests that can be chosen by tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Choice {
    /// Run what needs no more than a Linux machine.
    Model,
    /// Run what boots the testbed's virtual machine.
    Vm,
    /// Run everything, with more rounds of the same; this takes hours.
    Long,
}

/// Runs the tests and prints how many there were, how many failed, and what they cost.
#[derive(clap::Args)]
pub struct Args {
    /// Run only this tier, or both with more rounds.
    #[arg(long)]
    tier: Option<Choice>,
    /// Run only the suite of this name, or if there is none, those whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    suite: Option<String>,
    /// Run only suites that can be broken by what has changed since this commit, or since the last
    /// one.
    #[arg(long, value_name = "COMMIT", num_args = 0..=1, default_missing_value = "HEAD")]
    changed: Option<String>,
    /// Run only suites that are run on this machine, a file in xtask/profiles, in place of the
    /// usual one.
    #[arg(long, value_name = "NAME")]
    topology: Option<String>,
    #[command(flatten)]
    host_linux: HostLinux,
}

impl Args {
    fn wants(&self, suite: &Suite) -> bool {
        let text = self.suite.as_deref().unwrap_or_default();
        let is_named = match (&self.topology, suite.topology) {
            (None, None) => !text.is_empty(),
            // A suite that is named is run on its usual machine.
            (None, Some(_)) => text == suite.name,
            (Some(wanted), topology) if topology == Some(wanted) => true,
            _ => return false,
        };
        let tier = match self.tier {
            Some(Choice::Model) => suite.tier == Tier::Model,
            Some(Choice::Vm) => suite.tier == Tier::Vm,
            Some(Choice::Long) => text.is_empty() || is_named,
            None => suite.tier != Tier::Long || is_named,
        };
        tier && self.is_named(suite)
    }

    /// Returns whether the user wants a suite that a change can break.
    fn wants_of_table(&self, suite: &Suite) -> bool {
        let is_of_tier = match self.tier {
            Some(Choice::Model) => suite.tier == Tier::Model,
            Some(Choice::Vm) => suite.tier != Tier::Model,
            Some(Choice::Long) | None => true,
        };
        let is_there = self.topology.is_none() || suite.topology == self.topology.as_deref();
        is_of_tier && is_there && self.is_named(suite)
    }

    /// Returns whether `--suite` asks for this suite: by its name, or by a part of its name. That
    /// part must not be the name of a suite on the machine that the user wants.
    fn is_named(&self, suite: &Suite) -> bool {
        let text = self.suite.as_deref().unwrap_or_default();
        let is_there = |other: &&Suite| match &self.topology {
            None => true,
            wanted => other.topology == wanted.as_deref(),
        };
        let is_a_suite = SUITES.iter().filter(is_there).any(|other| other.name == text);
        suite.name == text || !is_a_suite && suite.name.contains(text)
    }

    fn volume(&self) -> Volume {
        if self.tier == Some(Choice::Long) { Volume::Long } else { Volume::Usual }
    }
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<ExitCode> {
    args.host_linux.choose();
    let broken = args.changed.as_deref().map(changed::since).transpose()?;
    if broken.as_ref().is_some_and(BTreeSet::is_empty) {
        println!("nothing has changed");
        return Ok(ExitCode::SUCCESS);
    }
    let is_wanted = |suite: &&Suite| match &broken {
        // The table names the suites to run. Some of them are of the long tier.
        Some(broken) => broken.contains(suite.name) && args.wants_of_table(suite),
        None => args.wants(suite),
    };
    let wanted: Vec<&Suite> = SUITES.iter().filter(is_wanted).collect();
    if wanted.is_empty() {
        let known: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        bail!("no such suite; there are: {}", known.join(", "));
    }
    if args.suite.is_none() && broken.is_none() {
        disk::ensure_room(&[sh::project().join("target"), cache::root()?])?;
    }
    let reports = reports(&wanted, args.volume())?;
    let failed = reports.iter().any(|report| !report.failed.is_empty());
    print!("\n{}", summary(&reports));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs suites, in order. Concurrent ones run beside the others, on the CPUs that these leave idle:
/// while a machine boots, or is emulated deterministically, it keeps only one CPU busy. When the
/// others have ended, two concurrent ones run at a time.
fn reports(wanted: &[&Suite], volume: Volume) -> Result<Vec<Report>> {
    let (beside, booting): (Vec<&Suite>, Vec<&Suite>) =
        wanted.iter().partition(|suite| suite.is_concurrent);
    let run = |suites: &mut dyn Iterator<Item = &Suite>| -> Vec<Report> {
        suites.map(|suite| Report::of(suite, volume)).collect()
    };
    if beside.is_empty() || booting.is_empty() {
        return Ok(run(&mut wanted.iter().copied()));
    }
    let queue = Mutex::new(beside.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        let idle = scope.spawn(|| {
            yield_to_others()?;
            anyhow::Ok(run(&mut iter::from_fn(next)))
        });
        let booted = run(&mut booting.into_iter());
        let last = run(&mut iter::from_fn(next));
        let mut reports = idle.join().map_err(|_| anyhow!("a suite has panicked"))??;
        reports.extend(last);
        reports.extend(booted);
        Ok(reports)
    })
}

/// Lets this thread, and all that it starts from now on, use only CPU time that nobody else wants.
fn yield_to_others() -> Result<()> {
    let thread = fs::read_link("/proc/thread-self")?;
    let id = thread.file_name().context("a thread has a number")?;
    sh::output(cmd("renice", ["-n", "19", "-p"]).arg(id)).map(drop)
}

/// Makes a table of the suites, with their notes and the totals. `booting` is the part of the
/// seconds that went by until guests were up.
fn summary(reports: &[Report]) -> String {
    let mut text = String::new();
    let mut row = |suite: &str, cells: [String; 5]| {
        let [passed, failed, boots, booting, seconds] = cells;
        text += &format!("{suite:<18}{passed:>7}{failed:>8}{boots:>7}{booting:>9}{seconds:>10}\n");
    };
    row("suite", ["passed", "failed", "boots", "booting", "seconds"].map(str::to_owned));
    let cells = |[passed, failed, boots]: [u32; 3], booting: Duration, time: Duration| {
        let whole = |time: Duration| format!("{:.0}", time.as_secs_f64());
        let [passed, failed, boots] = [passed, failed, boots].map(|count| count.to_string());
        [passed, failed, boots, whole(booting), whole(time)]
    };
    let (mut passed, mut failed, mut boots) = (0, 0, 0);
    let (mut booting, mut time) = (Duration::ZERO, Duration::ZERO);
    for report in reports {
        let counts = [report.passed, report.failed.len() as u32, report.boots.count];
        row(report.suite, cells(counts, report.boots.time, report.time));
        passed += report.passed;
        failed += report.failed.len() as u32;
        boots += report.boots.count;
        booting += report.boots.time;
        time += report.time;
    }
    row("total", cells([passed, failed, boots], booting, time));
    for note in reports.iter().flat_map(|report| &report.notes) {
        text += &format!("{note}\n");
    }
    for report in reports {
        for repeat in &report.boots.repeated {
            text += &format!("{}: {repeat}\n", report.suite);
        }
    }
    let repeated: usize = reports.iter().map(|report| report.boots.repeated.len()).sum();
    text += &format!("{repeated} repeated\n");
    for name in reports.iter().flat_map(|report| &report.failed) {
        text += &format!("failed: {name}\n");
    }
    text + &format!("{passed} passed, {failed} failed\n")
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::machine::{Boots, Repeat};

    #[test]
    fn what_takes_long_is_run_where_it_is_asked_for() {
        let slow = Suite::long("slow", |_| Ok(()));
        let args = |tier, suite: Option<&str>| Args {
            tier,
            suite: suite.map(str::to_owned),
            changed: None,
            topology: None,
            host_linux: HostLinux::default(),
        };
        let wants = |tier, suite| args(tier, suite).wants(&slow);
        assert!(wants(Some(Choice::Long), None) && wants(None, Some("slow")));
        assert!(!wants(None, None) && !wants(Some(Choice::Vm), None));
    }

    #[test]
    fn another_machine_is_booted_where_it_is_asked_for() {
        let usual = Suite::vm("slow", |_| Ok(()));
        let other = Suite::on("kvm", "slow-kvm", |_| Ok(()));
        let wanted = |topology: Option<&str>, suite: &str| {
            let [topology, suite] = [topology, Some(suite)].map(|text| text.map(str::to_owned));
            let args = |tier| Args {
                tier,
                suite: suite.clone(),
                changed: None,
                topology: topology.clone(),
                host_linux: HostLinux::default(),
            };
            let [one, long] = [args(None), args(Some(Choice::Long))]
                .map(|args| [args.wants(&usual), args.wants(&other)]);
            assert_eq!(one, long);
            one
        };
        assert_eq!(wanted(None, "slow"), [true, false]);
        assert_eq!(wanted(None, "slow-kvm"), [false, true]);
        assert_eq!(wanted(Some("kvm"), "slow"), [false, true]);
        assert_eq!(wanted(Some("pvh"), "slow"), [false, false]);
    }

    #[test]
    fn the_name_of_a_suite_does_not_ask_for_suites_with_longer_names() {
        let meant = |topology: Option<&str>, suite: &str| -> Vec<&str> {
            let args = Args {
                tier: None,
                suite: Some(suite.to_owned()),
                changed: None,
                topology: topology.map(str::to_owned),
                host_linux: HostLinux::default(),
            };
            SUITES.iter().filter(|suite| args.wants(suite)).map(|suite| suite.name).collect()
        };
        assert_eq!(meant(None, "rr"), ["rr"]);
        assert_eq!(meant(None, "rr-"), ["rr-tests", "rr-pvh", "rr-hvm"]);
        assert_eq!(meant(Some("kvm"), "rr"), ["rr-kvm"]);
    }

    #[test]
    fn what_a_change_breaks_is_run_whatever_its_tier_unless_one_is_asked_for() {
        let wants = |tier, topology: Option<&str>, suite: &Suite| {
            let topology = topology.map(str::to_owned);
            let host_linux = HostLinux::default();
            Args { tier, suite: None, changed: None, topology, host_linux }.wants_of_table(suite)
        };
        let other = Suite::on("kvm", "slow-kvm", |_| Ok(()));
        let model = Suite::model("quick", |_| Ok(()));
        assert!(wants(None, None, &other) && wants(Some(Choice::Vm), None, &other));
        assert!(!wants(Some(Choice::Model), None, &other) && wants(None, None, &model));
        assert!(wants(Some(Choice::Model), None, &model));
        assert!(!wants(None, Some("kvm"), &model) && wants(None, Some("kvm"), &other));
    }

    #[test]
    fn suites_without_a_machine_are_run_beside_the_others_and_yield_to_them() {
        fn nice() -> i64 {
            let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
            let (_, rest) = stat.rsplit_once(") ").unwrap();
            rest.split(' ').nth(16).unwrap().parse().unwrap()
        }
        fn noted(report: &mut Report) -> Result<()> {
            report.note(format!("{} {}", nice(), sh::output(&mut cmd("nice", [""; 0]))?.trim()));
            report.record("it", Ok(()), Duration::ZERO);
            Ok(())
        }
        /// Ends only if two suites run at the same time.
        fn together(report: &mut Report) -> Result<()> {
            static BOTH: Barrier = Barrier::new(2);
            BOTH.wait();
            noted(report)
        }
        let (one, other) = (Suite::model("one", together), Suite::vm("other", together));
        let notes = |suites: &[&Suite]| -> Vec<String> {
            let reports = reports(suites, Volume::Usual).unwrap();
            reports.into_iter().flat_map(|report| report.notes).collect()
        };
        let own = nice();
        assert_eq!(
            notes(&[&other, &one]),
            ["one: 19 19".to_owned(), format!("other: {own} {own}")]
        );
        let alone = Suite::model("alone", noted);
        assert_eq!(notes(&[&alone]), [format!("alone: {own} {own}")]);
    }

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
            boots: Boots {
                count: 4,
                time: Duration::from_secs(40),
                repeated: vec![Repeat { what: "a boot".into(), log: "/logs/1".into() }],
            },
            ..Report::default()
        };
        let text = summary(&[quick, slow]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "suite              passed  failed  boots  booting   seconds",
                "quick                   3       0      0        0         2",
                "slow                    1       1      4       40        90",
                "total                   4       1      4       40        92",
                "quick: 125 simulated steps",
                "slow: a boot was repeated; the first time: /logs/1",
                "1 repeated",
                "failed: slow: a name",
                "4 passed, 1 failed",
            ]
        );
    }
}
