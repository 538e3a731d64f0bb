// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Compares the findings of `perfctr report` in perf's files with those of Debian's perf. Also
//! makes hotspot's reader read files that `perfctr` writes.

mod host;
mod large;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::report::{Report, Volume};
use crate::tools::cache;
use crate::tools::sh::{self, cmd};
use crate::tools::{apt, toolchain};

/// The functions of the program, `cli/tests/command/calls.c`.
const FUNCTIONS: [&str; 7] =
    ["main", "child", "second", "beside", "middle", "innermost", "__libc_start_call_main"];
/// The samples that a profile is made to lack.
const LOST: u64 = 12;
/// All other functions. The C library's have several names each.
const OTHERS: &str = "?";
/// The reader of the profiler hotspot, and what it needs.
const HOTSPOT: [&str; 5] =
    ["hotspot", "libqt5network5", "libqt5core5a", "libqt5dbus5", "libdouble-conversion3"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// How often each thread was in which stack, the outermost function first.
type Stacks = BTreeMap<String, u64>;

/// Runs without a machine: hardware events count a software clock.
pub fn run(report: &mut Report) -> Result<()> {
    apt::install(&["linux-perf", "gcc", "libc6-dev"], "perf, and a program that it records")?;
    let bench = Bench::new()?;
    report.test("perf finds the same stacks in what perfctr has written", || bench.ours());
    report.test("hotspot reads what perfctr has written", || bench.hotspot());
    for (how, events) in [
        ("every so often", &["-c", "500009", "-e", "cpu-clock:u"][..]),
        ("so often in a second", &["-F", "1999", "-e", "cpu-clock:u"]),
        ("the kernel as well", &["-c", "500009", "-e", "cpu-clock"]),
        ("two events", &["-c", "500009", "-e", "cpu-clock:u,task-clock:u"]),
    ] {
        let name =
            format!("perfctr finds the same stacks as perf in what perf has recorded, {how}");
        report.test(&name, || bench.theirs(events));
    }
    report
        .test("perf finds the same samples of a host whose hypervisor names its functions", || {
            bench.host_by_names()
        });
    report.test("perf finds the same samples of a host whose hypervisor has a file", || {
        bench.host_by_file()
    });
    report.test("what cannot be read is refused by its name", || bench.refusals());
    if report.volume == Volume::Long {
        report.test("a file of 1 GiB is reported in half as much memory", || {
            large::is_reported_in_less_memory(&bench.perfctr, &bench.dir)
        });
    }
    Ok(())
}

/// The programs, and where they write.
struct Bench {
    dir: PathBuf,
    perfctr: PathBuf,
}

impl Bench {
    fn new() -> Result<Self> {
        let dir = cache::scratch("perf-data")?;
        fs::create_dir_all(&dir)?;
        let beside = sh::project().join("cli/tests/command");
        for (source, program, flags) in [
            (
                "calls.c",
                "calls",
                "-O1 -fno-omit-frame-pointer -fno-optimize-sibling-calls -pthread",
            ),
            ("soft_pmu.c", "soft_pmu.so", "-shared -fPIC"),
        ] {
            let mut gcc = cmd("gcc", flags.split(' '));
            sh::output(gcc.arg("-o").arg(dir.join(program)).arg(beside.join(source)))?;
        }
        let mut cargo = toolchain::cargo();
        cargo.args(["build", "--quiet", "--package", "perfctr"]);
        sh::run(cargo.current_dir(sh::project()))?;
        Ok(Self { dir, perfctr: sh::project().join("target/debug/perfctr") })
    }

    fn perfctr(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.perfctr);
        command.args(words).current_dir(&self.dir);
        command
    }

    /// Records with perfctr, and compares the reports of both commands.
    fn ours(&self) -> Result<()> {
        let words = ["record", "-g", "-e", "instructions:u", "-c", "500009", "-o", "ours.profile"];
        let mut record = self.perfctr(&words);
        record.env("LD_PRELOAD", self.dir.join("soft_pmu.so")).args(["--", "./calls"]);
        sh::output(&mut record)?;
        self.lose_samples("ours.profile")?;
        let write = ["report", "-i", "ours.profile", "-f", "perf", "-o", "ours.data"];
        sh::output(&mut self.perfctr(&write))?;
        let written = self.by_perfctr("ours.profile", None)?;
        plausible(&written)?;
        let perf = self.by_perf("ours.data")?;
        ensure!(perf == BTreeMap::from([("instructions:u".to_owned(), written)]), "{perf:?}");
        let read = self.by_perfctr("ours.data", None)?;
        ensure!(perf.values().eq([&read]), "{read:?}");
        let mut table = cmd("perf", ["report", "-i", "ours.data", "--stdio", "--no-children"]);
        table.args(["-g", "none", "-n", "--sort", "sym"]);
        let table = sh::output(table.current_dir(&self.dir))?;
        let (theirs, ours) = (own_functions(&flat(&table)), own_functions(&innermost(&read)));
        ensure!(theirs == ours, "{theirs:?} in perf's table, {ours:?} here\n{table}");
        let missed = self.missed("ours.profile")?;
        ensure!(missed >= LOST, "{missed} samples missed, {LOST} at least expected");
        ensure!(table.contains(&format!("# Total Lost Samples: {missed}\n")), "{missed}: {table}");
        let read = self.missed("ours.data")?;
        ensure!(read == missed, "{missed} samples missed, {read} in perf's file");
        Ok(())
    }

    /// Makes a profile say that samples were lost, which otherwise only happens on busy machines.
    fn lose_samples(&self, profile: &str) -> Result<()> {
        let path = self.dir.join(profile);
        let mut document: Value = serde_json::from_slice(&fs::read(&path)?)?;
        document["lost"] = LOST.into();
        Ok(fs::write(&path, document.to_string())?)
    }

    /// Returns how many samples were missed, as perfctr's table says it.
    fn missed(&self, file: &str) -> Result<u64> {
        let table = sh::output(&mut self.perfctr(&["report", "-i", file]))?;
        let missed = table.lines().find_map(|line| line.strip_suffix(" more were missed"));
        Ok(missed.with_context(|| format!("no samples were missed: {table}"))?.parse()?)
    }

    /// Records with perf, and compares the reports of both commands for each event.
    fn theirs(&self, events: &[&str]) -> Result<()> {
        let mut record = cmd("perf", ["record", "-q", "-g", "-o", "theirs.data"]);
        record.args(events).args(["--", "./calls"]).current_dir(&self.dir);
        sh::output(&mut record)?;
        let found = self.by_perf("theirs.data")?;
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        ensure!(events.last() == Some(&&*names.join(",")), "{names:?}");
        for (event, stacks) in &found {
            plausible(stacks)?;
            let read = self.by_perfctr("theirs.data", Some(event))?;
            ensure!(read == *stacks, "{event}: {stacks:?} by perf, {read:?} here");
        }
        Ok(())
    }

    /// Returns the stacks of each event, as perf finds them.
    fn by_perf(&self, file: &str) -> Result<BTreeMap<String, Stacks>> {
        let mut script = cmd("perf", ["script", "--no-inline", "-i", file]);
        script.args(["-F", "tid,event,ip,sym"]).current_dir(&self.dir);
        let text = sh::output(&mut script)?;
        let mut events = BTreeMap::<String, Stacks>::new();
        for sample in text.split("\n\n").filter(|sample| !sample.trim().is_empty()) {
            let mut lines = sample.trim().lines();
            let head = lines.next().and_then(|line| line.trim().split_once(' '));
            let (tid, event) = head.with_context(|| format!("{sample:?}"))?;
            let functions =
                lines.rev().map(|line| line.split_whitespace().nth(1).unwrap_or(OTHERS));
            let event = event.trim().trim_end_matches(':').to_owned();
            *events.entry(event).or_default().entry(stack(tid, functions)).or_default() += 1;
        }
        Ok(events)
    }

    fn by_perfctr(&self, file: &str, event: Option<&str>) -> Result<Stacks> {
        let mut report = self.perfctr(&["report", "-f", "folded", "-i", file]);
        if let Some(event) = event {
            report.args(["--event", event]);
        }
        let mut stacks = Stacks::new();
        for line in sh::output(&mut report)?.lines() {
            let (words, samples) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
            let mut words = words.split(';');
            let tid = words.next().and_then(|thread| thread.split(' ').next()).unwrap_or("");
            *stacks.entry(stack(tid, words)).or_default() += samples.parse::<u64>()?;
        }
        Ok(stacks)
    }

    /// Makes hotspot's reader count the samples.
    fn hotspot(&self) -> Result<()> {
        let tree = apt::unpacked("hotspot", &HOTSPOT)?;
        let mut parser = Command::new(tree.join(LIBRARIES).join("libexec/hotspot-perfparser"));
        parser.env("LD_LIBRARY_PATH", tree.join(LIBRARIES)).current_dir(&self.dir);
        let found = parser.args(["--print-stats", "--input", "ours.data"]).output()?;
        let printed = String::from_utf8_lossy(&found.stdout);
        let samples: u64 = self.by_perfctr("ours.data", None)?.values().sum();
        let expected = format!("samples: {samples}\n");
        ensure!(
            found.status.success() && printed.contains(&expected),
            "{expected} not in {printed}"
        );
        Ok(())
    }

    fn refusals(&self) -> Result<()> {
        for (options, printed) in [
            (["--call-graph", "dwarf"], "copies of stacks found (`--call-graph dwarf`)"),
            (["-z", "-g"], "compressed records found"),
        ] {
            let mut record = cmd("perf", ["record", "-q", "-o", "refused.data"]);
            record.args(["-e", "cpu-clock:u"]).args(options).args(["--", "./calls"]);
            sh::output(record.current_dir(&self.dir))?;
            let report = self.perfctr(&["report", "-i", "refused.data"]).output()?;
            let error = String::from_utf8_lossy(&report.stderr);
            let refused = report.status.code() == Some(125) && error.contains(printed);
            ensure!(refused, "{options:?}: {error}");
        }
        Ok(())
    }
}

/// Returns a stack's text: the thread and the program's functions. Neighbours among the others are
/// one.
fn stack<'a>(tid: &str, functions: impl Iterator<Item = &'a str>) -> String {
    let mut words = vec![tid];
    for function in functions {
        let function = FUNCTIONS.into_iter().find(|&own| own == function).unwrap_or(OTHERS);
        if function != OTHERS || words.last() != Some(&OTHERS) {
            words.push(function);
        }
    }
    words.join(";")
}

/// Checks that there are the program's three threads, and calls through all of its functions.
fn plausible(stacks: &Stacks) -> Result<()> {
    let threads: std::collections::BTreeSet<_> =
        stacks.keys().filter_map(|stack| stack.split(';').next()).collect();
    ensure!(threads.len() == 3, "{threads:?} in {stacks:?}");
    for calls in ["main;middle;innermost", "child;middle;innermost", "second;beside;middle"] {
        ensure!(stacks.keys().any(|stack| stack.contains(calls)), "no {calls} in {stacks:?}");
    }
    Ok(())
}

/// Returns the samples of each function that was innermost.
fn innermost(stacks: &Stacks) -> BTreeMap<String, u64> {
    let mut functions = BTreeMap::new();
    for (stack, samples) in stacks {
        let function = stack.rsplit(';').next().unwrap_or_default();
        *functions.entry(function.to_owned()).or_default() += samples;
    }
    functions
}

/// Returns the samples of each function in perf's table.
fn flat(table: &str) -> BTreeMap<String, u64> {
    let mut functions = BTreeMap::new();
    for line in table.lines().filter(|line| line.contains("[.]")) {
        let mut words = line.split_whitespace();
        let samples = words.nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        *functions.entry(words.last().unwrap_or_default().to_owned()).or_default() += samples;
    }
    functions
}

/// Returns the rows of the program's own functions.
fn own_functions(functions: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let own = functions.iter().filter(|(name, _)| FUNCTIONS.contains(&name.as_str()));
    own.map(|(name, samples)| (name.clone(), *samples)).collect()
}
