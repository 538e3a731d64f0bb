// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts running threads, processes, groups of processes and CPUs by perf events, without stopping
//! them.
//!
//! In a guest with the module, the module counts these events, as exactly as through its device.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use libc::pid_t;
use perfctr::watch::{Watch, Watched};
use perfctr::{Cause, Error, Event};

use crate::program::{name, processes, threads};

/// How a watch counts several events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// They may take turns.
    InTurns,
    /// At the same time or not at all.
    Together,
}

/// Adds these events to a watch, in their order.
pub fn watch(watch: Watch, how: How, events: &[Event]) -> Watch {
    let watch = if how == How::Together { watch.together() } else { watch };
    events.iter().fold(watch, |watch, &event| watch.count(event.to_string(), event))
}

/// Watches a process, with all threads and processes that it starts from now on.
pub fn of_process(how: How, events: &[Event], pid: pid_t) -> Result<Watched> {
    let watched = watch(Watch::process(pid.cast_unsigned()).inherit(), how, events).open();
    watched.with_context(|| format!("process {pid}"))
}

/// Watches a thread, with all threads and processes that it starts from now on.
pub fn of_thread(how: How, events: &[Event], tid: pid_t) -> Result<Watched> {
    let watched = watch(Watch::thread(tid.cast_unsigned()).inherit(), how, events).open();
    watched.with_context(|| format!("thread {tid}"))
}

/// Watches what a group of processes does on all CPUs.
pub fn of_cgroup(how: How, events: &[Event], directory: &Path) -> Result<Watched> {
    let watched = cgroup(directory).and_then(|group| Ok(watch(group, how, events).open()?));
    watched.with_context(|| format!("cgroup {}", directory.display()))
}

/// Returns a watch of a group of processes.
pub fn cgroup(directory: &Path) -> Result<Watch> {
    let group = Watch::cgroup(directory)?;
    let is_group = directory.join("cgroup.procs").exists();
    ensure!(
        is_group,
        "this is no group's directory in cgroup v2, such as /sys/fs/cgroup/web.slice"
    );
    Ok(group)
}

/// Watches what one CPU does.
pub fn of_cpu(how: How, events: &[Event], cpu: u32) -> Result<Watched> {
    watch(Watch::cpu(cpu), how, events).open().with_context(|| format!("CPU {cpu}"))
}

/// A thread that is counted.
#[derive(Debug)]
pub struct Thread {
    pub pid: pid_t,
    pub name: String,
    pub watched: Watched,
}

/// Threads, each counted since it was first seen.
#[derive(Debug)]
pub struct Threads {
    events: Vec<Event>,
    /// The processes whose threads are counted. If there are none, those of all are.
    pids: Vec<pid_t>,
    pub live: BTreeMap<pid_t, Thread>,
}

impl Threads {
    /// # Errors
    ///
    /// One of the processes does not exist.
    pub fn new(events: &[Event], pids: &[pid_t]) -> Result<Self> {
        for pid in pids {
            threads(*pid).with_context(|| format!("there is no process {pid}"))?;
        }
        Ok(Self { events: events.to_vec(), pids: pids.to_vec(), live: BTreeMap::new() })
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
        match watch(Watch::thread(tid.cast_unsigned()), How::InTurns, &self.events).open() {
            Ok(watched) => {
                self.live.insert(tid, Thread { pid, name: name(tid), watched });
                Ok(())
            }
            Err(error) if error.errno() == Some(libc::ESRCH) => Ok(()),
            Err(Error::Refused(refusal)) if self.passes_over(refusal.cause) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("thread {tid}")),
        }
    }

    /// Returns whether a thread that is refused for this reason is left out. If all processes are
    /// counted, some are not the caller's.
    fn passes_over(&self, cause: Cause) -> bool {
        self.pids.is_empty() && cause == Cause::OthersThread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_was_asked_for_is_left_out() {
        let all = Threads::new(&[], &[]).unwrap();
        let named = Threads::new(&[], &[std::process::id().cast_signed()]).unwrap();
        assert!(all.passes_over(Cause::OthersThread));
        assert!(!named.passes_over(Cause::OthersThread));
        for threads in [all, named] {
            assert!(!threads.passes_over(Cause::Forbidden));
        }
    }
}
