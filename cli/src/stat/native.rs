// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts through `perf_event_open(2)`, whose events are inherited by threads and children.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libc::pid_t;
use perfctr::Event;
use perfctr::watch::{Total, Watch, Watched};

use super::output::Intervals;
use super::{Count, Run};
use crate::live::{of_process, watch};
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
    let mut counting = Counting { signals, intervals, watched: None };
    let (status, elapsed) = match target {
        Target::Program(command) => counting.program(command, events)?,
        Target::Process(pid, command) => counting.process(pid, command, events)?,
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
    /// The watch, as soon as the target is there.
    watched: Option<Watched>,
}

impl Counting<'_, '_> {
    fn read(&self) -> Result<Vec<Total>> {
        let totals = self.watched.as_ref().map(Watched::read).transpose()?;
        Ok(totals.map_or_else(Vec::new, |totals| totals.into_values()))
    }

    fn program(&mut self, command: &[OsString], events: &[Event]) -> Result<(u8, Duration)> {
        // Nothing is traced, so only children can be waited for.
        adopt_orphans().context("cannot wait for all that the program starts")?;
        let child = Child::new(command)?;
        let first = child.pid();
        let program = Watch::thread(first.cast_unsigned()).inherit().from_exec();
        self.watched = Some(watch(program, events).open()?);
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

    fn process(
        &mut self,
        pid: pid_t,
        command: &[OsString],
        events: &[Event],
    ) -> Result<(u8, Duration)> {
        let child = (!command.is_empty()).then(|| Child::new(command)).transpose()?;
        limits::raise();
        self.watched = Some(of_process(events, pid)?);
        let (first, start) = (child.as_ref().map(Child::pid), Instant::now());
        let started = child.map(Child::go).transpose()?;
        let mut status = 0;
        while !self.signals.interrupted() && lives(pid) {
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
