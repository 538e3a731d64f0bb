// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Through `/dev/perfctr`: every thread has counters of its own, which its tracer gives it before
//! it executes its first instruction.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result};
use libc::pid_t;
use perfctr::raw::Device;
use shared_abi::ioctl::Control;

use super::{Count, Run, Thread};
use crate::program::tracer::{self, Followed, Observer};
use crate::program::{device, name};

/// Runs the program.
pub fn run(command: &[OsString], control: &Control, tsc_khz: u32) -> Result<Run> {
    let mut counting = Counting { control, tsc_khz, ended: Vec::new() };
    let Followed { status, elapsed, unobserved } = tracer::run(command, &mut counting)?;
    let threads = counting.ended;
    let sum = |n: usize| threads.iter().map(|thread| thread.counts[n]).sum();
    let counters = 0..control.counters as usize;
    let counts = counters.map(|n| Count { value: sum(n), share: 1.0 }).collect();
    Ok(Run { status, elapsed, counts, threads, unobserved })
}

struct Counting<'a> {
    control: &'a Control,
    tsc_khz: u32,
    ended: Vec<Thread>,
}

/// A thread's counters.
struct Counters {
    device: Device,
    name: String,
}

impl Observer for Counting<'_> {
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
        let counts = sums.counter[..self.control.counters as usize].to_vec();
        let time = Duration::from_secs_f64(sums.tsc as f64 / f64::from(self.tsc_khz) / 1e3);
        self.ended.push(Thread { pid: pid.cast_unsigned(), name, counts, time });
        Ok(())
    }
}
