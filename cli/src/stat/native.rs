// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts through `perf_event_open(2)`, whose events are inherited by threads and children.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result};
use perfctr::Event;
use perfctr::raw::online;
use perfctr::watch::{Total, Watch, Watched};

use super::output::Intervals;
use super::{Count, Run};
use crate::live::{of_cpu, of_process, of_thread, watch};
use crate::program::beside::{self, Beside};
use crate::program::child::Child;
use crate::program::ptrace::{self, Change, Waited};
use crate::program::{Signals, Target, adopt_orphans};

/// Observes the target.
pub fn run(
    target: Target<'_>,
    events: &[Event],
    signals: &Signals,
    intervals: Option<&mut Intervals<'_>>,
) -> Result<Run> {
    let mut counting = Counting { signals, intervals, target, events, watched: Vec::new() };
    let (status, elapsed) = match target {
        Target::Program(command) => counting.program(command)?,
        Target::Process(id, command) | Target::Thread(id, command) => {
            beside::run(command, Some(id), signals, &mut counting)?
        }
        Target::Cpus(command) => beside::run(command, None, signals, &mut counting)?,
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
    target: Target<'a>,
    events: &'a [Event],
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

    fn program(&mut self, command: &[OsString]) -> Result<(u8, Duration)> {
        // Nothing is traced, so only children can be waited for.
        adopt_orphans().context("cannot wait for all that the program starts")?;
        let child = Child::new(command)?;
        let first = child.pid();
        let program = Watch::thread(first.cast_unsigned()).inherit().from_exec();
        self.watched = vec![watch(program, self.events).open()?];
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
}

impl Beside for Counting<'_, '_> {
    fn begin(&mut self) -> Result<()> {
        let events = self.events;
        self.watched = match self.target {
            // A program's watch is opened when there is its process.
            Target::Program(_) => Vec::new(),
            Target::Process(pid, _) => vec![of_process(events, pid)?],
            Target::Thread(tid, _) => vec![of_thread(events, tid)?],
            Target::Cpus(_) => {
                let cpus = online().context("which CPUs are there?")?;
                cpus.into_iter().map(|cpu| of_cpu(events, cpu)).collect::<Result<_>>()?
            }
        };
        Ok(())
    }

    fn tick(&mut self) -> Result<()> {
        if !self.signals.alarmed() || self.intervals.is_none() {
            return Ok(());
        }
        let counts: Vec<Count> = self.read()?.iter().map(estimate).collect();
        self.intervals.as_mut().map_or(Ok(()), |intervals| intervals.print(&counts))
    }
}

/// Estimates what the event would have counted if it had been counted all the time.
pub fn estimate(total: &Total) -> Count {
    Count { value: total.scaled().unwrap_or(0), share: total.share() }
}
