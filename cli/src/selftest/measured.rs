// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The measurements of the self-test.  These are fields of its JSON.

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
    /// Executions of CPUID, which leaves a guest.
    pub exits: Outcome<Known>,
    pub samples: Outcome<Samples>,
    pub interrupts: Outcome<Interrupts>,
}

/// Regions between two readings with nothing in them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reads {
    /// How many were measured, without those in which a reading was disturbed.
    pub regions: u64,
    pub instructions: Spread,
    pub branches: Spread,
    /// Whether no reading took a system call.
    pub direct: bool,
    /// How long a reading takes.
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

/// Runs of a program whose counts are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Known {
    /// The instructions of one run.
    pub instructions: u64,
    pub branches: u64,
    /// How often the run's event occurs: its page faults, or the CPUIDs that it executes.
    pub causes: u64,
    /// The additional counts of each run.
    pub surplus: Vec<Surplus>,
    /// How often this thread's CPU was interrupted during all runs, if the kernel says so.
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
    /// Instructions that are no branches.
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
    /// Instructions between two of them.
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
    /// The count of the counter.
    pub count: u64,
    /// How many instructions of a round come before the next one to be executed, or `None` if that
    /// was not in the loop.
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
