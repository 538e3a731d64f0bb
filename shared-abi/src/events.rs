// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Events that processors of every kind count, by one number or another.

use crate::arch;
use crate::slot::PhysSlot;

/// Events that CPUs of every vendor count, by one number or another.  The values are Linux's
/// (`PERF_COUNT_HW_*` of `linux/perf_event.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Generic {
    /// Core clock cycles while not halted.
    Cycles = 0,
    /// Instructions retired.
    Instructions = 1,
    /// References to the last-level cache.
    CacheReferences = 2,
    /// Misses of the last-level cache.
    CacheMisses = 3,
    /// Branch instructions retired, taken or not.
    Branches = 4,
    /// Branch instructions retired that were mispredicted.
    BranchMisses = 5,
    /// Cycles of the bus, or of another clock that does not follow the core's.
    BusCycles = 6,
    /// Cycles while not halted of a clock with the frequency of the TSC.
    ReferenceCycles = 9,
}

impl Generic {
    const ALL: [Self; 8] = [
        Self::Cycles,
        Self::Instructions,
        Self::CacheReferences,
        Self::CacheMisses,
        Self::Branches,
        Self::BranchMisses,
        Self::BusCycles,
        Self::ReferenceCycles,
    ];

    /// Linux's number of the event.
    pub const fn perf(self) -> u64 {
        self as u64
    }

    /// The event of Linux's number.
    pub fn from_perf(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.perf() == number)
    }

    /// The event's number and unit mask for a general counter, as an event select has it.
    pub const fn select(self, vendor: u32) -> Option<u64> {
        arch::events::select(self, vendor)
    }

    /// The fixed counter that counts this event.
    pub fn fixed(self) -> Option<PhysSlot> {
        arch::events::fixed(self)
    }
}
