// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts and samples running threads, processes, groups of processes and CPUs by perf events,
//! without stopping them.
//!
//! In a guest with the module, the module counts these events, as exactly as through its device.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use libc::pid_t;
use perfctr::raw::online;
use perfctr::watch::{Samples, Watch, Watched};
use perfctr::{Cause, Error, Event};

use crate::profile::Profile;
use crate::program::{Target, name, processes, threads};

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

/// Something that runs already, and a watch of it.
#[derive(Clone, Debug)]
pub struct Live {
    /// The name of it in errors.
    name: String,
    watch: Watch,
}

impl Live {
    /// Returns the parts of a target: each CPU if the target is all of them.
    pub fn of(target: Target<'_>) -> Result<Vec<Self>> {
        match target {
            Target::Process(pid, _) => Ok(vec![Self::process(pid)]),
            Target::Thread(tid, _) => Ok(vec![Self::thread(tid)]),
            Target::Cgroup(directory, _) => Ok(vec![Self::cgroup(directory)?]),
            Target::Cpus(_) => {
                let cpus = online().context("which CPUs are there?")?;
                Ok(cpus.into_iter().map(Self::cpu).collect())
            }
            Target::Program(_) => bail!("a program that is yet to begin does not run already"),
        }
    }

    /// Returns a program with all that it starts, from its first instruction on. This process will
    /// execute it.
    pub fn program(pid: pid_t) -> Self {
        let watch = Watch::thread(pid.cast_unsigned()).inherit().from_exec();
        Self { name: format!("process {pid}"), watch }
    }

    /// Returns a process, with all threads and processes that it starts from now on.
    pub fn process(pid: pid_t) -> Self {
        let watch = Watch::process(pid.cast_unsigned()).inherit();
        Self { name: format!("process {pid}"), watch }
    }

    /// Returns a thread, with all threads and processes that it starts from now on.
    fn thread(tid: pid_t) -> Self {
        let watch = Watch::thread(tid.cast_unsigned()).inherit();
        Self { name: format!("thread {tid}"), watch }
    }

    /// Returns a group of processes on all CPUs.
    pub fn cgroup(directory: &Path) -> Result<Self> {
        let name = format!("cgroup {}", directory.display());
        let watch = Watch::cgroup(directory).with_context(|| name.clone())?;
        let is_group = directory.join("cgroup.procs").exists();
        ensure!(
            is_group,
            "{name}: this is no group's directory in cgroup v2, such as /sys/fs/cgroup/web.slice"
        );
        Ok(Self { name, watch })
    }

    /// Returns everything that one CPU executes.
    pub fn cpu(cpu: u32) -> Self {
        Self { name: format!("CPU {cpu}"), watch: Watch::cpu(cpu) }
    }

    /// Counts these events of it.
    pub fn count(self, how: How, events: &[Event]) -> Result<Watched> {
        watch(self.watch, how, events).open().context(self.name)
    }

    /// Samples it by this event, which has a period unless the profile has a frequency. Samples
    /// have what the profile is to have.
    pub fn sample(self, event: Event, profile: &Profile) -> Result<Samples> {
        let watch = if profile.call_graph { self.watch.callers() } else { self.watch };
        let watch = if profile.branches.is_some() { watch.branches() } else { watch };
        let watch = profile.frequency.into_iter().fold(watch, Watch::frequency);
        watch.sample(event).context(self.name)
    }
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
    /// The processes whose threads are counted. If there are none, the threads of all processes are
    /// counted.
    pids: Vec<pid_t>,
    pub live: BTreeMap<pid_t, Thread>,
}

impl Threads {
    /// Makes the list of threads, which is empty until [`refresh`](Self::refresh).
    ///
    /// # Errors
    ///
    /// One of the processes does not exist.
    pub fn new(events: &[Event], pids: &[pid_t]) -> Result<Self> {
        for pid in pids {
            threads(*pid).with_context(|| format!("there is no process {pid}"))?;
        }
        Ok(Self { events: events.to_vec(), pids: pids.to_vec(), live: BTreeMap::new() })
    }

    /// Finds new threads, forgets those that have ended, and notes their present names. Programs
    /// name their threads after these have begun, and a process that executes another program gets
    /// that program's name.
    pub fn refresh(&mut self) -> Result<()> {
        let pids = if self.pids.is_empty() { processes()? } else { self.pids.clone() };
        let mut seen = BTreeSet::new();
        for pid in pids {
            // A process may end at any time.
            for tid in threads(pid).unwrap_or_default() {
                seen.insert(tid);
                match self.live.get_mut(&tid) {
                    Some(thread) => {
                        // A thread that has ended meanwhile has no name.
                        let name = Some(name(tid)).filter(|name| !name.is_empty());
                        name.into_iter().for_each(|name| thread.name = name);
                    }
                    None => self.open(pid, tid)?,
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

    /// Returns whether a thread that is refused for this reason is skipped. If all processes are
    /// counted, some are not the caller's.
    fn passes_over(&self, cause: Cause) -> bool {
        self.pids.is_empty() && cause == Cause::OthersThread
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::prctl;

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

    #[test]
    fn threads_are_there_from_the_look_after_they_begin_to_the_one_after_they_end() {
        let this = std::process::id().cast_signed();
        let mut threads = Threads::new(&[], &[this]).unwrap();
        let (wait, leave) = std::sync::mpsc::channel::<()>();
        let (sender, receiver) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            prctl::set_name(c"early").unwrap();
            sender.send(nix::unistd::gettid().as_raw()).unwrap();
            leave.recv().ok();
            prctl::set_name(c"late").unwrap();
            sender.send(0).unwrap();
            leave.recv().ok();
        });
        let tid = receiver.recv().unwrap();
        let mut is_there = || {
            threads.refresh().unwrap();
            threads.live.get(&tid).map(|thread| (thread.pid, thread.name.clone()))
        };
        let named = |name: &str| Some((this, name.to_owned()));
        assert_eq!(is_there(), named("early"), "thread {tid} of process {this} has begun");
        wait.send(()).unwrap();
        receiver.recv().unwrap();
        assert_eq!(is_there(), named("late"), "thread {tid} goes on by another name");
        drop(wait);
        other.join().unwrap();
        // The kernel may list a thread for a moment after it was waited for.
        while std::path::Path::new(&format!("/proc/{this}/task/{tid}")).exists() {
            std::thread::yield_now();
        }
        assert_eq!(is_there(), None, "thread {tid} has ended");
    }
}
