// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Through `perf_event_open(2)`, whose events are handed down to threads and children.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libc::pid_t;
use perfctr::Event;
use perfctr::raw::PerfCount;

use super::output::Intervals;
use super::{Count, Run};
use crate::live::Counter;
use crate::program::child::{Child, Started};
use crate::program::ptrace::{self, Change, Waited};
use crate::program::{LOOK, Signals, Target, status};

/// Observes the target.
pub fn run(
    target: Target<'_>,
    events: &[Event],
    signals: &Signals,
    intervals: Option<&mut Intervals<'_>>,
) -> Result<Run> {
    let mut counting = Counting { signals, intervals, counter: Counter::default() };
    let (status, elapsed) = match target {
        Target::Program(command) => counting.program(command, events)?,
        Target::Process(pid, command) => counting.process(pid, command, events)?,
    };
    let sums = counting.counter.read()?;
    let time = sums.first().map_or(0, |sum| sum.enabled_ns);
    Ok(Run {
        status,
        elapsed,
        time: Duration::from_nanos(time),
        counts: sums.into_iter().map(estimate).collect(),
        threads: Vec::new(),
        unobserved: 0,
    })
}

struct Counting<'a, 'b> {
    signals: &'a Signals,
    intervals: Option<&'a mut Intervals<'b>>,
    counter: Counter,
}

impl Counting<'_, '_> {
    fn program(&mut self, command: &[OsString], events: &[Event]) -> Result<(u8, Duration)> {
        let child = Child::new(command)?;
        let first = child.pid();
        self.counter = Counter::of_program(events, first)?;
        let started = child.go()?;
        let mut status = 0;
        // Nothing is traced: only the first process's end is told.
        loop {
            match ptrace::wait().context("cannot wait for the program")? {
                Waited::Nobody => return Ok((status, started.ended()?)),
                Waited::Changed(pid, Change::Ended(code)) if pid == first => status = code,
                Waited::Changed(..) => {}
                Waited::Interrupted => self.tick()?,
            }
        }
    }

    fn process(
        &mut self,
        pid: pid_t,
        command: &[OsString],
        events: &[Event],
    ) -> Result<(u8, Duration)> {
        let child = (!command.is_empty()).then(|| Child::new(command)).transpose()?;
        self.counter = Counter::of_process(events, pid)?;
        let (first, start) = (child.as_ref().map(Child::pid), Instant::now());
        let started = child.map(Child::go).transpose()?;
        let mut status = 0;
        while !self.signals.interrupted() && lives(pid) {
            let Some(first) = first else {
                // Whatever is signalled ends the wait.
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
        let counts: Vec<Count> = self.counter.read()?.into_iter().map(estimate).collect();
        self.intervals.as_mut().map_or(Ok(()), |intervals| intervals.print(&counts))
    }
}

/// Whether the process is still there, and no zombie.
fn lives(pid: pid_t) -> bool {
    status(pid, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// What the event would have counted if it had been counted all the time.
pub fn estimate(PerfCount { count, enabled_ns, running_ns }: PerfCount) -> Count {
    if running_ns == enabled_ns {
        return Count { value: count, share: 1.0 };
    }
    let share = running_ns as f64 / enabled_ns as f64;
    let value = if running_ns == 0 { 0 } else { (count as f64 / share).round() as u64 };
    Count { value, share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_counted_all_the_time_is_an_estimate() {
        let of =
            |count, enabled_ns, running_ns| estimate(PerfCount { count, enabled_ns, running_ns });
        assert_eq!(of(u64::MAX, 8, 8), Count { value: u64::MAX, share: 1.0 });
        assert_eq!(of(100, 8, 2), Count { value: 400, share: 0.25 });
        assert_eq!(of(0, 8, 0), Count { value: 0, share: 0.0 });
        assert_eq!(of(7, 0, 0), Count { value: 7, share: 1.0 });
    }
}
