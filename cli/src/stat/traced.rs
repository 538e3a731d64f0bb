// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Through `/dev/perfctr`: every thread has counters of its own, which its tracer gives it before
//! it executes its first instruction.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::time::Duration;

use anyhow::{Context, Result};
use libc::pid_t;
use perfctr::raw::Device;
use shared_abi::ioctl::{Control, Create};
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};

use super::child::Child;
use super::ptrace::{self, Change};
use super::{Count, Run, Thread};

/// Runs the program.
pub fn run(command: &[OsString], control: &Control, tsc_khz: u32) -> Result<Run> {
    let child = Child::new(command)?;
    let first = child.pid();
    ptrace::seize(first).context("the program cannot be traced")?;
    let mut tracer = Tracer {
        control,
        tsc_khz,
        waits: Some(first),
        counting: HashMap::new(),
        ended: Vec::new(),
        unobserved: 0,
    };
    let started = child.go()?;
    let status = tracer.follow(first)?;
    let elapsed = started.ended()?;
    let counters = control.counters as usize;
    let sum = |n: usize| tracer.ended.iter().map(|thread| thread.counts[n]).sum();
    let counts = (0..counters).map(|n| Count { value: sum(n), share: 1.0 }).collect();
    let Tracer { ended: threads, unobserved, .. } = tracer;
    Ok(Run { status, elapsed, counts, threads, unobserved })
}

struct Tracer<'a> {
    control: &'a Control,
    tsc_khz: u32,
    /// The first process until it executes the program: nothing of that is the program's.
    waits: Option<pid_t>,
    counting: HashMap<pid_t, Counters>,
    ended: Vec<Thread>,
    unobserved: u32,
}

/// A thread's counters.
struct Counters {
    device: Device,
    name: String,
}

impl Tracer<'_> {
    /// Until all have ended; gives the first one's exit status.
    fn follow(&mut self, first: pid_t) -> Result<u8> {
        let mut status = 0;
        while let Some((pid, change)) = ptrace::wait().context("cannot wait for the program")? {
            match change {
                Change::Ended(code) => {
                    self.end(pid)?;
                    if pid == first {
                        status = code;
                    }
                    continue;
                }
                Change::Stopped => {
                    ptrace::leave_stopped(pid)?;
                    continue;
                }
                Change::Signal(signal) => {
                    ptrace::go_on(pid, signal)?;
                    continue;
                }
                Change::Executed(before) => self.executed(pid, before)?,
                Change::Began => self.begin(pid)?,
                Change::Started => {}
            }
            ptrace::go_on(pid, 0)?;
        }
        Ok(status)
    }

    /// A thread that is new has counters now; one that has been stopped has had some.
    fn begin(&mut self, pid: pid_t) -> Result<()> {
        if self.waits != Some(pid) && !self.counting.contains_key(&pid) {
            self.give(pid)?;
        }
        Ok(())
    }

    /// A thread that executes another program goes on with its counters, and may have got its
    /// process's number, which was that of a thread that is no more.
    fn executed(&mut self, pid: pid_t, before: pid_t) -> Result<()> {
        self.waits = None;
        if before != pid {
            self.end(pid)?;
            if let Some(counters) = self.counting.remove(&before) {
                self.counting.insert(pid, counters);
            }
        }
        match self.counting.get_mut(&pid) {
            Some(counters) if has_counters(pid)? => counters.name = name(pid),
            // The first program, or one that may do what the caller may not.
            _ => {
                self.end(pid)?;
                self.give(pid)?;
            }
        }
        Ok(())
    }

    fn give(&mut self, pid: pid_t) -> Result<()> {
        let device = Device::open()?;
        let create = Create { tid: pid.cast_unsigned(), ..create() };
        let given = device.create(&create).and_then(|()| device.control(self.control));
        match given.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => {
                self.counting.insert(pid, Counters { device, name: name(pid) });
                Ok(())
            }
            // Killed meanwhile, or it may do what the caller may not.
            Err((Some(libc::ESRCH), _)) => {
                self.unobserved += 1;
                Ok(())
            }
            Err((_, error)) => Err(error).context("cannot give a thread counters"),
        }
    }

    fn end(&mut self, pid: pid_t) -> Result<()> {
        let Some(Counters { device, name }) = self.counting.remove(&pid) else { return Ok(()) };
        let sums = device.sums().with_context(|| format!("thread {pid} ({name}) has no counts"))?;
        let counts = sums.counter[..self.control.counters as usize].to_vec();
        let time = Duration::from_secs_f64(sums.tsc as f64 / f64::from(self.tsc_khz) / 1e3);
        self.ended.push(Thread { pid: pid.cast_unsigned(), name, counts, time });
        Ok(())
    }
}

fn create() -> Create {
    Create { abi_major: ABI_MAJOR.into(), abi_minor: ABI_MINOR.into(), ..Create::default() }
}

/// Whether the thread still has counters.
fn has_counters(pid: pid_t) -> Result<bool> {
    match Device::open()?.open_existing(&Create { tid: pid.cast_unsigned(), ..create() }) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        Err(error) => Err(error).context("cannot find a thread's counters"),
    }
}

/// The thread's name; empty if it has been killed.
fn name(pid: pid_t) -> String {
    let text: io::Result<String> = fs::read_to_string(format!("/proc/{pid}/comm"));
    text.unwrap_or_default().trim_end().to_owned()
}
