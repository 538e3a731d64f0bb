// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs rr.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

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
        // Memory is all that the guest has.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn rr() -> Command {
    let mut rr = Command::new("timeout");
    rr.args([PATIENCE, "rr"]).env("HOME", "/tmp").current_dir("/work");
    rr
}

fn ensure_success(output: &Output) -> Result<()> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    Ok(())
}

/// Runs the test of counters that rr's sources have, with interrupts after this many ticks. It
/// demands exact ticks, and an interrupt within 100 ticks. Ours have to come all equally late: as
/// many ticks later as the handler executes.
pub fn check_ticks(periods: &[u64]) -> Result<()> {
    let mut expected = None;
    for period in periods {
        // It writes into a file, since its second process holds a pipe if the first one has failed.
        let said = File::create(COUNTERS_SAID)?;
        let mut counters = Command::new("timeout");
        counters.args([PATIENCE, "/work/counters", "5", &period.to_string()]);
        let ended = counters.stdout(said.try_clone()?).stderr(said).status()?;
        let text = fs::read_to_string(COUNTERS_SAID)?;
        ensure!(ended.success(), "{ended}: {text}");
        let mut interrupts = 0;
        for line in text.lines().filter_map(|line| line.strip_prefix("Interrupted after ")) {
            let ticks = line.split(' ').next().and_then(|ticks| ticks.parse::<u64>().ok());
            let late = ticks.and_then(|ticks| ticks.checked_sub(*period)).context("too early")?;
            let expected = *expected.get_or_insert(late);
            ensure!(late == expected, "{late} ticks after a period of {period}, not {expected}");
            interrupts += 1;
        }
        ensure!(interrupts == 5, "{interrupts} interrupts, not 5:\n{text}");
    }
    println!("note ticks from an interrupt to the end of its handler: {expected:?}");
    Ok(())
}
