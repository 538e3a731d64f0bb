// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What the whole machine has executed, by the emulator's account ([`crate::emulated`]).

use std::ops::{Add, Sub};

use perfctr::rdpmc::Hardware;
use shared_abi::read::Counters;

use crate::emulated::{FIRST, GUESTS_RING_0};

/// What the machine did for each of several equal things.
pub type PerTime = [f64; Work::NUMBERS];

/// What the machine did up to a moment, or between two. The numbers are in this order:
///
/// - instructions in ring 0, which is the hypervisor's, or without a hypervisor the kernel's;
/// - instructions elsewhere, also in ring 0 of a guest that has rings of its own;
/// - entries into the first ring 0, by system calls, hypercalls, faults, interrupts and exits;
/// - interrupts that counters raised;
/// - reads of the PMU's registers;
/// - writes of the PMU's registers;
/// - counters read by RDPMC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work([u64; Self::NUMBERS]);

impl Work {
    /// The name of each number.
    pub const NAMES: [&str; Self::NUMBERS] =
        ["ring 0", "else", "entries", "PMIs", "RDMSR", "WRMSR", "RDPMC"];
    /// How many numbers there are.
    pub const NUMBERS: usize = 7;

    /// Reads everything up to now. On a machine without a tally, a fault ends the program.
    pub fn read() -> Self {
        let mut numbers = std::array::from_fn(|n| Hardware.counter(FIRST + n as u32));
        let guests = Hardware.counter(GUESTS_RING_0);
        numbers[0] -= guests;
        numbers[1] += guests;
        Self(numbers)
    }

    /// Returns a tally of these numbers, which another program has read.
    pub const fn of(numbers: [u64; Self::NUMBERS]) -> Self {
        Self(numbers)
    }

    /// Returns the numbers.
    pub const fn numbers(&self) -> [u64; Self::NUMBERS] {
        self.0
    }

    /// Returns the instructions in ring 0.
    pub fn ring0(&self) -> u64 {
        self.0[0]
    }

    /// Returns the instructions elsewhere than in ring 0.
    pub const fn outside_ring0(&self) -> u64 {
        self.0[1]
    }

    /// Returns all instructions.
    pub const fn instructions(&self) -> u64 {
        self.0[0] + self.0[1]
    }

    /// Returns each number divided by `times`.
    pub fn per(&self, times: u64) -> PerTime {
        self.0.map(|number| number as f64 / times as f64)
    }
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|n| self.0[n] + other.0[n]))
    }
}

impl Sub for Work {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self(std::array::from_fn(|n| self.0[n] - earlier.0[n]))
    }
}

/// Returns the middle one of some numbers, or the greater one of the two in the middle.
///
/// # Panics
///
/// There are no numbers.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_of_each_number_and_a_median_is_in_the_middle() {
        let later = Work([10, 20, 3, 0, 1, 2, 9]) - Work([4, 5, 1, 0, 0, 2, 8]);
        assert_eq!(later, Work([6, 15, 2, 0, 1, 0, 1]));
        assert_eq!((later.outside_ring0(), later.instructions()), (15, 21));
        assert_eq!(later.per(3)[..3], [2.0, 5.0, 2.0 / 3.0]);
        assert_eq!(median(vec![9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(vec![9.0, 1.0, 5.0, 7.0]), 7.0);
    }
}
