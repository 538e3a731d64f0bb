// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests programs of eBPF that execute at overflows.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Machine;
use crate::tool::{LONG, LONG_EXECUTED, rows, sum};

const PERIOD: u64 = 100_003;
/// A program that counts each thread's overflows on all CPUs, in both modes.
const PROGRAM: &str = "hardware:instructions:100003 /comm == \"long\"/ { @[tid] = count(); }";

/// The script that is sampled, and the file in which perf says what it has executed.
const SCRIPT: &str = "/tmp/two";
const COUNTS: &str = "/tmp/two.csv";

/// Runs `bpftrace` on two threads, and checks that each has the right number of samples.
pub fn samples(machine: &Machine) -> Result<()> {
    let perf = "perf stat -x, -e instructions,context-switches";
    let script = format!("{perf} -o {COUNTS} sh -c '{LONG} & {LONG}; wait'");
    fs::write(SCRIPT, script)?;
    let mut bpftrace = Command::new("bpftrace");
    // bpftrace starts nothing but binaries.
    let command = format!("/bin/sh {SCRIPT}");
    let out = bpftrace.args(["-f", "json", "-e", PROGRAM, "-c", &command]).output();
    let out = out.context("there is no bpftrace")?;
    let printed = String::from_utf8_lossy(&out.stdout);
    ensure!(out.status.success(), "{printed}{}", String::from_utf8_lossy(&out.stderr));
    let is_map = |line: &Value| line["type"] == "map";
    let map = printed.lines().filter_map(|line| serde_json::from_str(line).ok()).find(is_map);
    let map = map.with_context(|| format!("no samples: {printed}"))?;
    let threads = map["data"]["@"].as_object().context("no threads")?;
    let samples: Vec<u64> = threads.values().filter_map(Value::as_u64).collect();
    let rows = rows(&fs::read_to_string(COUNTS)?, 0);
    let (all, switches) = (sum(&rows, "instructions")?, sum(&rows, "context-switches")?);
    let each = LONG_EXECUTED.instructions;
    // The kernel may have done its work for both in either thread. On each CPU, and after each
    // switch, a thread continues with the rest of a period that others have begun.
    let edges = switches + machine.cpus.len() as u64;
    let (least, most) = (each / PERIOD - edges, (all - each) / PERIOD + edges);
    let is_right = |samples: &u64| (least..=most).contains(samples);
    ensure!(samples.len() == 2, "{samples:?} samples of threads");
    ensure!(samples.iter().all(is_right), "{samples:?}, and not {least} to {most}: {rows:?}");
    println!("bpftrace has seen {samples:?} samples of two threads, of {least} to {most}");
    Ok(())
}
