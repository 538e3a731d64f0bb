// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The measurements of the self-test. These are fields of its JSON.

use serde::Serialize;

/// A measurement, or the reason why it was not made.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<T> {
    Measured(T),
    NotMeasured(String),
}

impl<T> Outcome<T> {
    pub const fn measured(&self) -> Option<&T> {
        match self {
            Self::Measured(value) => Some(value),
            Self::NotMeasured(_) => None,
        }
    }

    /// Returns why it was not measured.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Measured(_) => None,
            Self::NotMeasured(why) => Some(why),
        }
    }
}

impl<T> From<anyhow::Result<T>> for Outcome<T> {
    fn from(result: anyhow::Result<T>) -> Self {
        result.map_or_else(|error| Self::NotMeasured(format!("{error:#}")), Self::Measured)
    }
}

/// Everything that is measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub reads: Outcome<Reads>,
    pub short_loops: Outcome<Known>,
    pub long_loops: Outcome<Known>,
    /// A loop during which a counter passes 2^32.
    pub wrap: Outcome<Known>,
    pub page_faults: Outcome<Known>,
    /// Executions of CPUID. In a guest with rings of its own, each of them exits from the guest.
    pub exits: Outcome<Known>,
    pub samples: Outcome<Samples>,
    pub interrupts: Outcome<Interrupts>,
}

/// Measurements of empty regions: pairs of readings with nothing between them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reads {
    /// The number of regions, without those in which a reading was disturbed.
    pub regions: u64,
    pub instructions: Spread,
    pub branches: Spread,
    /// Whether all readings were made without system calls.
    pub direct: bool,
    /// The mean time of a reading. Unit: ns.
    pub ns: f64,
}

/// The least and the greatest of several numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Spread {
    pub least: i64,
    pub most: i64,
}

impl Spread {
    /// Returns the spread of these numbers, or `None` if there are none.
    pub fn of(numbers: impl Iterator<Item = i64> + Clone) -> Option<Self> {
        Some(Self { least: numbers.clone().min()?, most: numbers.max()? })
    }

    pub const fn is(self, number: i64) -> bool {
        self.least == number && self.most == number
    }
}

/// Measurements of code whose numbers of instructions and branches are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Known {
    /// How many instructions more a run executes than a run of one round.
    pub instructions: u64,
    pub branches: u64,
    /// How often the run's event occurs: its page faults, or the CPUIDs that it executes.
    pub causes: u64,
    /// By how much each run's counts exceed those of a run of one round and the numbers above.
    pub surplus: Vec<Surplus>,
    /// How often this thread's CPU was interrupted during all runs, if the kernel tells.
    pub interrupts: Option<u64>,
    /// How often another thread had the CPU meanwhile.
    pub switches: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Surplus {
    pub instructions: i64,
    pub branches: i64,
}

impl Surplus {
    /// Returns the surplus of instructions that are no branches.
    pub const fn others(self) -> i64 {
        self.instructions - self.branches
    }
}

impl Known {
    pub fn sum(&self, of: impl Fn(Surplus) -> i64) -> i64 {
        self.surplus.iter().map(|&surplus| of(surplus)).sum()
    }

    pub fn spread(&self, of: impl Fn(Surplus) -> i64 + Clone) -> Spread {
        let numbers = self.surplus.iter().map(|&surplus| of(surplus));
        Spread::of(numbers).unwrap_or(Spread { least: 0, most: 0 })
    }
}

/// Samples of a loop whose instructions have known places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Samples {
    /// The number of instructions from one sample to the next.
    pub period: u64,
    /// Instructions of one round of the loop.
    pub round: u64,
    /// Instructions of all rounds.
    pub instructions: u64,
    /// Samples for which the kernel had no room.
    pub lost: u64,
    /// How often the kernel or the hypervisor has put samples off.
    pub put_off: u64,
    pub taken: Vec<Taken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// The count at the sample. Unit: instructions.
    pub count: u64,
    /// The number of instructions between the beginning of the round and the instruction at the
    /// sample's address, or `None` if this address is not in the loop.
    pub place: Option<u64>,
}

/// Interrupts of counters while samples were taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interrupts {
    /// Who has counted them.
    pub by: &'static str,
    pub overflows: u64,
    pub interrupts: u64,
}
