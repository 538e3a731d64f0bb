// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What the PMU can do, as the hypervisor tells it to guests.

use crate::count::CounterWidth;
use crate::limits::{MAX_FIXED, MAX_GENERAL};
use crate::slot::PhysSlot;

/// [`PmuCaps::vendor`]: Intel architectural performance monitoring.
pub const VENDOR_INTEL: u32 = 1;
/// [`PmuCaps::vendor`]: AMD, four counters of the K7 kind or more.
pub const VENDOR_AMD: u32 = 2;

/// Number and width of the counters that guests may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmuCaps {
    /// `VENDOR_*`.
    pub vendor: u32,
    /// Version of Intel's architectural performance monitoring; 0 on AMD.
    pub version: u32,
    /// General counters.
    pub general: u32,
    /// Fixed counters.
    pub fixed: u32,
    /// Width of the general counters.
    pub general_width: CounterWidth,
    /// Width of the fixed counters.
    pub fixed_width: CounterWidth,
}

impl PmuCaps {
    /// Whether this PMU has the counter.
    pub const fn has(&self, slot: PhysSlot) -> bool {
        match slot.fixed_number() {
            Some(n) => n < self.fixed && (n as usize) < MAX_FIXED,
            None => (slot.index() as u32) < self.general && slot.index() < MAX_GENERAL,
        }
    }

    /// The counter's width.
    pub const fn width(&self, slot: PhysSlot) -> CounterWidth {
        if slot.fixed_number().is_some() { self.fixed_width } else { self.general_width }
    }

    /// One bit for each slot that this PMU has.
    pub const fn slots(&self) -> u32 {
        let mut mask = 0;
        let mut index = 0;
        while let Some(slot) = PhysSlot::new(index) {
            if self.has(slot) {
                mask |= slot.bit();
            }
            index += 1;
        }
        mask
    }
}
