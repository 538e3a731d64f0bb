// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Follows a program with all threads and processes that it starts: each is stopped before it
//! executes its first instruction, and whenever it is about to get a signal.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use libc::{c_int, pid_t};

use super::child::{Child, Started};
use super::ptrace::{self, Bond, Change, Waited};
use super::{Signals, Target, limits, status, threads};

/// The actions of an observer for a program's threads.
pub trait Observer {
    /// The observer's data about each thread while it lives.
    type Given;

    /// Gives a new, stopped thread its data. Returns `None` if the thread may not be observed, or
    /// was killed.
    fn give(&mut self, pid: pid_t) -> Result<Option<Self::Given>>;

    /// Returns whether a stopped thread that executes another program keeps its data.
    fn keeps(&mut self, pid: pid_t, given: &mut Self::Given) -> Result<bool>;

    /// The tracer calls this for a signal that a stopped thread is to get. Returns the signal that
    /// it gets, or 0 for none.
    fn signal(&mut self, _: pid_t, _: &mut Self::Given, signal: c_int) -> Result<c_int> {
        Ok(signal)
    }

    /// The tracer calls this when a thread has ended, or is stopped and will not be observed any
    /// more.
    fn ended(&mut self, pid: pid_t, given: Self::Given) -> Result<()>;

    /// The tracer calls this when an interval has ended. Every thread was stopped since it began,
    /// or sleeps.
    fn interval(&mut self, _: &HashMap<pid_t, Self::Given>) -> Result<()> {
        Ok(())
    }
}

/// The results that do not depend on the kind of observation.
#[derive(Clone, Copy, Debug)]
pub struct Followed {
    /// The program's exit status, 128 and the signal if one ended it.
    pub status: u8,
    /// The time from the program's start on.
    pub elapsed: Duration,
    /// The number of threads and programs that could not be observed.
    pub unobserved: u32,
}

/// Observes the target to its end.
pub fn run(
    target: Target<'_>,
    observer: &mut impl Observer,
    signals: &Signals,
) -> Result<Followed> {
    let tracer = Tracer {
        observer,
        signals,
        waits: None,
        given: HashMap::new(),
        asked: HashSet::new(),
        may_leave: false,
        attaching: false,
        leaving: false,
        unobserved: 0,
    };
    match target {
        Target::Program(command) => tracer.run(command),
        Target::Process(pid, command) => tracer.attach(pid, command),
        Target::Thread(..) | Target::Cpus(_) | Target::Cgroup(..) => {
            bail!("only programs and processes are traced")
        }
    }
}

struct Tracer<'a, O: Observer> {
    observer: &'a mut O,
    signals: &'a Signals,
    /// The first process until it executes the program. Nothing before that is the program's.
    waits: Option<pid_t>,
    given: HashMap<pid_t, O::Given>,
    /// Threads that have been interrupted and not stopped yet.
    asked: HashSet<pid_t>,
    /// Whether an interrupt ends the observation: the process existed before, or the program has
    /// ended and left processes behind.
    may_leave: bool,
    /// Whether the threads that exist already are being attached.
    attaching: bool,
    /// Whether threads are detached as they stop.
    leaving: bool,
    unobserved: u32,
}

impl<O: Observer> Tracer<'_, O> {
    fn run(mut self, command: &[OsString]) -> Result<Followed> {
        let child = Child::new(command)?;
        let first = child.pid();
        self.seize_first(first)?;
        let started = child.go()?;
        let status = self.follow(Some(first), |_| false)?;
        Ok(Followed { status, elapsed: started.ended()?, unobserved: self.unobserved })
    }

    /// Traces the first process, which waits before it executes the program.
    fn seize_first(&mut self, first: pid_t) -> Result<()> {
        ptrace::seize(first, Bond::Own).context("the program cannot be traced")?;
        self.waits = Some(first);
        Ok(())
    }

    fn attach(mut self, pid: pid_t, command: &[OsString]) -> Result<Followed> {
        (self.may_leave, self.attaching) = (true, true);
        let child = (!command.is_empty()).then(|| Child::new(command)).transpose()?;
        limits::raise();
        self.seize_all(pid).with_context(|| format!("process {pid} cannot be traced"))?;
        self.follow(None, |tracer| tracer.asked.is_empty())?;
        self.attaching = false;
        let (first, start) = (child.as_ref().map(Child::pid), Instant::now());
        let started = child.map(Child::go).transpose()?;
        let status = self.follow(first, |tracer| tracer.given.is_empty())?;
        let elapsed = started.map_or_else(|| Ok(start.elapsed()), Started::ended)?;
        Ok(Followed { status, elapsed, unobserved: self.unobserved })
    }

    /// Traces all threads of a process. Those that they start meanwhile are traced already.
    fn seize_all(&mut self, pid: pid_t) -> io::Result<()> {
        loop {
            let new = threads(pid)?.into_iter().filter(|thread| !self.asked.contains(thread));
            let new: Vec<pid_t> = new.collect();
            let mut seized = 0;
            for thread in new {
                match ptrace::seize(thread, Bond::Foreign) {
                    Ok(()) => {
                        ptrace::interrupt(thread)?;
                        self.asked.insert(thread);
                        seized += 1;
                    }
                    // The thread has ended meanwhile, or is traced already because a traced thread
                    // has started it.
                    Err(error)
                        if !self.asked.is_empty()
                            && matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EPERM)) => {}
                    Err(error) => return Err(error),
                }
            }
            if seized == 0 {
                return Ok(());
            }
        }
    }

    /// Follows the threads until all have ended, or `done`. Returns the exit status of `first`.
    fn follow(&mut self, first: Option<pid_t>, done: impl Fn(&Self) -> bool) -> Result<u8> {
        let mut status = 0;
        while !done(self) {
            match ptrace::wait().context("cannot wait for the program")? {
                Waited::Nobody => break,
                Waited::Interrupted => {
                    if self.may_leave && self.signals.interrupted() {
                        self.leave()?;
                    } else if self.signals.alarmed() {
                        self.tick()?;
                    }
                }
                Waited::Changed(pid, Change::Ended(code)) => {
                    self.gone(pid)?;
                    if Some(pid) == first {
                        status = code;
                        if self.may_leave {
                            self.leave()?;
                        }
                        self.may_leave = true;
                    }
                }
                Waited::Changed(pid, change) => self.changed(pid, change)?,
            }
        }
        Ok(status)
    }

    /// Handles a change of a tracee.
    fn changed(&mut self, pid: pid_t, change: Change) -> Result<()> {
        let mut signal = 0;
        match change {
            Change::Signal(number) => {
                signal = match self.given.get_mut(&pid) {
                    Some(given) => self.observer.signal(pid, given, number)?,
                    None => number,
                };
            }
            Change::Executed(before) => self.executed(pid, before)?,
            Change::Began | Change::Stopped => self.begin(pid)?,
            Change::Ended(_) | Change::Started => {}
        }
        self.stopped(pid)?;
        if self.leaving {
            self.end(pid)?;
            ptrace::detach(pid, signal)?;
        } else if change == Change::Stopped {
            ptrace::leave_stopped(pid)?;
        } else {
            ptrace::go_on(pid, signal)?;
        }
        Ok(())
    }

    /// Notes that an interrupted thread has stopped.
    fn stopped(&mut self, pid: pid_t) -> Result<()> {
        let last = self.asked.remove(&pid) && self.asked.is_empty();
        if last && !self.attaching && !self.leaving {
            self.observer.interval(&self.given)?;
        }
        Ok(())
    }

    /// Notes that a thread has ended, perhaps after it was interrupted and before it has stopped.
    fn gone(&mut self, pid: pid_t) -> Result<()> {
        self.end(pid)?;
        self.stopped(pid)
    }

    /// Ends an interval. The counts of threads that do not run are known.
    fn tick(&mut self) -> Result<()> {
        if self.attaching || self.leaving || !self.asked.is_empty() {
            return Ok(());
        }
        let runs =
            |pid: &&pid_t| status(**pid, "State").is_some_and(|state| state.starts_with('R'));
        for &pid in self.given.keys().filter(runs) {
            ptrace::interrupt(pid)?;
            self.asked.insert(pid);
        }
        if self.asked.is_empty() { self.observer.interval(&self.given) } else { Ok(()) }
    }

    /// Detaches every thread.
    fn leave(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.leaving, true) {
            for &pid in self.given.keys() {
                ptrace::interrupt(pid)?;
            }
        }
        Ok(())
    }

    /// Begins with a new thread, which gets its data now. A thread that was stopped before has its
    /// data already.
    fn begin(&mut self, pid: pid_t) -> Result<()> {
        if self.waits != Some(pid) && !self.leaving && !self.given.contains_key(&pid) {
            self.give(pid)?;
        }
        Ok(())
    }

    /// Handles a thread that executes another program. It continues with its data. It may have got
    /// its process's number, which was the number of a thread that has ended.
    fn executed(&mut self, pid: pid_t, before: pid_t) -> Result<()> {
        self.waits = None;
        if before != pid {
            self.end(pid)?;
            if let Some(given) = self.given.remove(&before) {
                self.given.insert(pid, given);
            }
            self.stopped(before)?;
        }
        let keeps = match self.given.get_mut(&pid) {
            Some(given) => self.observer.keeps(pid, given)?,
            None => false,
        };
        if !keeps {
            // This is the first program, or one with more rights than the caller.
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

#[cfg(test)]
mod tests;
