// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Describes how a run ended.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::tools::sh;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The command returned this status.
    Exited(i32),
    /// The command was ended by this signal.
    Signaled(i32),
    /// The command was still running after this time.
    TimedOut(Duration),
    /// The command did not end by itself, for this reason.
    Failed(Failure),
}

/// Why a command did not end, or did not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The guest was not up after this time.
    NeverUp(Duration),
    /// The console reported a crash in this line.
    Crashed(String),
    /// The kernel did not load our module, with this error: `ENODEV` or the like.
    Refused(String),
    /// The guest could not start the command, for this reason.
    NotStarted(String),
    /// The emulator ended first, with this status.
    EmulatorEnded(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverUp(time) => {
                write!(f, "the guest had not come up after {} s", time.as_secs())
            }
            Self::Crashed(line) => write!(f, "the machine crashed: {line}"),
            Self::Refused(errno) => write!(f, "the kernel refused the module: {errno}"),
            Self::NotStarted(reason) => write!(f, "{reason}"),
            Self::EmulatorEnded(status) => {
                write!(f, "the emulator ended before the command ({status})")
            }
        }
    }
}

impl Status {
    /// Returns the status as a shell gives it: 124 for a timeout as `timeout(1)` does, 125 for a
    /// failure.
    pub fn code(&self) -> i32 {
        match self {
            Self::Exited(status) => *status,
            Self::Signaled(signal) => 128 + signal,
            Self::TimedOut(_) => 124,
            Self::Failed(_) => 125,
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: Status,
    /// What the command wrote to its standard output.
    pub stdout: Vec<u8>,
    /// What the command wrote to its standard error.
    pub stderr: Vec<u8>,
    /// The console's log.
    pub console: PathBuf,
    /// How often the machine's button for a non-maskable interrupt was pressed.
    pub nmis: usize,
    /// The time from power-on until the guest was ready, if it ever was.
    pub boot_time: Option<Duration>,
}

impl Outcome {
    /// Describes for people why the run failed, with the console's end if that explains it.
    pub fn explain(&self) -> Option<String> {
        let log = self.console.display();
        match &self.status {
            Status::Exited(_) => None,
            Status::Signaled(signal) => Some(format!("the command was ended by signal {signal}")),
            Status::TimedOut(limit) => Some(format!(
                "the command still ran after {} s and was ended; console log: {log}",
                limit.as_secs()
            )),
            Status::Failed(failure) => Some(format!(
                "{failure}\nthe console's end:\n{}\nconsole log: {log}",
                sh::tail(&self.console)
            )),
        }
    }
}
