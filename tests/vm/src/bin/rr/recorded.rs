// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs rr.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use vm_tests::threads::{SELF, cpus, run_on};

/// How long rr may take, unit: seconds.
const PATIENCE: &str = "150";

/// Where recordings are kept while they are tested.
const RECORDINGS: &str = "/tmp/recordings";

/// What the test of counters writes.
const COUNTERS_SAID: &str = "/tmp/counters";

/// The number of recordings so far.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A program that was recorded.
pub struct Recording {
    dir: PathBuf,
    /// What it has written.
    pub written: Vec<u8>,
}

impl Recording {
    /// Records a command with these further options of rr's.
    pub fn make(command: &[&str], options: &[&str]) -> Result<Self> {
        fs::create_dir_all(RECORDINGS)?;
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(RECORDINGS).join(number.to_string());
        let mut rr = rr();
        rr.arg("record").arg("-o").arg(&dir).args(options).args(command);
        let output = rr.output().context("rr record")?;
        let recording = Self { dir, written: output.stdout.clone() };
        ensure_success(&output).context("rr record")?;
        Ok(recording)
    }

    /// Replays it, and returns what it has written.
    pub fn replay(&self) -> Result<Vec<u8>> {
        let output = rr().arg("replay").arg("--autopilot").arg(&self.dir).output()?;
        ensure_success(&output)?;
        Ok(output.stdout)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // The guest keeps its files in memory, so recordings must not stay.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn rr() -> Command {
    let mut rr = Command::new("timeout");
    rr.args([PATIENCE, "rr"]).env("HOME", "/tmp").current_dir("/work");
    rr
}

fn ensure_success(output: &Output) -> Result<()> {
    let printed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {printed}", output.status);
    Ok(())
}

/// Runs the test of counters in rr's sources, with interrupts after this many ticks. Ticks are
/// conditional branches. The test demands exact ticks, and an interrupt not later than rr's table
/// says for the processor. Here the program must be interrupted by the very tick. The signal's
/// handler executes no conditional branch before the count is read.
///
/// The test's two processes wait for each other thousands of times. They share a CPU, since a
/// sleeping vCPU takes long to wake on a busy machine.
pub fn check_ticks(periods: &[u64]) -> Result<()> {
    let cpus = cpus()?;
    run_on(SELF, &cpus[..1])?;
    let checked = periods.iter().try_for_each(|&period| check_period(period));
    run_on(SELF, &cpus)?;
    checked
}

fn check_period(period: u64) -> Result<()> {
    // The test writes into a file, since its second process holds a pipe if the first one has
    // failed.
    let file = File::create(COUNTERS_SAID)?;
    let mut counters = Command::new("timeout");
    counters.args([PATIENCE, "/work/counters", "5", &period.to_string()]);
    let ended = counters.stdout(file.try_clone()?).stderr(file).status()?;
    let text = fs::read_to_string(COUNTERS_SAID)?;
    ensure!(ended.success(), "{ended}: {text}");
    let ticks: Vec<u64> = text
        .lines()
        .filter_map(|line| line.strip_prefix("Interrupted after ")?.split(' ').next()?.parse().ok())
        .collect();
    ensure!(ticks == [period; 5], "{ticks:?} ticks instead of 5 times {period}");
    Ok(())
}
