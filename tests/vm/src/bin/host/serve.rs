// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What the guest's tests ask for.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use nix::unistd::Pid;
use vm_tests::kvm::{Request, answer};
use vm_tests::raw::Refusal;
use vm_tests::threads::run_on;

use crate::{FORBID, allow, vcpus, write};

/// What the driver has done, as numbers.
const STATS: &str = "/sys/module/kvm/parameters/perfctr_stats";
/// Times of the scheduler's, unit: ns: for how long a thread executes that others wait for, and for
/// how long in spite of one that wakes.
const SLICES: [(&str, u64); 2] = [
    ("/sys/kernel/debug/sched/min_granularity_ns", 100_000),
    ("/sys/kernel/debug/sched/wakeup_granularity_ns", 0),
];

/// A guest, and who asks.
pub struct Server<'a> {
    pub guest: Pid,
    /// The guest moves its vCPUs itself from now on.
    pub moves: &'a AtomicBool,
    /// The slices before they were shortened.
    pub usual: Vec<String>,
}

impl Server<'_> {
    /// Does what is asked through the socket, until the guest ends.
    pub fn run(&mut self, socket: &Path) -> Result<()> {
        let stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
        let mut to = stream.try_clone()?;
        for line in BufReader::new(stream).lines() {
            let outcome = self.act(line?.parse()?);
            writeln!(to, "{}", answer(outcome))?;
        }
        Ok(())
    }

    fn act(&mut self, request: Request) -> Result<Vec<u64>, Refusal> {
        match request {
            Request::Place { vcpu, pcpus } => {
                self.moves.store(true, Ordering::Relaxed);
                let cpus: Vec<usize> = (0..64).filter(|cpu| pcpus >> cpu & 1 == 1).collect();
                run_on(self.thread(vcpu)?, &cpus)?;
            }
            Request::PreemptOften(often) => self.preempt_often(often)?,
            Request::Runstate { vcpu } => return self.runstate(vcpu),
            Request::Allow(true) => allow(self.guest)?,
            Request::Allow(false) => write(FORBID, &self.guest.to_string())?,
            Request::Stats => return numbers(STATS),
        }
        Ok(Vec::new())
    }

    fn thread(&self, vcpu: u32) -> Result<Pid, Refusal> {
        vcpus(self.guest).get(vcpu as usize).copied().ok_or(Refusal::EINVAL)
    }

    /// Time on a CPU and waiting for one, by the scheduler's account of the vCPU's thread.
    fn runstate(&self, vcpu: u32) -> Result<Vec<u64>, Refusal> {
        let (process, thread) = (self.guest, self.thread(vcpu)?);
        let mut times = numbers(&format!("/proc/{process}/task/{thread}/schedstat"))?;
        times.truncate(2);
        Ok(times)
    }

    fn preempt_often(&mut self, often: bool) -> Result<(), Refusal> {
        if !often {
            let usual = std::mem::take(&mut self.usual);
            return SLICES.iter().zip(usual).try_for_each(|((path, _), ns)| write(path, &ns));
        }
        for (path, ns) in SLICES {
            self.usual.push(fs::read_to_string(path).map_err(|_| Refusal::ENOENT)?);
            write(path, &ns.to_string())?;
        }
        Ok(())
    }
}

fn numbers(path: &str) -> Result<Vec<u64>, Refusal> {
    let text = fs::read_to_string(path)
        .map_err(|error| error.raw_os_error().map_or(Refusal::EIO, Refusal::from_raw))?;
    text.split_whitespace().map(|word| word.parse().map_err(|_| Refusal::EPROTO)).collect()
}
