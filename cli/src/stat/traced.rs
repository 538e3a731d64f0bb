// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts through `/dev/perfctr`. Every thread has counters of its own, which its tracer gives it
//! before its first instruction.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result};
use libc::pid_t;
use perfctr::Event;
use perfctr::raw::Device;
use perfctr::watch::{Watch, Watched};
use shared_abi::ioctl::{Control, Sums};

use super::output::Intervals;
use super::{Count, Run, Thread};
use crate::live::{How, watch};
use crate::program::tracer::{self, Followed, Observer};
use crate::program::{Signals, Target, device, name};

/// Observes the target. `control` has the events that counters count.
pub fn run(
    target: Target<'_>,
    events: &[Event],
    control: &Control,
    tsc_khz: u32,
    signals: &Signals,
    intervals: Option<&mut Intervals<'_>>,
) -> Result<Run> {
    let mut counting =
        Counting { events, control, tsc_khz, ended: Vec::new(), interrupts: 0, intervals };
    let Followed { status, elapsed, unobserved } = tracer::run(target, &mut counting, signals)?;
    let counts = counting.counts(&HashMap::new())?;
    let (threads, interrupts) = (counting.ended, counting.interrupts);
    let time = threads.iter().map(|thread| thread.time).sum();
    Ok(Run { status, elapsed, time, counts, threads, unobserved, interrupts })
}

struct Counting<'a, 'b> {
    events: &'a [Event],
    control: &'a Control,
    tsc_khz: u32,
    ended: Vec<Thread>,
    /// See [`Run`].
    interrupts: u64,
    intervals: Option<&'a mut Intervals<'b>>,
}

/// A thread's counters.
struct Counters {
    device: Device,
    /// The events that the kernel counts.
    software: Watched,
    name: String,
}

impl Counting<'_, '_> {
    /// Returns the counts of all threads until now.
    fn counts(&self, live: &HashMap<pid_t, Counters>) -> Result<Vec<Count>> {
        let live = live.values().map(|counters| Ok(self.of_thread(counters)?.0));
        let live = live.collect::<Result<Vec<Vec<u64>>>>().context("a thread has no counts")?;
        let sum = |n: usize| {
            let ended = self.ended.iter().map(|thread| thread.counts[n]).sum::<u64>();
            ended + live.iter().map(|counts| counts[n]).sum::<u64>()
        };
        Ok((0..self.events.len()).map(|n| Count { value: sum(n), share: 1.0 }).collect())
    }

    /// Returns the counts of a thread in the order of the events, and its sums.
    fn of_thread(&self, counters: &Counters) -> Result<(Vec<u64>, Sums)> {
        let (sums, totals) = (counters.device.sums()?, counters.software.read()?);
        let mut counted = sums.counter.iter().copied();
        let mut software = totals.values().iter().map(|total| total.count);
        let of_event = |event: &Event| match event.is_software() {
            true => software.next(),
            false => counted.next(),
        };
        let counts = self.events.iter().filter_map(of_event).collect();
        Ok((counts, sums))
    }
}

impl Observer for Counting<'_, '_> {
    type Given = Counters;

    fn give(&mut self, pid: pid_t) -> Result<Option<Counters>> {
        let Some(device) = device::give(pid, self.control)? else { return Ok(None) };
        let events = self.events.iter().copied().filter(|event| event.is_software());
        let events: Vec<Event> = events.collect();
        match watch(Watch::thread(pid.cast_unsigned()), How::InTurns, &events).open() {
            Ok(software) => Ok(Some(Counters { device, software, name: name(pid) })),
            // The thread was killed meanwhile.
            Err(error) if error.errno() == Some(libc::ESRCH) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("thread {pid}")),
        }
    }

    fn keeps(&mut self, pid: pid_t, counters: &mut Counters) -> Result<bool> {
        let keeps = device::has_counters(pid)?;
        if keeps {
            counters.name = name(pid);
        }
        Ok(keeps)
    }

    fn ended(&mut self, pid: pid_t, counters: Counters) -> Result<()> {
        let counts = self.of_thread(&counters);
        let Counters { device, name, .. } = counters;
        let (counts, sums) =
            counts.with_context(|| format!("thread {pid} ({name}) has no counts"))?;
        // An older module subtracts none, and does not know the request.
        self.interrupts += device.interrupts().unwrap_or(0);
        // A thread that continues does so without counters. One that has ended has none.
        let _ = device.unlink();
        let time = Duration::from_secs_f64(sums.tsc as f64 / f64::from(self.tsc_khz) / 1e3);
        self.ended.push(Thread { pid: pid.cast_unsigned(), name, counts, time });
        Ok(())
    }

    fn interval(&mut self, live: &HashMap<pid_t, Counters>) -> Result<()> {
        let counts = self.counts(live)?;
        self.intervals.as_mut().map_or(Ok(()), |intervals| intervals.print(&counts))
    }
}
