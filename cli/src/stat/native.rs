// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts through `perf_event_open(2)`, whose events are inherited by threads and children.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libc::pid_t;
use perfctr::Event;
use perfctr::raw::online;
use perfctr::watch::{Total, Watch, Watched};

use super::output::Intervals;
use super::{Count, Run};
use crate::live::{of_cpu, of_process, of_thread, watch};
use crate::program::child::{Child, Started};
use crate::program::ptrace::{self, Change, Waited};
use crate::program::{LOOK, Signals, Target, adopt_orphans, limits, status};

/// Observes the target.
pub fn run(
    target: Target<'_>,
    events: &[Event],
    signals: &Signals,
    intervals: Option<&mut Intervals<'_>>,
) -> Result<Run> {
    let mut counting = Counting { signals, intervals, watched: Vec::new() };
    let (status, elapsed) = match target {
        Target::Program(command) => counting.program(command, events)?,
        Target::Process(pid, command) => {
            counting.live(command, Some(pid), || Ok(vec![of_process(events, pid)?]))?
        }
        Target::Thread(tid, command) => {
            counting.live(command, Some(tid), || Ok(vec![of_thread(events, tid)?]))?
        }
        Target::Cpus(command) => counting.live(command, None, || {
            let cpus = online().context("which CPUs are there?")?;
            cpus.into_iter().map(|cpu| of_cpu(events, cpu)).collect()
        })?,
    };
    let totals = counting.read()?;
    let time = totals.first().map_or(Duration::ZERO, |total| total.enabled);
    Ok(Run {
        status,
        elapsed,
        time,
        counts: totals.iter().map(estimate).collect(),
        threads: Vec::new(),
        unobserved: 0,
    })
}

struct Counting<'a, 'b> {
    signals: &'a Signals,
    intervals: Option<&'a mut Intervals<'b>>,
    /// The watches of the target, as soon as it is there: one for each CPU if CPUs are counted.
    watched: Vec<Watched>,
}

impl Counting<'_, '_> {
    fn read(&self) -> Result<Vec<Total>> {
        let read = |watched: &Watched| Ok(watched.read()?.into_values());
        let all = self.watched.iter().map(read).collect::<Result<Vec<_>>>()?;
        let events = all.first().map_or(0, Vec::len);
        Ok((0..events).map(|n| all.iter().map(|totals| totals[n]).sum()).collect())
    }

    fn program(&mut self, command: &[OsString], events: &[Event]) -> Result<(u8, Duration)> {
        // Nothing is traced, so only children can be waited for.
        adopt_orphans().context("cannot wait for all that the program starts")?;
        let child = Child::new(command)?;
        let first = child.pid();
        let program = Watch::thread(first.cast_unsigned()).inherit().from_exec();
        self.watched = vec![watch(program, events).open()?];
        let started = child.go()?;
        let (mut status, mut ended) = (0, false);
        loop {
            match ptrace::wait().context("cannot wait for the program")? {
                Waited::Nobody => break,
                Waited::Changed(pid, Change::Ended(code)) if pid == first => {
                    (status, ended) = (code, true);
                }
                Waited::Changed(..) => {}
                // Processes that the program has left behind need not end on an interrupt.
                Waited::Interrupted if ended && self.signals.interrupted() => break,
                Waited::Interrupted => self.tick()?,
            }
        }
        Ok((status, started.ended()?))
    }

    /// Counts what exists already, until the command ends, the caller interrupts, or `counted` has
    /// ended.
    fn live(
        &mut self,
        command: &[OsString],
        counted: Option<pid_t>,
        open: impl FnOnce() -> Result<Vec<Watched>>,
    ) -> Result<(u8, Duration)> {
        let child = (!command.is_empty()).then(|| Child::new(command)).transpose()?;
        limits::raise();
        self.watched = open()?;
        let (first, start) = (child.as_ref().map(Child::pid), Instant::now());
        let started = child.map(Child::go).transpose()?;
        let mut status = 0;
        while !self.signals.interrupted() && counted.is_none_or(lives) {
            let Some(first) = first else {
                // Any signal ends the wait.
                std::thread::sleep(LOOK);
                self.tick()?;
                continue;
            };
            match ptrace::wait().context("cannot wait for the program")? {
                Waited::Nobody => break,
                Waited::Changed(ended, Change::Ended(code)) if ended == first => {
                    status = code;
                    break;
                }
                Waited::Changed(..) => {}
                Waited::Interrupted => self.tick()?,
            }
        }
        let elapsed = started.map_or_else(|| Ok(start.elapsed()), Started::ended)?;
        Ok((status, elapsed))
    }

    fn tick(&mut self) -> Result<()> {
        if !self.signals.alarmed() || self.intervals.is_none() {
            return Ok(());
        }
        let counts: Vec<Count> = self.read()?.iter().map(estimate).collect();
        self.intervals.as_mut().map_or(Ok(()), |intervals| intervals.print(&counts))
    }
}

/// Returns whether the process is still there, and not a zombie.
fn lives(pid: pid_t) -> bool {
    status(pid, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// Estimates what the event would have counted if it had been counted all the time.
pub fn estimate(total: &Total) -> Count {
    Count { value: total.scaled().unwrap_or(0), share: total.share() }
}
