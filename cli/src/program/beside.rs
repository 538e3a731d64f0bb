// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Waits while a running process, thread or CPU is observed.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libc::pid_t;

use super::child::{Child, Started};
use super::ptrace::{self, Change, Waited};
use super::{LOOK, Signals, limits, status};

/// An observation that stops nothing.
pub trait Beside {
    /// Begins the observation. If a command will be run meanwhile, it waits in this process.
    fn begin(&mut self, command: Option<pid_t>) -> Result<()>;

    /// Is called about every 10 ms.
    fn tick(&mut self) -> Result<()>;
}

/// Observes until the command ends, if there is one, until the caller interrupts, or until
/// `observed` has ended. Returns the command's exit status and the elapsed time.
pub fn run(
    command: &[OsString],
    observed: Option<pid_t>,
    signals: &Signals,
    observer: &mut impl Beside,
) -> Result<(u8, Duration)> {
    let child = (!command.is_empty()).then(|| Child::new(command)).transpose()?;
    limits::raise();
    let first = child.as_ref().map(Child::pid);
    observer.begin(first)?;
    let start = Instant::now();
    let started = child.map(Child::go).transpose()?;
    let mut status = 0;
    while !signals.interrupted() && observed.is_none_or(lives) {
        let Some(first) = first else {
            // Any signal ends the wait.
            std::thread::sleep(LOOK);
            observer.tick()?;
            continue;
        };
        match ptrace::wait().context("cannot wait for the program")? {
            Waited::Nobody => break,
            Waited::Changed(ended, Change::Ended(code)) if ended == first => {
                status = code;
                break;
            }
            Waited::Changed(..) => {}
            Waited::Interrupted => observer.tick()?,
        }
    }
    let elapsed = started.map_or_else(|| Ok(start.elapsed()), Started::ended)?;
    Ok((status, elapsed))
}

/// Returns whether the process still exists, and is not a zombie.
fn lives(pid: pid_t) -> bool {
    status(pid, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
}
