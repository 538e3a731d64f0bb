// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Collects samples: equal stacks of a thread become one.

use std::collections::HashMap;

use super::{Branch, Frame, Profile, Stack, Thread};

/// Where a thread has executed.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a> {
    /// The thread's index.
    pub thread: u32,
    /// The physical CPU, in the profile of a host.
    pub cpu: Option<u32>,
    /// The innermost frame comes first.
    pub frames: &'a [Frame],
    /// The branches that were taken last, the latest one first.
    pub branches: &'a [Branch<Frame>],
}

impl<'a> Spot<'a> {
    /// Makes the spot of a thread of which no more is known than the stack.
    pub const fn new(thread: u32, frames: &'a [Frame]) -> Self {
        Self { thread, cpu: None, frames, branches: &[] }
    }
}

/// A spot, in which frames and branches are indices.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    thread: u32,
    cpu: Option<u32>,
    frames: Vec<u32>,
    branches: Vec<u32>,
}

/// The samples of one profile.
#[derive(Debug, Default)]
pub struct Samples {
    frames: Vec<Frame>,
    /// The index of each frame.
    places: HashMap<Frame, u32>,
    branches: Vec<Branch>,
    /// The index of each branch.
    taken: HashMap<Branch, u32>,
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

    /// Adds this many samples of a thread, all taken at this time, if that is known.
    pub fn add(&mut self, spot: Spot<'_>, samples: u64, time: Option<u64>) {
        if samples == 0 {
            return;
        }
        let Spot { thread, cpu, frames, branches } = spot;
        let frames = frames.iter().map(|&frame| self.place(frame)).collect();
        let branches = branches.iter().map(|&branch| self.branch(branch)).collect();
        let key = Key { thread, cpu, frames, branches };
        let (number, times) = self.stacks.entry(key).or_default();
        *number += samples;
        times.extend((0..samples).filter_map(|_| time));
    }

    /// Adds one sample, which stands for this many events.
    pub fn add_one(&mut self, spot: Spot<'_>, events: u64, time: Option<u64>) {
        self.events = self.events.saturating_add(events);
        self.add(spot, 1, time);
    }

    fn place(&mut self, frame: Frame) -> u32 {
        *self.places.entry(frame).or_insert_with(|| {
            self.frames.push(frame);
            self.frames.len() as u32 - 1
        })
    }

    fn branch(&mut self, Branch { from, to, flags }: Branch<Frame>) -> u32 {
        let branch = Branch { from: self.place(from), to: self.place(to), flags };
        *self.taken.entry(branch).or_insert_with(|| {
            self.branches.push(branch);
            self.branches.len() as u32 - 1
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

    /// Gives a profile its stacks and frames, and its branches, if it is one with branches. If it
    /// was recorded with a frequency, its period becomes the mean number of events for which a
    /// sample stands.
    pub fn fill(self, profile: &mut Profile) {
        let mut spots: Vec<(Key, (u64, Vec<u64>))> = self.stacks.into_iter().collect();
        spots.sort_by(|(a, _), (b, _)| a.cmp(b));
        let stack = |(key, (samples, mut times)): (Key, (u64, Vec<u64>))| {
            // The kernel has a ring on each CPU, and the rings are read one after the other.
            times.sort_unstable();
            let Key { thread, cpu, frames, branches } = key;
            Stack { thread, cpu, samples, frames, branches, times }
        };
        profile.stacks = spots.into_iter().map(stack).collect();
        profile.frames = self.frames;
        profile.branches.iter_mut().for_each(|branches| self.branches.clone_into(branches));
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
            samples.add(Spot::new(thread, &[Frame { module: None, address: 8 }]), number, None);
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
                let spot = Spot::new(thread, &[Frame { module: None, address: 8 }]);
                samples.add_one(spot, period, None);
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
        samples.add(Spot::new(1, &[inner, outer]), 1, Some(30));
        samples.add(Spot::new(0, &[inner]), 0, Some(10));
        samples.add(Spot::new(1, &[inner, outer]), 2, Some(20));
        samples.add(Spot::new(1, &[outer]), 3, None);
        let mut profile = Profile::new(Vec::new(), String::new(), String::new(), 1);
        samples.fill(&mut profile);
        assert_eq!(profile.frames, [inner, outer], "a stack without samples has no frames");
        let stack = |samples, frames, times| Stack {
            thread: 1,
            samples,
            frames,
            times,
            ..Stack::default()
        };
        let expected = [stack(3, vec![0, 1], vec![20, 20, 30]), stack(3, vec![1], vec![])];
        assert_eq!(profile.stacks, expected);
    }

    #[test]
    fn stacks_are_equal_if_their_branches_are() {
        let mut samples = Samples::default();
        let [here, there] = [8, 16].map(|address| Frame { module: None, address });
        let back = Branch { from: here, to: there, flags: 0 };
        let [right, wrong] = [0, 1].map(|flags| [Branch { from: there, to: here, flags }, back]);
        for (branches, time) in [(right, 5), (wrong, 6), (right, 7)] {
            samples.add(Spot { branches: &branches, ..Spot::new(0, &[here]) }, 1, Some(time));
        }
        let mut profile = Profile::new(Vec::new(), String::new(), String::new(), 1);
        profile.branches = Some(Vec::new());
        samples.fill(&mut profile);
        assert_eq!(profile.frames, [here, there]);
        let expected = [(1, 0, 0), (0, 1, 0), (1, 0, 1)];
        assert_eq!(
            profile.branches(),
            expected.map(|(from, to, flags)| Branch { from, to, flags })
        );
        let stacks = profile.stacks.iter().map(|stack| (&stack.branches[..], &stack.times[..]));
        assert_eq!(stacks.collect::<Vec<_>>(), [(&[0, 1][..], &[5, 7][..]), (&[2, 1], &[6])]);
    }
}
