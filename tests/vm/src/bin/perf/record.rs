// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests `perf record`, and the commands that read its samples: `perf script`, `perf report` and
//! `perf top`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result, ensure};
use vm_tests::cgroup::Cgroup;
use vm_tests::disturb;
use vm_tests::step::Held;
use vm_tests::threads::run_on;

use crate::tool::{LONG, LONG_EXECUTED, LOOP, LOOP_EXECUTED, held, perf, pids, watch_programs};
use crate::{Machine, SEED};

/// The lengths in bytes of the loop's first instruction, and of the next.
const LOOP_FIRST: u64 = 5;
const LOOP_SECOND: u64 = 2;

const PERIOD: u64 = 100_003;
const DATA: &str = "/tmp/perf.data";

/// How many samples perf has to take each second if it chooses the period. If each sample takes
/// longer than the time between two, perf makes the period ever shorter, and the program makes no
/// progress. A sample takes milliseconds in a guest of KVM whose host is emulated.
const FREQUENCY: &str = "97";

/// The option with which one event follows a thread to each CPU. Otherwise perf opens an event for
/// each CPU, and a period of one of them consists of what the thread executes there.
const PER_THREAD: &str = "--per-thread";

/// The options that say what is sampled, and where the samples go.
const OPTIONS: [&str; 6] = ["-c", "100003", "-e", "instructions:u", "-o", DATA];

/// Returns the addresses at which each period of the loop ends in such a thread. Each is that of
/// the next instruction.
fn ends(thread: &str) -> Result<Vec<String>> {
    let file = fs::read(LOOP)?;
    // This is `e_entry` of an ELF file.
    let entry = file.get(24..32).context("no ELF file")?;
    let first = u64::from_le_bytes(entry.try_into()?) + LOOP_FIRST;
    // After the first instruction, the two of the loop alternate.
    let after = |executed: u64| first + if executed % 2 == 1 { 0 } else { LOOP_SECOND };
    let periods = 1..=LOOP_EXECUTED.instructions / PERIOD;
    Ok(periods.map(|n| format!("{thread} {PERIOD} {:x}", after(n * PERIOD))).collect())
}

/// Returns the samples, each with its thread, its period and its place. Fails if one was lost.
fn samples() -> Result<Vec<String>> {
    let raw = perf(&["script", "-i", DATA, "--show-lost-events", "-F", "comm"])?;
    ensure!(!raw.contains("LOST"), "{raw}");
    let script = perf(&["script", "-i", DATA, "-F", "comm,tid,period,ip"])?;
    let words = |line: &str| line.split_whitespace().take(4).collect::<Vec<_>>().join(" ");
    Ok(script.lines().map(words).filter(|line| !line.is_empty()).collect())
}

/// Removes the threads' numbers from samples.
fn unnumbered(samples: &[String]) -> Vec<String> {
    let without = |sample: &String| {
        let words: Vec<_> = sample.split(' ').collect();
        [&words[..1], &words[2..]].concat().join(" ")
    };
    samples.iter().map(without).collect()
}

pub fn exact(machine: &Machine) -> Result<()> {
    let expected = ends("loop")?;
    machine.disturbed(|| {
        perf(&[&["record", PER_THREAD], &OPTIONS[..], &[LOOP]].concat())?;
        let found = unnumbered(&samples()?);
        ensure!(found == expected, "{found:?} found, {expected:?} expected");
        Ok(())
    })
}

/// Tests `-p`: with one event of a thread, which moves between CPUs, and with events of a thread on
/// each CPU, where the thread stays on one of them.
pub fn attached(machine: &Machine) -> Result<()> {
    let cpu = *machine.cpus.last().context("there is no CPU")?;
    machine.disturbed(|| {
        let programs = held(&[LOOP])?;
        let thread = [programs[0].pid()];
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| disturb::threads(&thread, &machine.cpus, SEED, stop));
            let watched = watch(&[PER_THREAD], programs);
            stop.store(true, Relaxed);
            watched
        })?;
        let programs = held(&[LOOP])?;
        run_on(programs[0].pid(), &[cpu])?;
        watch(&[], programs)
    })
}

/// Records a program with these further options, and compares its samples with the truth.
fn watch(options: &[&str], programs: Vec<Held>) -> Result<()> {
    let pid = pids(&programs);
    watch_programs("record", &[options, &OPTIONS, &["-p", &pid]].concat(), programs)?;
    let (found, expected) = (samples()?, ends(&format!("loop {pid}"))?);
    ensure!(found == expected, "{options:?}: {found:?} found, {expected:?} expected");
    Ok(())
}

/// Tests `-a`, with all programs and with those of a cgroup.
pub fn everywhere(machine: &Machine) -> Result<()> {
    perf(&[&["record", "-a"], &OPTIONS[..], &[LONG]].concat())?;
    let samples_of =
        |of: &str| samples().map(|all| all.iter().filter(|s| s.starts_with(of)).count());
    let seen = samples_of("long ")? as u64;
    // The CPUs' periods begin before the program and continue after it, on every CPU on which it
    // has executed.
    let expected = LONG_EXECUTED.instructions / PERIOD;
    let edges = machine.cpus.len() as u64;
    ensure!(seen.abs_diff(expected) <= edges, "{seen} samples of {expected}");
    // In a group with only one program, an event of a CPU counts nothing else.
    let group = Cgroup::new("sampled")?;
    let cpu = *machine.cpus.last().context("there is no CPU")?;
    let programs = held(&[LOOP])?;
    let pid = programs[0].pid();
    group.add(pid)?;
    run_on(pid, &[cpu])?;
    watch_programs("record", &[&["-a"], &OPTIONS[..], &["-G", group.name]].concat(), programs)?;
    let (found, expected) = (samples()?, ends(&format!("loop {pid}"))?);
    ensure!(found == expected, "{found:?} found, {expected:?} expected");
    Ok(())
}

/// Tests `perf report`: all samples are in the program's one function.
pub fn reported(_: &Machine) -> Result<()> {
    perf(&[&["record"], &OPTIONS[..], &[LOOP]].concat())?;
    let report = perf(&["report", "--stdio", "-i", DATA])?;
    let lines: Vec<_> = report.lines().filter(|line| line.contains('%')).collect();
    let words = lines.first().map(|line| line.split_whitespace().collect::<Vec<_>>());
    ensure!(words == Some(vec!["100.00%", "loop", "loop", "[.]", "_start"]), "{report}");
    ensure!(lines.len() == 1, "{report}");
    Ok(())
}

/// Tests `perf top`: a function that is busy is in the first row.
pub fn top(_: &Machine) -> Result<()> {
    /// The most screens that are waited for. There is one in each second.
    const SCREENS_MAX: usize = 60;
    let mut top = Command::new("perf");
    top.args(["top", "--stdio", "-d", "1", "-F", FREQUENCY, "-e", "instructions:u"]);
    // `perf top` waits for keys at its end, which do not come.
    let mut top = top.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("no perf")?;
    let lines = BufReader::new(top.stdout.take().context("a pipe")?).lines();
    let done = &AtomicBool::new(false);
    let (mut screens, mut shown) = (0, Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) && Command::new(LONG).status().is_ok_and(|s| s.success()) {}
        });
        for line in lines.map_while(Result::ok) {
            let is_heading = line.contains("PerfTop:");
            screens += usize::from(is_heading);
            if is_heading {
                shown.clear();
            } else if line.contains('%') && shown.is_empty() {
                shown = line.split_whitespace().skip(1).map(str::to_owned).collect();
            }
            if shown == ["long", "[.]", "_start"] || screens > SCREENS_MAX {
                break;
            }
        }
        done.store(true, Relaxed);
    });
    top.kill()?;
    top.wait()?;
    ensure!(shown == ["long", "[.]", "_start"], "{shown:?} is on top after {screens} screens");
    Ok(())
}

pub fn frequency(_: &Machine) -> Result<()> {
    let shell = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";
    perf(&["record", "-F", FREQUENCY, "-g", "-o", DATA, "sh", "-c", shell])?;
    let samples = perf(&["script", "-i", DATA, "-F", "ip"])?;
    // A sample consists of its place and, below, of its callers.
    let stacks: Vec<_> = samples.split("\n\n").filter(|one| !one.trim().is_empty()).collect();
    let called = stacks.iter().filter(|stack| stack.lines().count() > 1).count();
    ensure!(stacks.len() >= 20, "{} samples: {samples}", stacks.len());
    ensure!(called >= 10, "{called} of {} have callers", stacks.len());
    Ok(())
}
