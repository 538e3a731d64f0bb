// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Collects samples: equal stacks of a thread become one.

use std::collections::HashMap;

use super::{Frame, Profile, Stack};

/// The samples of one profile.
#[derive(Debug, Default)]
pub struct Samples {
    frames: Vec<Frame>,
    /// The index of each frame.
    places: HashMap<Frame, u32>,
    /// How often a thread was in which stack, and when. The thread's index is first.
    stacks: HashMap<(u32, Vec<u32>), (u64, Vec<u64>)>,
}

impl Samples {
    /// Adds so many samples of a thread, all taken at this time, if that is known. The innermost
    /// frame comes first.
    pub fn add(&mut self, thread: u32, stack: Vec<Frame>, samples: u64, time: Option<u64>) {
        let frames = stack.into_iter().map(|frame| self.place(frame)).collect();
        if samples > 0 {
            let (number, times) = self.stacks.entry((thread, frames)).or_default();
            *number += samples;
            times.extend((0..samples).filter_map(|_| time));
        }
    }

    fn place(&mut self, frame: Frame) -> u32 {
        *self.places.entry(frame).or_insert_with(|| {
            self.frames.push(frame);
            self.frames.len() as u32 - 1
        })
    }

    /// Gives a profile its stacks and frames.
    pub fn fill(self, profile: &mut Profile) {
        let stack = |((thread, frames), (samples, times))| Stack { thread, samples, frames, times };
        let mut stacks: Vec<Stack> = self.stacks.into_iter().map(stack).collect();
        stacks.sort_by(|a, b| (a.thread, &a.frames).cmp(&(b.thread, &b.frames)));
        (profile.stacks, profile.frames) = (stacks, self.frames);
    }
}
