// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs rr's own tests, two at a time, and prints the result of each, and how long it took.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};

/// How many tests run at a time.
const AT_A_TIME: usize = 2;
/// How long each of rr's processes may take, and how long a whole test, unit: seconds.
const PATIENCE: &str = "1800";
const PATIENCE_WITH_TEST: &str = "3600";
/// The exit status of a test that cannot be run on this machine.
const SKIPPED: i32 = 77;
/// How many lines of a failed test are shown.
const TAIL: usize = 30;

/// Runs the wanted tests of the list, or all. It does not matter whether they pass, since the
/// results are compared with those of another machine.
pub fn run(dir: &Path, wanted: &str) -> Result<ExitCode> {
    fs::create_dir_all("/tmp")?;
    let list = fs::read_to_string(dir.join("list")).context("the list of rr's tests")?;
    let wanted: Vec<&str> = wanted.split_whitespace().collect();
    let is_wanted = |line: &&str| {
        wanted.is_empty() || line.split(' ').next().is_some_and(|name| wanted.contains(&name))
    };
    let left = &Mutex::new(list.lines().filter(is_wanted));
    let next = || left.lock().expect("no thread panics").next();
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(test) = next() {
                    let start = Instant::now();
                    println!("{}", result_of(dir, test));
                    eprintln!("{:4} s  {test}", start.elapsed().as_secs());
                }
            });
        }
    });
    Ok(ExitCode::SUCCESS)
}

/// Runs one test of the list. Returns its name, a blank, and that it passes or why it does not.
fn result_of(dir: &Path, test: &str) -> String {
    let words: Vec<&str> = test.split(' ').collect();
    let [name, script, program, option] = words[..] else {
        return format!("{test} has another form in the list");
    };
    let mut command = Command::new("timeout");
    command.args([PATIENCE_WITH_TEST, "bash"]).arg(dir.join(script)).args([program, option]);
    command.arg(dir.join("obj")).arg(PATIENCE).current_dir("/tmp").env("HOME", "/tmp");
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => return format!("{name} cannot be started: {error}"),
    };
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    // Some scripts succeed if their program was not even started.
    let reports_success = printed.contains("PASSED") || printed.contains("EXIT-SUCCESS");
    if output.status.code() == Some(SKIPPED) || printed.contains("NOTE: Skipping") {
        format!("{name} skips itself")
    } else if output.status.success() && reports_success && !printed.contains("FAILED") {
        format!("{name} passes")
    } else {
        let lines: Vec<&str> = printed.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL)..].join(" | ");
        format!("{name} fails, {}: {tail}", output.status)
    }
}
