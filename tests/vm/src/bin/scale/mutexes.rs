// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts how often the locks of the module are taken, by a probe of the kernel's function that
//! takes a mutex.

use std::fs::{self, File};
use std::io::Write;

use anyhow::{Context, Result, ensure};

const PROBES: &str = "/sys/kernel/tracing/kprobe_events";
const PROBE: &str = "/sys/kernel/tracing/events/scale/mutex";
/// The probe reports the address of the lock, the function's first argument.
const DEFINITION: &str = "p:scale/mutex mutex_lock lock=%di";
/// How often each lock is taken, by the name of its variable.
const COUNT: &str = "hist:keys=lock.sym:size=4096";
/// What the name of a variable of the module ends with. A lock that is a part of an object has no
/// name.
const MODULE: &str = "[perfctr]";

/// The probe, until this is dropped.
#[derive(Debug)]
pub struct Mutexes(());

impl Mutexes {
    /// Begins to count.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn watch() -> Result<Self> {
        append(PROBES, DEFINITION)?;
        let mutexes = Self(());
        append(&format!("{PROBE}/trigger"), COUNT)?;
        Ok(mutexes)
    }

    /// Returns how often mutexes of the module were taken.
    ///
    /// # Errors
    ///
    /// The kernel has counted nothing.
    pub fn taken(&self) -> Result<u64> {
        let path = format!("{PROBE}/hist");
        let text = fs::read_to_string(&path).context(path)?;
        taken(&text).with_context(|| text.clone())
    }
}

impl Drop for Mutexes {
    fn drop(&mut self) {
        // If this fails, the next probe says so.
        let _ = append(&format!("{PROBE}/trigger"), &format!("!{COUNT}"));
        let _ = append(PROBES, "-:scale/mutex");
    }
}

fn append(path: &str, line: &str) -> Result<()> {
    let mut file = File::options().append(true).open(path).context(path.to_owned())?;
    // The kernel takes each write for a command of its own.
    file.write_all(format!("{line}\n").as_bytes()).with_context(|| format!("{path}: {line}"))
}

/// Adds up the lines of the module's locks. Others are taken all the time, so without any the
/// probe has not worked.
fn taken(text: &str) -> Result<u64> {
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("{ lock:")).collect();
    ensure!(!lines.is_empty(), "no lock was taken");
    let count = |line: &&str| -> Result<u64> {
        let (_, count) = line.rsplit_once("hitcount:").context("no number")?;
        Ok(count.trim().parse()?)
    };
    let modules = lines.iter().filter(|line| line.contains(MODULE));
    modules.map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_modules_locks_are_added() {
        let text = "# event histogram\n#\n\n\
            { lock: [ffffffff82a51d20] tracepoints_mutex             } hitcount:      4\n\
            { lock: [ffff888003a31c20] 0xffff888003a31c20            } hitcount:      9\n\
            { lock: [ffffffffc0a0f040] perfctr_users_lock [perfctr]  } hitcount:    100\n\
            { lock: [ffffffffc0a0f080] perfctr_watch_lock [perfctr]  } hitcount:      3\n\n\
            Totals:\n    Hits: 116\n";
        assert_eq!(taken(text).unwrap(), 103);
        let without: Vec<&str> = text.lines().filter(|line| !line.contains(MODULE)).collect();
        assert_eq!(taken(&without.join("\n")).unwrap(), 0);
        taken("Totals:\n    Hits: 0\n").unwrap_err();
    }
}
