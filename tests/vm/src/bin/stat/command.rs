// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs `perfctr stat` and reads its JSON.

use std::fs;
use std::process::{Command, Output};

use anyhow::{Context, Result};
use serde_json::Value;

/// The command.
pub const PERFCTR: &str = "/work/perfctr";
/// The file to which it writes.
const RESULT: &str = "/tmp/stat.json";

/// What a run has done.
pub struct Stat {
    pub status: Option<i32>,
    pub document: Value,
}

/// Runs the command with these options, for this program.
pub fn run(options: &[&str], program: &[String]) -> Result<Output> {
    let mut command = Command::new(PERFCTR);
    command.args(["stat", "--json", "-o", RESULT, "-e", "instructions:u,branches:u"]);
    command.args(options).arg("--").args(program);
    command.output().context(PERFCTR)
}

/// Runs the command for a program that exists, and reads the result.
pub fn stat(options: &[&str], program: &[String]) -> Result<Stat> {
    let output = run(options, program)?;
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    let document = fs::read(RESULT).context(printed.clone())?;
    fs::remove_file(RESULT)?;
    let document = serde_json::from_slice(&document).context(printed)?;
    Ok(Stat { status: output.status.code(), document })
}

/// Returns instructions and branches of each run.
pub fn counts(document: &Value) -> Result<Vec<[u64; 2]>> {
    let runs = document["runs"].as_array().context("no runs")?;
    let pair = |run: &Value| -> Option<[u64; 2]> {
        Some([run["counts"][0].as_u64()?, run["counts"][1].as_u64()?])
    };
    runs.iter().map(|run| pair(run).context("a run without counts")).collect()
}

/// Returns instructions and branches of each thread of the first run, in the order in which they
/// were started.
pub fn threads(document: &Value) -> Result<Vec<Vec<u64>>> {
    let threads = document["runs"][0]["threads"].as_array().context("no threads")?;
    let numbered = |thread: &Value| -> Option<(u64, Vec<u64>)> {
        let counts = thread["counts"].as_array()?.iter().map(Value::as_u64);
        Some((thread["pid"].as_u64()?, counts.collect::<Option<_>>()?))
    };
    let mut threads = threads.iter().map(numbered).collect::<Option<Vec<_>>>();
    threads.as_mut().context("a thread without counts")?.sort_unstable();
    Ok(threads.into_iter().flatten().map(|(_, counts)| counts).collect())
}
