// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reads what the emulator has counted of the whole machine.

use std::ops::Sub;

use perfctr::rdpmc::Hardware;
use shared_abi::read::Counters;
use vm_tests::emulated::{FIRST, GUESTS_RING_0};

/// What a tally says of each of several equal things.
pub type PerTime = [f64; Tally::NUMBERS];

/// What the machine did up to a moment, or between two. The numbers are in this order:
///
/// - instructions in ring 0, which is the hypervisor's, or without a hypervisor the kernel's;
/// - instructions elsewhere, also in ring 0 of a guest that has rings of its own;
/// - entries into the first ring 0, by system calls, hypercalls, faults, interrupts and exits;
/// - interrupts that counters raised;
/// - reads of the PMU's registers;
/// - writes of the PMU's registers;
/// - counters read by RDPMC.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally([u64; Self::NUMBERS]);

impl Tally {
    /// The name of each number.
    pub const NAMES: [&str; Self::NUMBERS] =
        ["ring 0", "else", "entries", "PMIs", "RDMSR", "WRMSR", "RDPMC"];
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
    pub fn outside_ring0(&self) -> u64 {
        self.0[1]
    }

    /// Returns each number divided by `times`.
    pub fn per(&self, times: u64) -> PerTime {
        self.0.map(|number| number as f64 / times as f64)
    }
}

impl Sub for Tally {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self(std::array::from_fn(|n| self.0[n] - earlier.0[n]))
    }
}
