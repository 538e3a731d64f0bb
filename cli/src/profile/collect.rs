// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Collects samples: equal stacks of a thread become one.

use std::collections::HashMap;

use super::{Frame, Profile, Stack, Thread};

/// A thread's index, the physical CPU if there is one, and the stack.
type Key = (u32, Option<u32>, Vec<u32>);

/// The samples of one profile.
#[derive(Debug, Default)]
pub struct Samples {
    frames: Vec<Frame>,
    /// The index of each frame.
    places: HashMap<Frame, u32>,
    /// How often a thread was in which stack, and when.
    stacks: HashMap<Key, (u64, Vec<u64>)>,
    /// The index of each thread, by the numbers of its process and its own.
    threads: HashMap<(u32, u32), u32>,
    /// How many samples had been lost when the last profile was made.
    lost: u64,
    /// The events for which samples stand that were added one by one.
    events: u64,
}

impl Samples {
    /// Returns the index of a thread. The profile gets it, with its name, if it is new.
    pub fn thread(
        &mut self,
        profile: &mut Profile,
        pid: u32,
        tid: u32,
        name: impl FnOnce() -> String,
    ) -> u32 {
        *self.threads.entry((pid, tid)).or_insert_with(|| {
            profile.threads.push(Thread { tid, pid, name: name(), count: 0, task: None });
            profile.threads.len() as u32 - 1
        })
    }

    /// Adds this many samples of a thread, all taken at this time, if that is known. The innermost
    /// frame comes first.
    pub fn add(&mut self, thread: u32, stack: &[Frame], samples: u64, time: Option<u64>) {
        self.add_on(None, thread, stack, samples, time);
    }

    /// Adds one sample, which stands for this many events.
    pub fn add_one(&mut self, thread: u32, stack: &[Frame], events: u64, time: Option<u64>) {
        self.events = self.events.saturating_add(events);
        self.add(thread, stack, 1, time);
    }

    /// Adds samples as [`add`](Self::add) does, taken on a physical CPU.
    pub fn add_on(
        &mut self,
        cpu: Option<u32>,
        thread: u32,
        stack: &[Frame],
        samples: u64,
        time: Option<u64>,
    ) {
        if samples == 0 {
            return;
        }
        let frames = stack.iter().map(|&frame| self.place(frame)).collect();
        let (number, times) = self.stacks.entry((thread, cpu, frames)).or_default();
        *number += samples;
        times.extend((0..samples).filter_map(|_| time));
    }

    fn place(&mut self, frame: Frame) -> u32 {
        *self.places.entry(frame).or_insert_with(|| {
            self.frames.push(frame);
            self.frames.len() as u32 - 1
        })
    }

    /// Returns a profile of the samples that were added since the last one. `common` has the part
    /// that all these profiles share, and the threads of these samples, which are moved out of it.
    /// `lost` samples were lost since the beginning.
    pub fn profile(&mut self, common: &mut Profile, lost: u64) -> Profile {
        let mut profile = common.clone();
        common.threads.clear();
        let added = std::mem::replace(self, Self { lost, ..Self::default() });
        profile.lost = lost.saturating_sub(added.lost);
        added.fill(&mut profile);
        // It is not known what a thread has counted after its last sample.
        profile.count_by_samples();
        profile
    }

    /// Gives a profile its stacks and frames. If it was recorded with a frequency, its period
    /// becomes the mean number of events for which a sample stands.
    pub fn fill(self, profile: &mut Profile) {
        let stack = |((thread, cpu, frames), (samples, mut times)): (Key, (u64, Vec<u64>))| {
            // The kernel has a ring on each CPU, and the rings are read one after the other.
            times.sort_unstable();
            Stack { thread, cpu, samples, frames, times }
        };
        let mut stacks: Vec<Stack> = self.stacks.into_iter().map(stack).collect();
        stacks.sort_by(|a, b| (a.thread, a.cpu, &a.frames).cmp(&(b.thread, b.cpu, &b.frames)));
        (profile.stacks, profile.frames) = (stacks, self.frames);
        if profile.frequency.is_some() {
            profile.period = (self.events / profile.samples().max(1)).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_profile_has_what_was_added_and_lost_since_the_one_before() {
        let mut common = Profile::new(Vec::new(), String::new(), String::new(), 100);
        let mut samples = Samples::default();
        let mut next = |tid, number, lost| {
            let thread = samples.thread(&mut common, 7, tid, String::new);
            samples.add(thread, &[Frame { module: None, address: 8 }], number, None);
            let profile = samples.profile(&mut common, lost);
            let threads = profile.threads.iter().map(|thread| (thread.tid, thread.count));
            (threads.collect::<Vec<_>>(), profile.samples(), profile.lost)
        };
        assert_eq!(next(8, 3, 5), (vec![(8, 300)], 3, 5));
        assert_eq!(next(9, 2, 9), (vec![(9, 200)], 2, 4));
        assert_eq!(next(8, 1, 9), (vec![(8, 100)], 1, 0));
    }

    #[test]
    fn with_a_frequency_the_period_is_the_mean() {
        let mut common = Profile::new(Vec::new(), String::new(), String::new(), 0);
        common.frequency = Some(99);
        let mut samples = Samples::default();
        let mut next = |periods: &[u64]| {
            let thread = samples.thread(&mut common, 7, 8, String::new);
            for &period in periods {
                samples.add_one(thread, &[Frame { module: None, address: 8 }], period, None);
            }
            let profile = samples.profile(&mut common, 0);
            let count: u64 = profile.threads.iter().map(|thread| thread.count).sum();
            (profile.samples(), profile.period, count)
        };
        assert_eq!(next(&[1, 8, 102]), (3, 37, 111));
        assert_eq!(next(&[50]), (1, 50, 50), "each profile has its own mean");
    }

    #[test]
    fn equal_stacks_become_one_with_the_times_in_order() {
        let mut samples = Samples::default();
        let [inner, outer] = [8, 16].map(|address| Frame { module: None, address });
        samples.add(1, &[inner, outer], 1, Some(30));
        samples.add(0, &[inner], 0, Some(10));
        samples.add(1, &[inner, outer], 2, Some(20));
        samples.add(1, &[outer], 3, None);
        let mut profile = Profile::new(Vec::new(), String::new(), String::new(), 1);
        samples.fill(&mut profile);
        assert_eq!(profile.frames, [inner, outer], "a stack without samples has no frames");
        let stack = |samples, frames, times| Stack { thread: 1, cpu: None, samples, frames, times };
        let expected = [stack(3, vec![0, 1], vec![20, 20, 30]), stack(3, vec![1], vec![])];
        assert_eq!(profile.stacks, expected);
    }
}
