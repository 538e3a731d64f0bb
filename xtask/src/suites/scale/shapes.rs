// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What grows, and how costs may grow with it. Every cost is flat that is not named here, each with
//! a reason, which is a note of the page's tables.

/// Something of which a machine can have more.
#[derive(Debug)]
pub struct Dimension {
    /// Its name in the program's output.
    pub name: &'static str,
    /// What there are more of.
    pub of: &'static str,
    /// The numbers for which costs are measured in the long tier.
    pub numbers: &'static [u32],
}

/// The numbers of vCPUs, of which each is a boot. The first ones are measured if the suite runs
/// outside of the long tier.
pub const VCPUS: [u32; 4] = [2, 8, 32, 64];
/// How many of them are measured then.
pub const VCPUS_USUAL: usize = 3;

/// Everything that grows, each a table.
pub const DIMENSIONS: &[Dimension] = &[
    Dimension { name: "vcpus", of: "vCPUs of the guest", numbers: &VCPUS },
    Dimension {
        name: "threads",
        of: "threads that have counters",
        numbers: &[8, 100, 1_000, 10_000],
    },
    Dimension { name: "users", of: "users who have counters", numbers: &[1, 4, 16, 64] },
    Dimension { name: "counters", of: "counters of the thread", numbers: &[1, 2, 4, 6] },
];

/// How a cost may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Not at all.
    Flat,
    /// By a straight line, or by n log n.
    Straight,
}

/// Costs that grow, and why.
#[derive(Debug)]
pub struct Deviation {
    /// With what they grow.
    pub dimensions: &'static [&'static str],
    /// The costs.
    pub operations: &'static [&'static str],
    /// The reason, as the page gives it.
    pub why: &'static str,
}

/// Everything that grows by a straight line.
pub const DEVIATIONS: &[Deviation] = &[
    Deviation {
        dimensions: &["vcpus"],
        operations: &[
            "a session: opened, started, closed",
            "a session, all vCPUs open some at once",
        ],
        why: "A session maps a page of each vCPU, since its thread may execute on any of\n\
              them and reads there without a system call. Each of these pages takes an\n\
              entry of the process's page table, which the mapping makes and its end\n\
              takes away.",
    },
    Deviation {
        dimensions: &["vcpus"],
        operations: &["bytes of a user with one thread's counters"],
        why: "Each user has a page of its own for each vCPU, so that nobody reads what\n\
              others count ([ADR 10](adr/0010-each-user-sees-its-own-vcpu-pages.md)).\n\
              All threads of the user share these pages.",
    },
    Deviation {
        dimensions: &["threads"],
        operations: &["a session: opened, started, closed"],
        why: "It grows by 7 % while there are 1,250 times as many threads. Nobody has found out\n\
              in which part of the kernel.",
    },
    Deviation {
        dimensions: &["threads"],
        operations: &["a start and a stop"],
        why: "With 100 threads it is dearer by 572 instructions than with 8, and then no\n\
              more. Nobody has found out why.",
    },
    Deviation {
        dimensions: &["counters"],
        operations: &["a session: opened, started, closed", "a start and a stop", "a read"],
        why: "Each counter is read, and its sum is kept in a place of its own. In a PV guest the\n\
              hypervisor also reads each at every change of mode\n\
              ([ADR 4](adr/0004-rings-of-pv-guests.md)).",
    },
];

/// Returns how a cost may grow.
pub fn shape(dimension: &str, operation: &str) -> Shape {
    if deviation(dimension, operation).is_some() { Shape::Straight } else { Shape::Flat }
}

/// Returns why a cost grows.
pub fn deviation(dimension: &str, operation: &str) -> Option<&'static Deviation> {
    DEVIATIONS.iter().find(|deviation| {
        deviation.dimensions.contains(&dimension) && deviation.operations.contains(&operation)
    })
}

/// A cost's greatest value at any size.
struct Most {
    operation: &'static str,
    value: f64,
}

/// The costs that have such a value.
const MOST: &[Most] = &[
    // The counters' object of 2 KiB and the thread's page, and the noise of bytes.
    Most { operation: "bytes of a thread's counters", value: 2048.0 + 4096.0 + 512.0 },
    // Not even one page, since the pages of a mapping are not the process's own.
    Most { operation: "bytes of a mapping in the resident set", value: 4095.0 },
    // A thread of a user who has other counters shares no lock with any other thread.
    Most {
        operation: "locks of the module for a session of a user with other counters",
        value: 0.0,
    },
];

/// Returns the greatest value that a cost may have at any size.
pub fn most(operation: &str) -> Option<f64> {
    MOST.iter().find(|most| most.operation == operation).map(|most| most.value)
}
