// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Records a sample at each overflow.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Instant;

use anyhow::{Context, Result};
use libc::{c_int, pid_t};

use super::counter::{Counter, SIGNAL, Source};
use super::space::{Files, Space};
use crate::profile::{Profile, Samples, Spot, Thread};
use crate::program::ptrace::{self, unless_killed};
use crate::program::tracer::Observer;
use crate::program::{name, status};

/// A recorder of samples.
pub struct Recorder {
    source: Source,
    /// The profile of each event, and the samples that it will get.
    profiles: Vec<(Profile, Samples)>,
    files: Files,
    /// The memory of each process.
    spaces: HashMap<u32, Space>,
    start: Instant,
}

/// A thread that is sampled.
pub struct Sampled {
    counter: Counter,
    /// Index of the thread.
    thread: u32,
    /// The number of periods of each event that have ended.
    periods: Vec<u64>,
}

impl Recorder {
    pub fn new(source: Source, profiles: Vec<Profile>) -> Self {
        let (files, spaces) = (Files::default(), HashMap::new());
        let profiles = profiles.into_iter().map(|profile| (profile, Samples::default()));
        Self { source, profiles: profiles.collect(), files, spaces, start: Instant::now() }
    }

    /// Returns everything that was noted.
    pub fn finish(mut self, unobserved: u32) -> Vec<Profile> {
        let modules = self.files.modules();
        let filled = self.profiles.into_iter().map(|(mut profile, samples)| {
            (profile.unobserved, profile.modules) = (unobserved, modules.clone());
            samples.fill(&mut profile);
            profile
        });
        filled.collect()
    }

    /// Returns a thread in each profile.
    fn threads(&mut self, index: u32) -> impl Iterator<Item = &mut Thread> {
        self.profiles.iter_mut().map(move |(profile, _)| &mut profile.threads[index as usize])
    }

    /// Returns the process of a thread, which all profiles have.
    fn process(&self, thread: u32) -> u32 {
        self.profiles[0].0.threads[thread as usize].pid
    }

    /// Notes where a stopped thread is.
    fn note(&mut self, pid: pid_t, sampled: &mut Sampled) -> Result<()> {
        let (counts, now) = (sampled.counter.counts()?, self.start.elapsed().as_nanos() as u64);
        let named = name(pid);
        self.threads(sampled.thread).for_each(|thread| thread.name.clone_from(&named));
        let process = self.process(sampled.thread);
        let Some(registers) = unless_killed(ptrace::registers(pid))? else { return Ok(()) };
        let space = match self.spaces.entry(process) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => match unless_killed(Space::of(process))? {
                Some(space) => entry.insert(space),
                None => return Ok(()),
            },
        };
        let callers = self.profiles[0].0.call_graph;
        let stack = space.stack(&mut self.files, &registers, callers);
        for (n, (profile, samples)) in self.profiles.iter_mut().enumerate() {
            let periods = counts[n] / profile.period;
            let ended = periods.saturating_sub(sampled.periods[n]);
            sampled.periods[n] = periods;
            samples.add(Spot::new(sampled.thread, &stack), ended, Some(now));
        }
        Ok(())
    }
}

impl Observer for Recorder {
    type Given = Sampled;

    fn give(&mut self, pid: pid_t) -> Result<Option<Sampled>> {
        let Some(counter) = self.source.give(pid)? else { return Ok(None) };
        let tid = pid.cast_unsigned();
        let process = status(pid, "Tgid").and_then(|text| text.parse().ok()).unwrap_or(tid);
        let new = Thread { tid, pid: process, name: name(pid), count: 0, task: None };
        for (profile, _) in &mut self.profiles {
            profile.threads.push(new.clone());
        }
        let thread = self.profiles[0].0.threads.len() as u32 - 1;
        Ok(Some(Sampled { counter, thread, periods: vec![0; self.profiles.len()] }))
    }

    fn keeps(&mut self, pid: pid_t, sampled: &mut Sampled) -> Result<bool> {
        self.spaces.remove(&self.process(sampled.thread));
        // The thread has its process's number now.
        let (tid, name) = (pid.cast_unsigned(), name(pid));
        for thread in self.threads(sampled.thread) {
            (thread.tid, thread.name) = (tid, name.clone());
        }
        sampled.counter.stays(pid)
    }

    fn signal(&mut self, pid: pid_t, sampled: &mut Sampled, signal: c_int) -> Result<c_int> {
        if signal != SIGNAL {
            return Ok(signal);
        }
        match unless_killed(ptrace::signal_information(pid))? {
            Some(information) if sampled.counter.raised(&information) => {
                self.note(pid, sampled)?;
                unless_killed(sampled.counter.go_on(&information))
                    .context("cannot let a counter go on")?;
                Ok(0)
            }
            _ => Ok(signal),
        }
    }

    fn ended(&mut self, pid: pid_t, sampled: Sampled) -> Result<()> {
        self.spaces.remove(&pid.cast_unsigned());
        let counts = sampled.counter.counts()?;
        for (thread, count) in self.threads(sampled.thread).zip(counts) {
            thread.count = count;
        }
        Ok(())
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
        let mut recorder = Recorder::new(Source::Native(vec![event]), vec![profile]);
        let (own, other) = (std::process::id(), 1);
        let thread = |pid| Thread { tid: pid + 1, pid, name: String::new(), count: 0, task: None };
        recorder.profiles[0].0.threads = vec![thread(other), thread(own)];
        for pid in [other, own] {
            recorder.spaces.insert(pid, Space::of(own).unwrap());
        }
        let nothing = OwnedFd::from(File::open("/dev/null").unwrap());
        let counter = Counter::Paravirt(Device::from(nothing));
        let mut sampled = Sampled { counter, thread: 1, periods: vec![0] };
        // This cannot test whether the counter stays, since there may be no module here.
        drop(recorder.keeps(own.cast_signed(), &mut sampled));
        let left: Vec<&u32> = recorder.spaces.keys().collect();
        assert_eq!(left, [&other], "another process executes what it did");
        let thread = &recorder.profiles[0].0.threads[1];
        assert_eq!((thread.tid, thread.pid), (own, own), "the thread has its process's number");
    }
}
