// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The directories of past runs, and how many runs there were.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use super::outcome::Outcome;
use crate::tools::cache;
use crate::tools::sh::{self, cmd};

/// Directories of past runs that are kept for their logs.
const RUNS_KEPT: usize = 40;

/// What this process has booted.
#[derive(Clone, Debug, Default)]
pub struct Boots {
    /// How many machines, the repeated ones as well.
    pub count: u32,
    /// Time until their guests were ready.
    pub time: Duration,
    /// What was done again, with what the first time left.
    pub repeated: Vec<Repeat>,
}

/// Something that was done again.
#[derive(Clone, Debug)]
pub struct Repeat {
    /// What.
    pub what: String,
    /// What is known of the first time.
    pub log: PathBuf,
}

impl fmt::Display for Repeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was repeated; the first time: {}", self.what, self.log.display())
    }
}

impl Boots {
    /// What was booted after `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            count: self.count - before.count,
            time: self.time - before.time,
            repeated: self.repeated[before.repeated.len()..].to_vec(),
        }
    }
}

static BOOTS: Mutex<Boots> =
    Mutex::new(Boots { count: 0, time: Duration::ZERO, repeated: Vec::new() });

/// What this process has booted so far.
pub fn boots() -> Boots {
    with_boots(|boots| boots.clone())
}

/// Counts a run.
pub fn count(outcome: &Outcome) {
    with_boots(|boots| {
        boots.count += 1;
        boots.time += outcome.boot_time.unwrap_or_default();
    });
}

/// Keeps the directory of a run that is going to be repeated; returns its new place.
pub fn keep(outcome: &Outcome) -> Result<PathBuf> {
    let dir = outcome.console.parent().context("the console's log lies in a directory")?;
    let name = dir.file_name().context("a run's directory has a name")?;
    let kept = cache::root()?.join("never-up");
    fs::create_dir_all(&kept)?;
    prune(&kept)?;
    let kept = kept.join(name);
    fs::rename(dir, &kept)?;
    repeated("a boot that did not come up".to_owned(), kept.clone());
    Ok(kept)
}

/// Remembers that something was done again, for the summary.
pub fn repeated(what: String, log: PathBuf) {
    with_boots(|boots| boots.repeated.push(Repeat { what, log }));
}

fn with_boots<T>(use_them: impl FnOnce(&mut Boots) -> T) -> T {
    // A panic elsewhere leaves the numbers whole.
    use_them(&mut BOOTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// A new directory for one run; old ones are removed.
pub fn directory() -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let runs = cache::root()?.join("runs");
    fs::create_dir_all(&runs)?;
    prune(&runs)?;
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = runs.join(format!("{seconds}-{}-{number}", std::process::id()));
    fs::create_dir(&dir)?;
    Ok(dir)
}

/// Removes all but the newest directories; their names sort by age.
fn prune(dir: &Path) -> Result<()> {
    let mut old: Vec<PathBuf> =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    old.sort();
    for dir in old.iter().rev().skip(RUNS_KEPT) {
        fs::remove_dir_all(dir).ok();
    }
    Ok(())
}

/// Unpacks what the command of the run in `dir` left in `/out`.
pub fn unpack_out(dir: &Path, out: &Path) -> Result<()> {
    let archive = dir.join("out");
    fs::create_dir_all(out)?;
    if archive.metadata().is_ok_and(|m| m.len() > 0) {
        sh::output(cmd("tar", ["-x", "--no-same-owner", "-f"]).arg(archive).arg("-C").arg(out))?;
    }
    Ok(())
}
