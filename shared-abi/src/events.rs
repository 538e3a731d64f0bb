// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Events that processors of every vendor can count.

use crate::arch;
use crate::slot::PhysSlot;

/// An event that processors of every vendor can count, though each vendor has its own number for
/// it. The values are Linux's (`PERF_COUNT_HW_*` of `linux/perf_event.h`).
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
    /// Cycles of a clock with the frequency of the TSC, while not halted.
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

    /// Returns Linux's number of the event.
    pub const fn perf(self) -> u64 {
        self as u64
    }

    /// Returns the event with this number of Linux's, if there is one.
    pub fn from_perf(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.perf() == number)
    }

    /// Returns the event's number and unit mask for a general counter, in the form of an event
    /// select. Returns `None` if the vendor's processors do not share a number for it.
    pub const fn select(self, vendor: u32) -> Option<u64> {
        arch::events::select(self, vendor)
    }

    /// Returns the fixed counter that counts this event, if there is one.
    pub fn fixed(self) -> Option<PhysSlot> {
        arch::events::fixed(self)
    }
}
