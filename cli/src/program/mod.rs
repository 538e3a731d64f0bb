// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Programs that are observed, with all that they start.

pub mod child;
pub mod device;
pub mod ptrace;
pub mod tracer;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use libc::{c_int, pid_t};
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// What is observed.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// A program from its first instruction to the end of all that it starts.
    Program(&'a [OsString]),
    /// A process that runs already, from now on: until this program ends, if there is one, until
    /// the caller interrupts, or to its own end.
    Process(pid_t, &'a [OsString]),
}

/// What the caller has signalled.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    interrupted: Arc<AtomicBool>,
    alarmed: Arc<AtomicBool>,
    /// Alarms end intervals, and are not only to look at what the caller wants.
    intervals: bool,
}

/// How often it is looked whether the caller has interrupted, at least.
pub const LOOK: Duration = Duration::from_millis(10);

impl Signals {
    /// What interrupts a program must not keep its observer from telling of it.  Handlers, unlike
    /// ignored signals, are not handed down to the program.
    pub fn handle(target: Target<'_>, interval: Option<Duration>) -> io::Result<Self> {
        let signals = Self { intervals: interval.is_some(), ..Self::default() };
        signals.interrupted_by(&[SIGINT, SIGQUIT])?;
        let foreign = matches!(target, Target::Process(..));
        if foreign {
            // The process must not keep what it was given.
            signals.interrupted_by(&[SIGTERM, SIGHUP])?;
        }
        if let Some(interval) = interval.or(foreign.then_some(LOOK)) {
            signal_hook::flag::register(SIGALRM, signals.alarmed.clone())?;
            ptrace::alarm_every(interval)?;
        }
        Ok(signals)
    }

    /// Those that ask for an end of what would go on for ever.
    pub fn to_end() -> io::Result<Self> {
        let signals = Self::default();
        signals.interrupted_by(&[SIGINT, SIGTERM, SIGHUP])?;
        Ok(signals)
    }

    fn interrupted_by(&self, numbers: &[c_int]) -> io::Result<()> {
        for &number in numbers {
            signal_hook::flag::register(number, self.interrupted.clone())?;
        }
        Ok(())
    }

    /// Whether the caller wants an end.
    pub fn interrupted(&self) -> bool {
        self.interrupted.load(Relaxed)
    }

    /// Whether an interval has ended since this was asked before.
    pub fn alarmed(&self) -> bool {
        self.intervals && self.alarmed.swap(false, Relaxed)
    }
}

/// All processes that there are.
pub fn processes() -> io::Result<Vec<pid_t>> {
    numbered("/proc")
}

/// The threads of a process.
pub fn threads(pid: pid_t) -> io::Result<Vec<pid_t>> {
    numbered(&format!("/proc/{pid}/task"))
}

/// The entries of a directory that are called by numbers.
fn numbered(directory: &str) -> io::Result<Vec<pid_t>> {
    let entries = fs::read_dir(directory)?;
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(entries.filter_map(number).collect())
}

/// A line of the thread's `/proc/PID/status`, see `proc_pid_status(5)`.
pub fn status(pid: pid_t, key: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(found, _)| *found == key).map(|(_, value)| value.trim().to_owned())
}

/// The thread's name; empty if it has been killed.
pub fn name(pid: pid_t) -> String {
    let text: io::Result<String> = fs::read_to_string(format!("/proc/{pid}/comm"));
    text.unwrap_or_default().trim_end().to_owned()
}
