// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Samples running threads, processes and CPUs, and programs together with the kernel. Nothing is
//! stopped or gets a signal: the kernel writes samples into rings. So whatever happens to this
//! program, the others go on.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use libc::pid_t;
use perfctr::Event;
use perfctr::watch::{Branch as Recorded, Sample, Samples as Rings};

use super::space::{Files, Space};
use crate::live::Live;
use crate::profile::{Branch, Frame, Module, Profile, SampleOrigin, Samples};
use crate::program::beside::{self, Beside};
use crate::program::{Signals, Target, name};
use crate::text::{counted, print_note};

/// Samples the target by these events, each of which has a profile. Returns the exit status of the
/// command that is run meanwhile.
pub fn run(
    target: Target<'_>,
    events: &[Event],
    profiles: Vec<Profile>,
    signals: &Signals,
) -> Result<(Vec<Profile>, u8)> {
    let (command, observed) = target.parts();
    let mut attached = Attached { target, recording: Recording::new(events, profiles) };
    let (status, _) = beside::run(command, observed, signals, &mut attached)?;
    let mut recording = attached.recording;
    recording.take()?;
    for throttled in recording.throttled().filter(|&times| times > 0) {
        let times = counted(throttled, "time");
        print_note(format_args!("the kernel has paused sampling {times}: too many samples"));
    }
    let mut profiles = recording.profiles();
    begin_with_zero(&mut profiles);
    Ok((profiles, status))
}

/// The thread number of the idle threads.
const IDLE: u32 = 0;

struct Attached<'a> {
    target: Target<'a>,
    recording: Recording,
}

impl Beside for Attached<'_> {
    fn begin(&mut self, command: Option<pid_t>) -> Result<()> {
        let live = match (self.target, command) {
            (Target::Program(_), Some(pid)) => vec![Live::program(pid)],
            (target, _) => Live::of(target)?,
        };
        self.recording.begin(&live)
    }

    fn tick(&mut self) -> Result<()> {
        self.recording.take()
    }
}

/// Collects samples of running threads, processes or CPUs.
pub struct Recording {
    sampled: Vec<Sampled>,
    memory: Memory,
}

/// The samples of one event since the last profile.
struct Sampled {
    event: Event,
    /// The common part of all its profiles, and the threads that were sampled since the last one.
    profile: Profile,
    samples: Samples,
    rings: Vec<Rings>,
}

/// The mappings of all processes.
#[derive(Default)]
pub struct Memory {
    files: Files,
    /// The memory of each process.
    spaces: HashMap<u32, Space>,
    /// The processes whose mappings were read in this tick.
    read: HashSet<u32>,
}

impl Memory {
    /// Lets the mappings of each process be read again.
    pub fn next_tick(&mut self) {
        self.read.clear();
    }

    /// Returns all files in the order of their indices, and forgets what processes have mapped:
    /// another process may get the number of one that has ended.
    pub fn modules(&mut self) -> Vec<Module> {
        self.spaces.clear();
        self.files.modules()
    }

    /// Returns the places of these addresses of a process. A process that has ended has no memory
    /// in which its code could be found.
    pub fn frames(&mut self, pid: u32, addresses: &[u64]) -> Vec<Frame> {
        let space = self.spaces.entry(pid).or_insert_with(|| Space::unstopped(pid));
        // In a program without frame pointers most samples have callers that are no addresses at
        // all. So the mappings are read at most once in a tick.
        if !space.knows(addresses) && self.read.insert(pid) {
            space.look(&mut self.files);
        }
        space.frames(&mut self.files, addresses)
    }

    /// Returns the branches of a sample, with the places of both ends.
    fn branches(&mut self, sample: &Sample) -> Vec<Branch<Frame>> {
        let ends = sample.branches.iter().flat_map(|branch| [branch.from, branch.to]);
        let ends = self.frames(sample.pid, &ends.collect::<Vec<_>>());
        let branch = |(branch, ends): (&Recorded, &[Frame])| Branch {
            from: ends[0],
            to: ends[1],
            flags: branch.flags.bits(),
        };
        sample.branches.iter().zip(ends.chunks_exact(2)).map(branch).collect()
    }
}

/// Returns the address of a sample, and for each caller an address within its call. The caller's
/// own address is behind its call, and may belong to another function.
fn addresses(ip: u64, callers: &[u64]) -> Vec<u64> {
    let callers = callers.iter().map(|address| address.saturating_sub(1));
    [ip].into_iter().chain(callers).collect()
}

impl Recording {
    /// Makes a recording that samples nothing yet. There is one profile for each event, which names
    /// the event and has no samples.
    pub fn new(events: &[Event], profiles: Vec<Profile>) -> Self {
        let sampled = profiles.into_iter().zip(events).map(|(profile, &event)| Sampled {
            event,
            profile,
            samples: Samples::default(),
            rings: Vec::new(),
        });
        Self { sampled: sampled.collect(), memory: Memory::default() }
    }

    /// Begins to sample these by each event.
    pub fn begin(&mut self, live: &[Live]) -> Result<()> {
        for Sampled { event, profile, rings, .. } in &mut self.sampled {
            let sample = |live: Live| live.sample(*event, profile);
            *rings = live.iter().cloned().map(sample).collect::<Result<_>>()?;
        }
        Ok(())
    }

    /// Takes the samples that the kernel has written meanwhile.
    pub fn take(&mut self) -> Result<()> {
        self.memory.next_tick();
        for Sampled { profile, samples, rings, .. } in &mut self.sampled {
            for rings in rings {
                while let Some(sample) = rings.take()? {
                    let addresses = addresses(sample.ip, &sample.callers);
                    let frames = self.memory.frames(sample.pid, &addresses);
                    let branches = self.memory.branches(&sample);
                    let name = || match sample.tid {
                        IDLE => "idle".to_owned(),
                        tid => name(tid as pid_t),
                    };
                    let thread = samples.thread(profile, sample.pid, sample.tid, name);
                    let time = Some(sample.time);
                    let origin =
                        SampleOrigin { branches: &branches, ..SampleOrigin::new(thread, &frames) };
                    if profile.frequency.is_some() {
                        samples.add_one(origin, sample.period, time);
                    } else {
                        samples.add(origin, sample.periods(profile.period), time);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the profile of each event, with the samples since the last one.
    pub fn profiles(&mut self) -> Vec<Profile> {
        let modules = self.memory.modules();
        let finished = self.sampled.iter_mut().map(|sampled| {
            let lost = sampled.rings.iter().map(Rings::lost).sum();
            let mut profile = sampled.samples.profile(&mut sampled.profile, lost);
            profile.modules.clone_from(&modules);
            profile
        });
        finished.collect()
    }

    /// Returns how often the kernel has paused sampling by each event.
    fn throttled(&self) -> impl Iterator<Item = u64> {
        self.sampled.iter().map(|sampled| sampled.rings.iter().map(Rings::throttled).sum())
    }
}

/// Makes times relative to the first sample of all events.
fn begin_with_zero(profiles: &mut [Profile]) {
    let stacks = || profiles.iter().flat_map(|profile| &profile.stacks);
    let first = stacks().flat_map(|stack| &stack.times).min().copied().unwrap_or(0);
    for stack in profiles.iter_mut().flat_map(|profile| &mut profile.stacks) {
        stack.times.iter_mut().for_each(|time| *time -= first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Stack;

    #[test]
    fn each_tick_may_read_anew_what_processes_have_mapped() {
        let memory = Memory { read: HashSet::from([7, 8]), ..Memory::default() };
        let mut recording = Recording { sampled: Vec::new(), memory };
        recording.take().unwrap();
        assert_eq!(recording.memory.read, HashSet::new(), "7 and 8 were read in the tick before");
    }

    #[test]
    fn a_caller_is_where_it_calls_and_the_sample_where_it_is() {
        assert_eq!(addresses(0x1000, &[0x2000, 0]), [0x1000, 0x1fff, 0]);
    }

    #[test]
    fn the_times_of_all_events_begin_with_the_first_sample_of_any() {
        let mut profiles = [[70, 75], [60, 90]].map(|times| {
            let mut profile = Profile::new(Vec::new(), String::new(), String::new(), 1);
            let times = times.to_vec();
            let frames = vec![0];
            profile.stacks.push(Stack { samples: 2, frames, times, ..Stack::default() });
            profile
        });
        begin_with_zero(&mut profiles);
        assert_eq!(profiles.map(|profile| profile.stacks[0].times.clone()), [[10, 15], [0, 30]]);
    }
}
