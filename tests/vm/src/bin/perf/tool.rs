// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Debian's `perf`.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use vm_tests::step::{Executed, Trace};

use crate::Machine;

/// A program of some steps, and one whose machine code is known: see `loop.S`.
const STEPPED: &str = "/work/alone";
const LOOP: &str = "/work/loop";
const LOOP_INSTRUCTIONS: u64 = 2_000_004;
/// Bytes of its first instruction, and of the next.
const LOOP_FIRST: u64 = 5;
const LOOP_SECOND: u64 = 2;

const RUNS: usize = 20;
/// How often perf may end without having counted anything, its own software events included.  It
/// does so once in some dozens of runs, where the machine is slow and vCPUs are moved.
const UNTOLD_MAX: usize = 5;
const PERIOD: u64 = 100_003;
const DATA: &str = "/tmp/perf.data";

/// What perf prints.
fn perf(arguments: &[&str]) -> Result<String> {
    let out = Command::new("perf").args(arguments).output().context("there is no perf")?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "perf {}: {said}", arguments.join(" "));
    Ok(String::from_utf8_lossy(&out.stdout).into_owned() + &said)
}

/// What a program has executed; `None` if perf has not even counted the time that it took.
fn count(program: &str) -> Result<Option<Executed>> {
    let said = perf(&["stat", "-x,", "-e", "instructions:u,branches:u,task-clock", program])?;
    let of = |event: &str| -> Result<Option<u64>> {
        let is_it = |line: &&str| line.contains(event);
        let line = said.lines().find(is_it).with_context(|| said.clone())?;
        let (count, _) = line.split_once(',').context("a count")?;
        // The time has a fraction.
        let whole = count.split_once('.').map_or(count, |(whole, _)| whole);
        if whole == "<not counted>" {
            return Ok(None);
        }
        whole.parse().map(Some).with_context(|| line.to_owned())
    };
    let counts = (of("instructions:u")?, of("branches:u")?, of("task-clock")?);
    match counts {
        (Some(instructions), Some(branches), _) => Ok(Some(Executed { instructions, branches })),
        (None, None, None) => Ok(None),
        _ => anyhow::bail!("{said}"),
    }
}

pub fn stat(machine: &Machine) -> Result<()> {
    let trace = Trace::of_program(&mut Command::new(STEPPED))?;
    let stepped = trace.between(0, trace.len());
    let (mut counted, mut untold) = (0, 0);
    machine.disturbed(|| {
        let enough = counted + RUNS;
        while counted < enough {
            let Some(counts) = count(STEPPED)? else {
                untold += 1;
                ensure!(untold <= UNTOLD_MAX, "perf has told nothing {untold} times");
                continue;
            };
            ensure!(counts == stepped, "run {counted}: {counts:?}, not {stepped:?}");
            counted += 1;
        }
        Ok(())
    })?;
    println!("perf stat has counted {counted} times, and {untold} times not even the time");
    Ok(())
}

/// Where each period of the loop ends: the next instruction to be executed.
fn ends(entry: u64) -> Vec<String> {
    let first = entry + LOOP_FIRST;
    // After the first instruction, the two of the loop in turn.
    let after = |executed: u64| first + if executed % 2 == 1 { 0 } else { LOOP_SECOND };
    let periods = 1..=LOOP_INSTRUCTIONS / PERIOD;
    periods.map(|n| format!("{PERIOD} {:x}", after(n * PERIOD))).collect()
}

pub fn record(machine: &Machine) -> Result<()> {
    let file = fs::read(LOOP)?;
    // `e_entry` of an ELF file.
    let entry = file.get(24..32).context("no ELF file")?;
    let expected = ends(u64::from_le_bytes(entry.try_into()?));
    let period = PERIOD.to_string();
    machine.disturbed(|| {
        perf(&["record", "-c", &period, "-e", "instructions:u", "-o", DATA, LOOP])?;
        let script = perf(&["script", "-i", DATA, "-F", "period,ip"])?;
        let told: Vec<String> = script.lines().map(words).filter(|line| !line.is_empty()).collect();
        ensure!(told == expected, "{told:?} told, {expected:?} expected");
        let raw = perf(&["script", "-i", DATA, "--show-lost-events", "-F", "comm"])?;
        ensure!(!raw.contains("LOST"), "{raw}");
        Ok(())
    })
}

fn words(line: &str) -> String {
    line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

pub fn frequency(_: &Machine) -> Result<()> {
    let shell = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
    perf(&["record", "-F", "999", "-g", "-o", DATA, "sh", "-c", shell])?;
    let samples = perf(&["script", "-i", DATA, "-F", "ip"])?;
    // A sample is its place, and its callers' below it.
    let stacks: Vec<_> = samples.split("\n\n").filter(|one| !one.trim().is_empty()).collect();
    let called = stacks.iter().filter(|stack| stack.lines().count() > 1).count();
    ensure!(stacks.len() >= 20, "{} samples: {samples}", stacks.len());
    ensure!(called >= 10, "{called} of {} have callers", stacks.len());
    Ok(())
}
