// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask papi`: PAPI's own tests, in the guest, on the project's counters.
//!
//! PAPI 7.0.0 is built from Debian's source package against the installed C library, with one
//! inserted line that its perfctr component needs to start. Its test programs are linked to shared
//! libraries, so a change in the C library needs no new PAPI. A later PAPI, which counts through
//! Linux's perf, is built without changes, and its tests also run on the bare machine.

mod beside;
mod boot;
mod cost;
mod verdict;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use self::beside::Beside;
use self::boot::{EXACT, Place};
use self::verdict::Verdict;
use crate::artefacts::papi::{Component, Papi};
use crate::machine;
use crate::suites::report;

/// A group of tests: its name, and the tests with spaces between them.
type Group = (&'static str, &'static str);

/// PAPI's tests, grouped by what they exercise. Each group is one boot.
const GROUPS: &[Group] = &[
    (EXACT, "zero zero_pthreads zero_fork overflow_pthreads overflow_exact"),
    (
        "counting",
        "zero_named zero_flip zero_smp first second tenth branches calibrate case1 case2 derived \
         describe johnmay2 low-level memory mendes-alt remove_events reset all_events \
         all_native_events serial_hl",
    ),
    (
        "threads",
        "zero_omp kufrin thrspecific clockres_pthreads locks_pthreads pthread_hl omp_hl pthrtough \
         pthrtough2 omptough",
    ),
    ("fork and exec", "fork fork2 exec exec2 forkexec forkexec2 forkexec3 forkexec4"),
    ("attach", "zero_attach attach2 attach3 attach_validate multiattach multiattach2"),
    (
        "multiplexing",
        "multiplex1 multiplex2 multiplex1_pthreads multiplex3_pthreads sdsc-mpx sdsc2-mpx \
         sdsc2-mpx-noreset sdsc4-mpx reset_multiplex max_multiplex",
    ),
    (
        "overflow",
        "overflow overflow2 overflow_single_event overflow_one_and_read overflow_twoevents \
         overflow_index overflow_allcounters overflow_force_software overflow3_pthreads \
         krentel_pthreads profile profile_twoevents profile_pthreads sprofile byte_profile \
         child_overflow exec_overflow fork_overflow system_overflow system_child_overflow",
    ),
    (
        "general",
        "cmpinfo code2name destroy disable_component dmem_info eventname exeinfo failed_events \
         get_event_component hwinfo profile_force_software realtime serial_hl_ll_comb virttime",
    ),
    (
        "not in the component",
        "attach_cpu attach_cpu_validate attach_cpu_sys_validate data_range earprofile inherit \
         p4_lst_ins zero_shmem timer_overflow",
    ),
];

/// The tests that belong to a component.
const OWN: Group = (
    "of perf_event",
    "broken_events nmi_watchdog perf_event_offcore_response perf_event_system_wide \
     perf_event_user_kernel",
);

/// Returns every test of a component, in groups.
fn groups(component: Component) -> impl Iterator<Item = &'static Group> {
    GROUPS.iter().chain((component == Component::PerfEvent).then_some(&OWN))
}

/// Builds PAPI, runs its tests in the guest, and prints a table of them. Fails if a test fails that
/// can pass.
///
/// On perf's events the tests run on Linux without a hypervisor, too. A test that passes only there
/// has failed.
#[derive(clap::Args)]
pub struct Args {
    /// What PAPI counts with.
    #[arg(long, value_enum, default_value = "perfctr")]
    component: Component,
    /// Write the results as JSON, too.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Only groups whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    group: Option<String>,
    /// Only this test; may be given several times.
    #[arg(long, value_name = "NAME")]
    test: Vec<String>,
    /// Instead of the tests, print how many instructions a reading costs.
    #[arg(long)]
    cost: bool,
}

impl Args {
    /// Returns the tests that are wanted, in groups.
    fn wanted(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        let part = self.group.as_deref().unwrap_or_default();
        let is_wanted = |test: &&str| self.test.is_empty() || self.test.iter().any(|t| t == test);
        groups(self.component)
            .filter(|(group, _)| group.contains(part))
            .map(|(group, tests)| (*group, tests.split_whitespace().filter(is_wanted).collect()))
            .filter(|(_, tests): &(_, Vec<&str>)| !tests.is_empty())
            .collect()
    }
}

/// The verdict of each test.
#[derive(Default, Serialize)]
struct Report {
    passed: Vec<String>,
    failed: BTreeMap<String, String>,
    skipped: BTreeMap<String, String>,
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<ExitCode> {
    let papi = Papi::new(args.component)?;
    if args.cost {
        ensure!(args.component == Component::Perfctr, "the costs of both are printed without it");
        cost::print(&papi)?;
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = args.wanted();
    ensure!(!wanted.is_empty(), "PAPI has no such test");
    let is_good = match args.component {
        Component::Perfctr => alone(&papi, &wanted, args.report.as_deref())?,
        Component::PerfEvent => side_by_side(&papi, &wanted, args.report.as_deref())?,
    };
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs tests in the guest only. Returns whether every test that can pass has passed.
fn alone(papi: &Papi, wanted: &[(&str, Vec<&str>)], file: Option<&Path>) -> Result<bool> {
    let mut report = Report::default();
    let mut is_bad = false;
    for (group, tests) in wanted {
        println!("{group}");
        for (name, verdict) in papi.run(Place::Guest, group, tests)? {
            is_bad |= matches!(verdict, Verdict::Failed(_));
            println!("  {:<12}{name:<26}{}", verdict.word(), verdict.reason());
            record(&mut report, name, verdict);
        }
    }
    let (passed, failed, skipped) =
        (report.passed.len(), report.failed.len(), report.skipped.len());
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    finish(papi, &report, file)?;
    Ok(!is_bad)
}

/// Runs tests on the bare machine and in the guest. Returns whether every test that passed on the
/// bare machine also passed in the guest.
fn side_by_side(papi: &Papi, wanted: &[(&str, Vec<&str>)], file: Option<&Path>) -> Result<bool> {
    let mut beside = Beside::default();
    for (group, tests) in wanted {
        beside.run(papi, group, tests)?;
    }
    println!("{beside}");
    finish(papi, &beside, file)?;
    Ok(beside.is_good())
}

/// Prints where the outputs are, and what was run again. Writes the report.
fn finish(papi: &Papi, report: &impl Serialize, file: Option<&Path>) -> Result<()> {
    for repeat in machine::boots().repeated {
        println!("{repeat}");
    }
    println!("output: {}", boot::out(papi.component)?.display());
    if let Some(file) = file {
        fs::write(file, serde_json::to_string_pretty(report)?)
            .with_context(|| format!("cannot write the report {}", file.display()))?;
    }
    Ok(())
}

/// Runs the tests on the C library. Each of them has to count exactly.
pub fn suite(report: &mut report::Report) -> Result<()> {
    let (group, tests) = GROUPS[0];
    let tests: Vec<&str> = tests.split_whitespace().collect();
    for (name, verdict) in Papi::new(Component::Perfctr)?.run(Place::Guest, group, &tests)? {
        report.test(name, || verdict.passed());
    }
    Ok(())
}

/// Runs the tests on perf's events. What passes on the bare machine has to pass in the guest.
pub fn perf(report: &mut report::Report) -> Result<()> {
    beside::suite(report)
}

fn record(report: &mut Report, test: &str, verdict: Verdict) {
    match verdict {
        Verdict::Passed => report.passed.push(test.to_owned()),
        Verdict::Skipped(reason) => drop(report.skipped.insert(test.to_owned(), reason)),
        Verdict::CannotPass(reason) | Verdict::Failed(reason) => {
            drop(report.failed.insert(test.to_owned(), reason));
        }
    }
}
