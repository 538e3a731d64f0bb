// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts of what runs, by perf events and without stopping anybody: of threads, processes, groups
//! of processes, and CPUs.
//!
//! In a guest with the module these are counted by it, as exactly as through its device.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use libc::pid_t;
use perfctr::raw::{PerfCount, PerfEvent, cpus_in, of_cpu, of_program, of_running, of_single};
use perfctr::{Error, Event};

use crate::program::{name, processes, threads};

/// Events of one kind, each in as many parts as it was opened.
#[derive(Debug, Default)]
pub struct Counter(Vec<Vec<PerfEvent>>);

impl Counter {
    /// Each event's count, of all parts.
    pub fn read(&self) -> io::Result<Vec<PerfCount>> {
        let sum = |parts: &Vec<PerfEvent>| {
            parts.iter().try_fold(PerfCount::default(), |sum, part| {
                let PerfCount { count, enabled_ns, running_ns } = part.counted()?;
                Ok(PerfCount {
                    count: sum.count + count,
                    enabled_ns: sum.enabled_ns + enabled_ns,
                    running_ns: sum.running_ns + running_ns,
                })
            })
        };
        self.0.iter().map(sum).collect()
    }

    fn open(
        events: &[Event],
        parts: impl Fn(&Event) -> Result<Vec<PerfEvent>, Error>,
    ) -> Result<Self, Error> {
        events.iter().map(parts).collect::<Result<_, _>>().map(Self)
    }

    /// Of a process that waits for leave before it executes a program, and of all that it starts.
    pub fn of_program(events: &[Event], pid: pid_t) -> Result<Self, Error> {
        Self::open(events, |event| Ok(vec![of_program(event, pid.cast_unsigned())?]))
    }

    /// A process's, with all threads and processes that it starts from now on.
    pub fn of_process(events: &[Event], pid: pid_t) -> Result<Self> {
        let what = || format!("process {pid}");
        let threads = threads(pid).with_context(what)?;
        let of = |event: &Event| {
            threads.iter().map(|thread| of_running(event, thread.cast_unsigned())).collect()
        };
        Self::open(events, of).with_context(what)
    }

    /// What a group of processes does on all CPUs.
    pub fn of_cgroup(events: &[Event], directory: &Path) -> Result<Self> {
        let what = || format!("cgroup {}", directory.display());
        let open = File::open(directory).with_context(what)?;
        let cpus = cpus().with_context(what)?;
        let of = |event: &Event| cpus.iter().map(|&cpu| of_cpu(event, cpu, Some(&open))).collect();
        Self::open(events, of).with_context(what)
    }

    /// What one CPU does.
    pub fn of_cpu(events: &[Event], cpu: u32) -> Result<Self> {
        Self::open(events, |event| Ok(vec![of_cpu(event, cpu, None)?]))
            .with_context(|| format!("CPU {cpu}"))
    }

    fn of_single(events: &[Event], tid: pid_t) -> Result<Self, Error> {
        Self::open(events, |event| Ok(vec![of_single(event, tid.cast_unsigned())?]))
    }
}

/// The CPUs that are online.
pub fn cpus() -> io::Result<Vec<u32>> {
    Ok(cpus_in(&fs::read_to_string("/sys/devices/system/cpu/online")?))
}

/// A thread that is counted.
#[derive(Debug)]
pub struct Thread {
    pub pid: pid_t,
    pub name: String,
    pub counter: Counter,
}

/// Threads, each counted since it was first seen.
#[derive(Debug)]
pub struct Threads {
    events: Vec<Event>,
    /// Of these processes; of all if there are none.
    pids: Vec<pid_t>,
    pub live: BTreeMap<pid_t, Thread>,
}

impl Threads {
    pub fn new(events: &[Event], pids: &[pid_t]) -> Self {
        Self { events: events.to_vec(), pids: pids.to_vec(), live: BTreeMap::new() }
    }

    /// Finds threads that are new, and forgets those that have ended.
    pub fn refresh(&mut self) -> Result<()> {
        let pids = if self.pids.is_empty() { processes()? } else { self.pids.clone() };
        let mut seen = BTreeSet::new();
        for pid in pids {
            // A process may end at any time.
            for tid in threads(pid).unwrap_or_default() {
                seen.insert(tid);
                if !self.live.contains_key(&tid) {
                    self.open(pid, tid)?;
                }
            }
        }
        self.live.retain(|tid, _| seen.contains(tid));
        Ok(())
    }

    fn open(&mut self, pid: pid_t, tid: pid_t) -> Result<()> {
        match Counter::of_single(&self.events, tid) {
            Ok(counter) => {
                self.live.insert(tid, Thread { pid, name: name(tid), counter });
                Ok(())
            }
            Err(Error::Kernel { source, .. }) if source.raw_os_error() == Some(libc::ESRCH) => {
                Ok(())
            }
            // Of all processes some are none of the caller's.
            Err(Error::Kernel { source, .. })
                if self.pids.is_empty()
                    && matches!(source.raw_os_error(), Some(libc::EACCES | libc::EPERM)) =>
            {
                Ok(())
            }
            Err(error) => Err(error).with_context(|| format!("thread {tid}")),
        }
    }
}
