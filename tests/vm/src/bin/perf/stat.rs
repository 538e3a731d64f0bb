// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests `perf stat` in all its ways of counting.

use std::fs;

use anyhow::{Context, Result, ensure};
use shared_abi::caps::VENDOR_AMD;
use vm_tests::step::Executed;

use crate::Machine;
use crate::counted::general;
use crate::tool::{
    EVENTS, LONG, LONG_EXECUTED, LOOP, LOOP_EXECUTED, Row, RunningPerf, STEPPED, executed, held,
    perf, pids, rows, stepped, sum, watch_programs,
};

const RUNS: usize = 20;

/// Returns the counts of [`STEPPED`], and whether perf has printed them. It prints "not counted"
/// for events that have counted for no time at all.
fn count() -> Result<(Executed, bool)> {
    let events = format!("{EVENTS},task-clock");
    // If perf scaled counts, a count over no time would be 0.
    let printed = perf(&["stat", "-v", "--no-scale", "-e", &events, STEPPED])?;
    // For each event, verbose perf prints these numbers in this form: count, time enabled, time
    // running.
    let of = |event: &str| -> Result<[u64; 3]> {
        let line = printed.lines().find_map(|line| line.strip_prefix(event)?.strip_prefix(": "));
        let numbers = line.with_context(|| printed.clone())?.split_whitespace().map(str::parse);
        let numbers = numbers.collect::<Result<Vec<u64>, _>>().with_context(|| printed.clone())?;
        numbers.try_into().map_err(|_| anyhow::anyhow!(printed.clone()))
    };
    let [instructions, enabled, running] = of("instructions:u")?;
    let [branches, ..] = of("branches:u")?;
    ensure!(enabled == running, "it has taken turns: {printed}");
    // Linux begins to count the task's clock later, and may find that no time has passed.
    let mut untold = printed.lines().filter(|line| line.contains("<not counted>"));
    let explained = untold.all(|line| line.contains("task-clock"));
    ensure!(explained || enabled == 0, "{printed}");
    Ok((Executed { instructions, branches }, explained))
}

pub fn exact(machine: &Machine) -> Result<()> {
    let stepped = stepped()?;
    let (mut counted, mut untold) = (0, 0);
    machine.disturbed(|| {
        for _ in 0..RUNS {
            let (counts, told_counted) = count()?;
            ensure!(counts == stepped, "run {counted}: {counts:?}, not {stepped:?}");
            counted += 1;
            untold += u32::from(!told_counted);
        }
        Ok(())
    })?;
    println!("perf stat has counted {counted} times, of which it says {untold} took no time");
    Ok(())
}

/// Tests the events that the PMU lists in sysfs. perf's users select them by the names there.
pub fn listed(machine: &Machine) -> Result<()> {
    const AMD: [&str; 4] = ["branch-instructions", "branch-misses", "cpu-cycles", "instructions"];
    // On Nehalem, reference cycles are those of its bus.
    const INTEL: [&str; 7] = [
        "branch-instructions",
        "branch-misses",
        "bus-cycles",
        "cache-misses",
        "cache-references",
        "cpu-cycles",
        "instructions",
    ];
    let listed: &[&str] = if machine.caps.vendor == VENDOR_AMD { &AMD } else { &INTEL };
    let mut names = Vec::new();
    for entry in fs::read_dir("/sys/bus/event_source/devices/cpu/events")? {
        names.push(entry?.file_name().into_string().unwrap_or_default());
    }
    names.sort();
    ensure!(names == listed, "{names:?}");
    let own = ["cpu/instructions/u", "cpu/branch-instructions/u"];
    let rows = rows(&perf(&["stat", "-x,", "-e", &own.join(","), LOOP])?, 0);
    let [instructions, branches] = own.map(|event| sum(&rows, event));
    equal(Executed { instructions: instructions?, branches: branches? }, LOOP_EXECUTED, &rows)?;
    // The testbed models neither caches nor mispredictions. The test checks that perf says that
    // they are counted.
    let all: Vec<_> = listed.iter().map(|name| format!("cpu/{name}/u")).collect();
    for some in all.chunks(2) {
        let printed = perf(&["stat", "-x,", "-e", &some.join(","), LOOP])?;
        ensure!(!printed.contains("<not"), "{printed}");
    }
    Ok(())
}

/// Tests `-r`: the mean of some runs, and their spread.
pub fn repeated(_: &Machine) -> Result<()> {
    let rows = rows(&perf(&["stat", "-x,", "-r", "5", "-e", EVENTS, LOOP])?, 0);
    let spread: Vec<_> = rows.iter().filter_map(|row| row.more.first()).collect();
    ensure!(spread == ["0.00%"; 2], "{rows:?}");
    equal(executed(&rows)?, LOOP_EXECUTED, &rows)
}

/// Tests `-I`: the sum of the intervals is all that is counted.
pub fn intervals(_: &Machine) -> Result<()> {
    let mut programs = held(&[LONG, LOOP])?;
    let options = ["-x,", "-I", "20", "-e", EVENTS, "-p", &pids(&programs)];
    let mut perf = RunningPerf::start("stat", &options)?;
    programs.remove(0).run()?;
    // If all processes have ended while perf prints an interval, perf omits the last one. So one
    // process waits until perf has shown everything.
    perf.disable()?;
    programs.remove(0).run()?;
    let rows = rows(&perf.end()?, 1);
    // There is an interval when perf begins to count, and one when it ceases.
    ensure!(rows.len() >= 8, "there is but one interval of perf's own choice: {rows:?}");
    equal(executed(&rows)?, LONG_EXECUTED, &rows)
}

/// Tests events that are counted together or not at all.
pub fn groups(machine: &Machine) -> Result<()> {
    let counted = rows(&perf(&["stat", "-x,", "-e", &format!("{{{EVENTS}}}"), LOOP])?, 0);
    equal(executed(&counted)?, LOOP_EXECUTED, &counted)?;
    ensure!(counted.iter().all(|row| row.more == counted[0].more), "{counted:?}");
    // An event that comes to a full group is refused, and perf counts nothing of that group, as it
    // does natively.
    let events = general(machine) + 2;
    let many = format!("{{{}}}", different(events));
    let uncounted = rows(&perf(&["stat", "-x,", "-e", &many, LOOP])?, 0);
    ensure!(uncounted.len() == events, "{uncounted:?}");
    ensure!(uncounted.iter().all(|row| row.count.is_none()), "{uncounted:?}");
    Ok(())
}

/// Returns one event less than this many, which only general counters count.
fn different(events: usize) -> String {
    // The counter masks make the events different.
    let event = |n: usize| format!("r{:x}:u", 0xc0 | n << 24);
    (0..events).map(event).collect::<Vec<_>>().join(",")
}

/// Checks more events than counters: perf says for which share of the time each was counted, and
/// scales its count as if it had been counted all the time.
pub fn in_turns(machine: &Machine) -> Result<()> {
    let general = general(machine);
    let events = 2 * general;
    // On a busy machine one run is over before the events have taken turns often.
    let runs = format!("for run in 1 2 3 4 5 6; do {LONG}; done");
    let rows = rows(&perf(&["stat", "-x,", "-e", &different(events), "sh", "-c", &runs])?, 0);
    let shares = shares(&rows)?;
    ensure!(shares.len() == events, "{rows:?}");
    ensure!(shares.iter().all(|&share| (0.0..100.0).contains(&share)), "{rows:?}");
    let all: f64 = shares.iter().sum();
    // Each share is rounded to a percent.
    ensure!(all <= (100 * general + events) as f64, "{all} % of {general} counters: {rows:?}");
    Ok(())
}

/// Returns for which share of the time each was counted, in percent.
pub fn shares(rows: &[Row]) -> Result<Vec<f64>> {
    let share = |row: &Row| row.more.get(1)?.parse::<f64>().ok();
    let shares: Option<Vec<f64>> = rows.iter().map(share).collect();
    shares.with_context(|| format!("{rows:?}"))
}

/// Tests `-p`, for processes together and for each (`--per-thread`).
pub fn attached(machine: &Machine) -> Result<()> {
    machine.disturbed(|| {
        let programs = held(&[LOOP, LONG])?;
        let pids = pids(&programs);
        let all = rows(&watch_programs("stat", &["-x,", "-e", EVENTS, "-p", &pids], programs)?, 0);
        equal(executed(&all)?, LOOP_EXECUTED.plus(LONG_EXECUTED), &all)
    })?;
    let programs = held(&[LOOP, LONG])?;
    let pids = pids(&programs);
    let options = ["-x,", "-e", EVENTS, "--per-thread", "-p", &pids];
    let each = rows(&watch_programs("stat", &options, programs)?, 1);
    for (name, truth) in [("loop-", LOOP_EXECUTED), ("long-", LONG_EXECUTED)] {
        let of = each.iter().filter(|row| row.of.starts_with(name)).cloned();
        equal(executed(&of.collect::<Vec<_>>())?, truth, &each)?;
    }
    Ok(())
}

/// Tests `-a`: the CPU on which the program is has counted it, and the others have not.
pub fn everywhere(machine: &Machine) -> Result<()> {
    let cpu = *machine.cpus.last().context("there is no CPU")?;
    let program = ["taskset", "-c", &cpu.to_string(), LONG];
    let options = ["stat", "-x,", "-a", "-A", "-e", "instructions:u"];
    let rows = rows(&perf(&[&options[..], &program].concat())?, 1);
    ensure!(rows.len() == machine.cpus.len(), "{rows:?}");
    let truth = LONG_EXECUTED.instructions;
    for row in &rows {
        let count = row.count.with_context(|| format!("{rows:?}"))?;
        // Everything else that executes in user mode meanwhile is perf and this program, which
        // wait.
        let least = if row.of == format!("CPU{cpu}") { truth } else { 0 };
        ensure!((least..least + truth / 10).contains(&count), "{rows:?}");
    }
    Ok(())
}

pub fn equal(counted: Executed, truth: Executed, rows: &[Row]) -> Result<()> {
    ensure!(counted == truth, "{counted:?} counted, {truth:?} executed: {rows:?}");
    Ok(())
}
