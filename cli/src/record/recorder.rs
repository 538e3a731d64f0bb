// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Records a sample at each overflow.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::time::Instant;

use anyhow::{Context, Result};
use libc::{c_int, pid_t};

use super::counter::{Counter, SIGNAL, Source};
use super::space::{Files, Space};
use crate::profile::{Profile, Samples, Thread};
use crate::program::tracer::Observer;
use crate::program::{name, ptrace, status};

/// A recorder of samples.
pub struct Recorder {
    source: Source,
    profile: Profile,
    files: Files,
    /// The memory of each process.
    spaces: HashMap<u32, Space>,
    samples: Samples,
    start: Instant,
}

/// A thread that is sampled.
pub struct Sampled {
    counter: Counter,
    /// Index of the thread.
    thread: u32,
    /// The number of periods that have ended.
    periods: u64,
}

impl Recorder {
    pub fn new(source: Source, profile: Profile) -> Self {
        let (files, spaces) = (Files::default(), HashMap::new());
        let (samples, start) = (Samples::default(), Instant::now());
        Self { source, profile, files, spaces, samples, start }
    }

    /// Returns everything that was noted.
    pub fn finish(mut self, unobserved: u32) -> Profile {
        (self.profile.unobserved, self.profile.modules) = (unobserved, self.files.modules());
        self.samples.fill(&mut self.profile);
        self.profile
    }

    /// Notes where a stopped thread is.
    fn note(&mut self, pid: pid_t, sampled: &mut Sampled) -> Result<()> {
        let periods = sampled.counter.count()? / self.profile.period;
        let samples = periods.saturating_sub(sampled.periods);
        let now = self.start.elapsed().as_nanos() as u64;
        sampled.periods = periods;
        let thread = &mut self.profile.threads[sampled.thread as usize];
        thread.name = name(pid);
        let process = thread.pid;
        let Some(registers) = unless_killed(ptrace::registers(pid))? else { return Ok(()) };
        let space = match self.spaces.entry(process) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => match unless_killed(Space::of(process))? {
                Some(space) => entry.insert(space),
                None => return Ok(()),
            },
        };
        let stack = space.stack(&mut self.files, &registers, self.profile.call_graph);
        self.samples.add(sampled.thread, stack, samples, Some(now));
        Ok(())
    }
}

impl Observer for Recorder {
    type Given = Sampled;

    fn give(&mut self, pid: pid_t) -> Result<Option<Sampled>> {
        let Some(counter) = self.source.give(pid)? else { return Ok(None) };
        let tid = pid.cast_unsigned();
        let process = status(pid, "Tgid").and_then(|text| text.parse().ok()).unwrap_or(tid);
        let thread = self.profile.threads.len() as u32;
        self.profile.threads.push(Thread { tid, pid: process, name: name(pid), count: 0 });
        Ok(Some(Sampled { counter, thread, periods: 0 }))
    }

    fn keeps(&mut self, pid: pid_t, sampled: &mut Sampled) -> Result<bool> {
        let thread = &mut self.profile.threads[sampled.thread as usize];
        self.spaces.remove(&thread.pid);
        // The thread has its process's number now.
        (thread.tid, thread.name) = (pid.cast_unsigned(), name(pid));
        sampled.counter.stays(pid)
    }

    fn signal(&mut self, pid: pid_t, sampled: &mut Sampled, signal: c_int) -> Result<c_int> {
        if signal != SIGNAL {
            return Ok(signal);
        }
        match unless_killed(ptrace::signal_information(pid))? {
            Some(information) if sampled.counter.raised(&information) => {
                self.note(pid, sampled)?;
                unless_killed(sampled.counter.go_on()).context("cannot let a counter go on")?;
                Ok(0)
            }
            _ => Ok(signal),
        }
    }

    fn ended(&mut self, pid: pid_t, sampled: Sampled) -> Result<()> {
        self.spaces.remove(&pid.cast_unsigned());
        self.profile.threads[sampled.thread as usize].count = sampled.counter.count()?;
        Ok(())
    }
}

/// Returns `None` if the tracee was killed. That is no error, since its end is reported separately.
fn unless_killed<T>(result: io::Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use perfctr::Event;
    use perfctr::raw::Device;

    use super::*;

    #[test]
    fn the_memory_of_a_program_is_forgotten_when_another_one_is_executed() {
        let event = Event::INSTRUCTIONS.user().every(1_000);
        let profile = Profile::new(Vec::new(), String::new(), String::new(), 1_000);
        let mut recorder = Recorder::new(Source::Native(event), profile);
        let (own, other) = (std::process::id(), 1);
        let thread = |pid| Thread { tid: pid + 1, pid, name: String::new(), count: 0 };
        recorder.profile.threads = vec![thread(other), thread(own)];
        for pid in [other, own] {
            recorder.spaces.insert(pid, Space::of(own).unwrap());
        }
        let nothing = OwnedFd::from(File::open("/dev/null").unwrap());
        let counter = Counter::Paravirt(Device::from(nothing));
        let mut sampled = Sampled { counter, thread: 1, periods: 0 };
        // Whether the counter stays cannot be found here, where there may be no module.
        drop(recorder.keeps(own.cast_signed(), &mut sampled));
        let left: Vec<&u32> = recorder.spaces.keys().collect();
        assert_eq!(left, [&other], "another process executes what it did");
        let thread = &recorder.profile.threads[1];
        assert_eq!((thread.tid, thread.pid), (own, own), "the thread has its process's number");
    }
}
