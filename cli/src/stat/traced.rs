// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts through `/dev/perfctr`: every thread has counters of its own, which its tracer gives it
//! before it executes its first instruction.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result};
use libc::pid_t;
use perfctr::raw::Device;
use shared_abi::ioctl::{Control, Sums};

use super::output::Intervals;
use super::{Count, Run, Thread};
use crate::program::tracer::{self, Followed, Observer};
use crate::program::{Signals, Target, device, name};

/// Observes the target.
pub fn run(
    target: Target<'_>,
    control: &Control,
    tsc_khz: u32,
    signals: &Signals,
    intervals: Option<&mut Intervals<'_>>,
) -> Result<Run> {
    let mut counting = Counting { control, tsc_khz, ended: Vec::new(), intervals };
    let Followed { status, elapsed, unobserved } = tracer::run(target, &mut counting, signals)?;
    let counts = counting.counts(&HashMap::new())?;
    let threads = counting.ended;
    let time = threads.iter().map(|thread| thread.time).sum();
    Ok(Run { status, elapsed, time, counts, threads, unobserved })
}

struct Counting<'a, 'b> {
    control: &'a Control,
    tsc_khz: u32,
    ended: Vec<Thread>,
    intervals: Option<&'a mut Intervals<'b>>,
}

/// A thread's counters.
struct Counters {
    device: Device,
    name: String,
}

impl Counting<'_, '_> {
    /// Returns the counts of all threads until now.
    fn counts(&self, live: &HashMap<pid_t, Counters>) -> Result<Vec<Count>> {
        let live = live.values().map(|counters| counters.device.sums());
        let live = live.collect::<Result<Vec<Sums>, _>>().context("a thread has no counts")?;
        let sum = |n: usize| {
            let ended = self.ended.iter().map(|thread| thread.counts[n]).sum::<u64>();
            ended + live.iter().map(|sums| sums.counter[n]).sum::<u64>()
        };
        let counters = 0..self.control.counters as usize;
        Ok(counters.map(|n| Count { value: sum(n), share: 1.0 }).collect())
    }
}

impl Observer for Counting<'_, '_> {
    type Given = Counters;

    fn give(&mut self, pid: pid_t) -> Result<Option<Counters>> {
        let device = device::give(pid, self.control)?;
        Ok(device.map(|device| Counters { device, name: name(pid) }))
    }

    fn keeps(&mut self, pid: pid_t, counters: &mut Counters) -> Result<bool> {
        let keeps = device::has_counters(pid)?;
        if keeps {
            counters.name = name(pid);
        }
        Ok(keeps)
    }

    fn ended(&mut self, pid: pid_t, Counters { device, name }: Counters) -> Result<()> {
        let sums = device.sums().with_context(|| format!("thread {pid} ({name}) has no counts"))?;
        // A thread that continues does so without counters. One that has ended has none.
        let _ = device.unlink();
        let counts = sums.counter[..self.control.counters as usize].to_vec();
        let time = Duration::from_secs_f64(sums.tsc as f64 / f64::from(self.tsc_khz) / 1e3);
        self.ended.push(Thread { pid: pid.cast_unsigned(), name, counts, time });
        Ok(())
    }

    fn interval(&mut self, live: &HashMap<pid_t, Counters>) -> Result<()> {
        let counts = self.counts(live)?;
        self.intervals.as_mut().map_or(Ok(()), |intervals| intervals.print(&counts))
    }
}
