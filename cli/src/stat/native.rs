// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts through `perf_event_open(2)`, whose events are inherited by threads and children.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result};
use libc::pid_t;
use perfctr::Event;
use perfctr::watch::{Total, Watch, Watched};

use super::output::Intervals;
use super::{Count, Run};
use crate::live::{How, Live, watch};
use crate::program::beside::{self, Beside};
use crate::program::child::Child;
use crate::program::ptrace::{self, Change, Waited};
use crate::program::{Signals, Target, adopt_orphans};

/// Observes the target.
pub fn run(
    target: Target<'_>,
    groups: &[Vec<Event>],
    signals: &Signals,
    intervals: Option<&mut Intervals<'_>>,
) -> Result<Run> {
    let mut counting = Counting { signals, intervals, target, groups, watched: Vec::new() };
    let (status, elapsed) = match (target, target.parts()) {
        (Target::Program(command), _) => counting.program(command)?,
        (_, (command, observed)) => beside::run(command, observed, signals, &mut counting)?,
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
        interrupts: 0,
    })
}

struct Counting<'a, 'b> {
    signals: &'a Signals,
    intervals: Option<&'a mut Intervals<'b>>,
    target: Target<'a>,
    groups: &'a [Vec<Event>],
    /// The watches of each group of events, as soon as the target exists. If CPUs are counted,
    /// there is one for each CPU.
    watched: Vec<Vec<Watched>>,
}

impl Counting<'_, '_> {
    fn read(&self) -> Result<Vec<Total>> {
        let groups: Result<Vec<Vec<Total>>> =
            self.watched.iter().map(|group| sums(group)).collect();
        Ok(groups?.concat())
    }

    /// Opens the watches of each group.
    fn open(&mut self, open: impl Fn(&[Event]) -> Result<Vec<Watched>>) -> Result<()> {
        self.watched = self.groups.iter().map(|group| open(group)).collect::<Result<_>>()?;
        Ok(())
    }

    fn program(&mut self, command: &[OsString]) -> Result<(u8, Duration)> {
        // Nothing is traced, so only children can be waited for.
        adopt_orphans().context("cannot wait for all that the program starts")?;
        let child = Child::new(command)?;
        let first = child.pid();
        let program = Watch::thread(first.cast_unsigned()).inherit().from_exec();
        self.open(|group| Ok(vec![watch(program.clone(), how(group), group).open()?]))?;
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
    fn begin(&mut self, _: Option<pid_t>) -> Result<()> {
        let live = Live::of(self.target)?;
        self.open(|group| live.iter().cloned().map(|live| live.count(how(group), group)).collect())
    }

    fn tick(&mut self) -> Result<()> {
        if !self.signals.alarmed() || self.intervals.is_none() {
            return Ok(());
        }
        let counts: Vec<Count> = self.read()?.iter().map(estimate).collect();
        self.intervals.as_mut().map_or(Ok(()), |intervals| intervals.print(&counts))
    }
}

/// Returns how a group is counted. An event outside of all groups is a group of its own, and takes
/// turns with the others.
fn how(group: &[Event]) -> How {
    if group.len() > 1 { How::Together } else { How::InTurns }
}

/// Returns the totals of each event of a group, summed over its watches.
fn sums(group: &[Watched]) -> Result<Vec<Total>> {
    let read = |watched: &Watched| Ok(watched.read()?.into_values());
    let all = group.iter().map(read).collect::<Result<Vec<_>>>()?;
    let events = all.first().map_or(0, Vec::len);
    Ok((0..events).map(|n| all.iter().map(|totals| totals[n]).sum()).collect())
}

/// Estimates the count that the event would have if it had been counted all the time.
pub fn estimate(total: &Total) -> Count {
    Count { value: total.scaled().unwrap_or(0), share: total.share() }
}
