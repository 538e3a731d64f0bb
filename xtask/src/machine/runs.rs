// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Keeps the directories of past runs, and counts runs.

use std::cell::RefCell;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use super::outcome::Outcome;
use crate::tools::cache;
use crate::tools::sh::{self, cmd};

/// The number of directories of past runs that are kept for their logs.
const RUNS_KEPT: usize = 40;
/// A file in the directory of a run that has not ended. It has the number of its process.
const RUNNING: &str = "running";

/// The machines that this thread has booted. Suites that run beside each other have a thread each.
#[derive(Clone, Debug, Default)]
pub struct Boots {
    /// The number of machines, the repeated ones as well.
    pub count: u32,
    /// The sum of the times until their guests were ready.
    pub time: Duration,
    /// The steps that were repeated, with the logs of their first attempts.
    pub repeated: Vec<Repeat>,
}

/// A step that was repeated.
#[derive(Clone, Debug)]
pub struct Repeat {
    /// Its name.
    pub what: String,
    /// The directory or file that tells about the first attempt.
    pub log: PathBuf,
}

impl fmt::Display for Repeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was repeated; the first time: {}", self.what, self.log.display())
    }
}

impl Boots {
    /// Returns what was booted after `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            count: self.count - before.count,
            time: self.time - before.time,
            repeated: self.repeated[before.repeated.len()..].to_vec(),
        }
    }
}

thread_local! {
    static BOOTS: RefCell<Boots> = RefCell::default();
}

/// Returns what this thread has booted so far.
pub fn boots() -> Boots {
    BOOTS.with_borrow(Boots::clone)
}

/// Counts a run.
pub fn count(outcome: &Outcome) {
    BOOTS.with_borrow_mut(|boots| {
        boots.count += 1;
        boots.time += outcome.boot_time.unwrap_or_default();
    });
}

/// Keeps the directory of a run that is going to be repeated. Returns its new path.
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

/// Remembers that a step was repeated, for the summary.
pub fn repeated(what: String, log: PathBuf) {
    BOOTS.with_borrow_mut(|boots| boots.repeated.push(Repeat { what, log }));
}

/// Makes a new directory for one run, and removes old ones.
pub fn directory() -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let runs = cache::root()?.join("runs");
    fs::create_dir_all(&runs)?;
    prune(&runs)?;
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = runs.join(format!("{seconds}-{}-{number}", std::process::id()));
    fs::create_dir(&dir)?;
    fs::write(dir.join(RUNNING), std::process::id().to_string())?;
    Ok(dir)
}

/// Notes that the run in `dir` has ended.
pub fn ended(dir: &Path) -> Result<()> {
    fs::remove_file(dir.join(RUNNING)).context("the note of a run")
}

/// Returns whether somebody still needs the directory of a run.
fn is_running(dir: &Path) -> bool {
    let process = fs::read_to_string(dir.join(RUNNING));
    process.is_ok_and(|process| Path::new("/proc").join(process).exists())
}

/// Removes all but the newest directories, whose names sort by age, and those of runs that have not
/// ended.
fn prune(dir: &Path) -> Result<()> {
    let mut old: Vec<PathBuf> =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    old.sort();
    for dir in old.iter().rev().skip(RUNS_KEPT).filter(|dir| !is_running(dir)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_has_not_ended_keeps_its_directory_however_many_begin_after_it() {
        let dir = sh::project().join("target/test-runs");
        fs::remove_dir_all(&dir).ok();
        let run = |number: usize| dir.join(format!("{number:03}"));
        for number in 0..RUNS_KEPT + 3 {
            fs::create_dir_all(run(number)).unwrap();
        }
        let [own, ended, of_nobody] = [0, 1, 2].map(run);
        for dir in [&own, &ended] {
            fs::write(dir.join(RUNNING), std::process::id().to_string()).unwrap();
        }
        super::ended(&ended).unwrap();
        // No process has this number: the largest one is 2^22.
        fs::write(of_nobody.join(RUNNING), "9999999").unwrap();
        prune(&dir).unwrap();
        assert_eq!([own, ended, of_nobody].map(|dir| dir.exists()), [true, false, false]);
        assert!(run(3).exists(), "{RUNS_KEPT} are kept");
        fs::remove_dir_all(&dir).unwrap();
    }
}
