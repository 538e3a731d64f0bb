// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Follows a program with all threads and processes that it starts: each is stopped before it
//! executes its first instruction, and whenever it is about to get a signal.

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result};
use libc::{c_int, pid_t};

use super::child::Child;
use super::ptrace::{self, Change};

/// What is done with a program's threads.
pub trait Observer {
    /// What each thread has while it lives.
    type Given;

    /// A stopped thread that is new gets it; `None` if it may not be observed, or has been killed.
    fn give(&mut self, pid: pid_t) -> Result<Option<Self::Given>>;

    /// Whether a stopped thread that executes another program still has it.
    fn keeps(&mut self, pid: pid_t, given: &mut Self::Given) -> Result<bool>;

    /// A stopped thread is to get this signal; gives the one that it gets, 0 for none.
    fn signal(&mut self, _: pid_t, _: &mut Self::Given, signal: c_int) -> Result<c_int> {
        Ok(signal)
    }

    /// The thread is no more.
    fn ended(&mut self, pid: pid_t, given: Self::Given) -> Result<()>;
}

/// What is known of every program.
#[derive(Clone, Copy, Debug)]
pub struct Followed {
    /// The program's exit status, 128 and the signal if one ended it.
    pub status: u8,
    /// From the program's start on.
    pub elapsed: Duration,
    /// Threads and programs that could not be observed.
    pub unobserved: u32,
}

/// Runs the program until all that it started have ended.
pub fn run(command: &[OsString], observer: &mut impl Observer) -> Result<Followed> {
    let child = Child::new(command)?;
    let first = child.pid();
    ptrace::seize(first).context("the program cannot be traced")?;
    let mut tracer = Tracer { observer, waits: Some(first), given: HashMap::new(), unobserved: 0 };
    let started = child.go()?;
    let status = tracer.follow(first)?;
    let elapsed = started.ended()?;
    Ok(Followed { status, elapsed, unobserved: tracer.unobserved })
}

struct Tracer<'a, O: Observer> {
    observer: &'a mut O,
    /// The first process until it executes the program: nothing of that is the program's.
    waits: Option<pid_t>,
    given: HashMap<pid_t, O::Given>,
    unobserved: u32,
}

impl<O: Observer> Tracer<'_, O> {
    /// Until all have ended; gives the first one's exit status.
    fn follow(&mut self, first: pid_t) -> Result<u8> {
        let mut status = 0;
        while let Some((pid, change)) = ptrace::wait().context("cannot wait for the program")? {
            let mut signal = 0;
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
                Change::Signal(number) => {
                    signal = match self.given.get_mut(&pid) {
                        Some(given) => self.observer.signal(pid, given, number)?,
                        None => number,
                    };
                }
                Change::Executed(before) => self.executed(pid, before)?,
                Change::Began => self.begin(pid)?,
                Change::Started => {}
            }
            ptrace::go_on(pid, signal)?;
        }
        Ok(status)
    }

    /// A thread that is new is given something now; one that has been stopped was before.
    fn begin(&mut self, pid: pid_t) -> Result<()> {
        if self.waits != Some(pid) && !self.given.contains_key(&pid) {
            self.give(pid)?;
        }
        Ok(())
    }

    /// A thread that executes another program goes on with what it has, and may have got its
    /// process's number, which was that of a thread that is no more.
    fn executed(&mut self, pid: pid_t, before: pid_t) -> Result<()> {
        self.waits = None;
        if before != pid {
            self.end(pid)?;
            if let Some(given) = self.given.remove(&before) {
                self.given.insert(pid, given);
            }
        }
        let keeps = match self.given.get_mut(&pid) {
            Some(given) => self.observer.keeps(pid, given)?,
            None => false,
        };
        if !keeps {
            // The first program, or one that may do what the caller may not.
            self.end(pid)?;
            self.give(pid)?;
        }
        Ok(())
    }

    fn give(&mut self, pid: pid_t) -> Result<()> {
        match self.observer.give(pid)? {
            Some(given) => drop(self.given.insert(pid, given)),
            None => self.unobserved += 1,
        }
        Ok(())
    }

    fn end(&mut self, pid: pid_t) -> Result<()> {
        match self.given.remove(&pid) {
            Some(given) => self.observer.ended(pid, given),
            None => Ok(()),
        }
    }
}
