// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs tests until one of them notices a fault.

use std::io::{self, BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use anyhow::{Context, Result};

use crate::tools::sh::{self, cmd};

/// How a run of tests has ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// This test has failed, and the run was ended.
    Noticed(String),
    /// Every test has passed.
    Passed,
    /// Something else has failed. These are the status and what was printed.
    Failed(ExitStatus, String),
}

/// Runs a command until it ends, or until it prints a line in which `noticed` finds a failed test.
pub fn run_until(command: &mut Command, noticed: impl Fn(&str) -> Option<String>) -> Result<Ended> {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().with_context(|| format!("{command:?}"))?;
    let stdout = child.stdout.take().context("it was asked for")?;
    let stderr = child.stderr.take().context("it was asked for")?;
    let why = thread::spawn(move || io::read_to_string(stderr));
    let mut printed = String::new();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if let Some(test) = noticed(&line) {
            // `timeout` passes this signal on to what it runs. An emulator ends together with the
            // process that has started it.
            let process = child.id().to_string();
            sh::run(&mut cmd("sh", ["-c", "kill -TERM \"$0\"", &process]))?;
            child.wait()?;
            return Ok(Ended::Noticed(test));
        }
        printed += &line;
        printed.push('\n');
    }
    let status = child.wait()?;
    if status.success() {
        return Ok(Ended::Passed);
    }
    printed += &why.join().expect("it does not panic")?;
    Ok(Ended::Failed(status, printed))
}
