// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The capabilities of the PMU, which the hypervisor tells to a guest's kernel, and the kernel to
//! its threads.
//!
//! Code that needs to know whether something is possible asks for its feature bit, never for a
//! vendor or a version.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::count::CounterWidth;
use crate::layout::layout;
use crate::limits::{MAX_FIXED, MAX_GENERAL};
use crate::slot::{PhysSlot, slots_of};

/// [`PmuCaps::vendor`]: event numbers are Intel's.
pub const VENDOR_INTEL: u32 = 1;
/// [`PmuCaps::vendor`]: event numbers are AMD's.
pub const VENDOR_AMD: u32 = 2;

/// [`PmuCaps::features`]: Intel's register for global control enables all counters (SDM volume 3,
/// 20.2.2).
pub const CAPS_GLOBAL_INTEL: u32 = 1 << 0;
/// [`PmuCaps::features`]: AMD's register for global control enables all counters (APM volume 2,
/// 13.2.1).
pub const CAPS_GLOBAL_AMD: u32 = 1 << 1;
/// [`PmuCaps::features`]: counters can sample (i-mode).
pub const CAPS_SAMPLING: u32 = 1 << 2;
/// [`PmuCaps::features`]: counters can be written in their full width (SDM volume 3, 20.2.8).
pub const CAPS_FULL_WIDTH: u32 = 1 << 3;
/// [`PmuCaps::features`]: event selects can be limited to guests (APM volume 2, 13.2.1).
pub const CAPS_GUEST_ONLY: u32 = 1 << 4;
/// [`PmuCaps::features`]: event numbers have 12 bits (APM volume 2, 13.2.1).
pub const CAPS_EVENT_12BIT: u32 = 1 << 5;
/// [`PmuCaps::features`]: the host lets guests also count events that are not known to count only
/// the guest's own logical processor; see [`arch`](crate::arch).
pub const CAPS_ALL_EVENTS: u32 = 1 << 6;
/// [`PmuCaps::features`]: the processor has an erratum by which some events may change the counters
/// of the sibling hardware thread.
pub const CAPS_SIBLING_ERRATUM: u32 = 1 << 7;
/// [`PmuCaps::features`]: unit masks can select events of other cores and of the bus.
pub const CAPS_SHARED_MASKS: u32 = 1 << 8;

/// Number, width and features of the counters that guests may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmuCaps {
    /// The vendor whose event numbers the PMU uses: `VENDOR_*`.
    pub vendor: u32,
    /// Version of Intel's architectural performance monitoring; 0 on AMD. It is only displayed: no
    /// decision depends on it.
    pub version: u32,
    /// `CAPS_*` bits.
    pub features: u32,
    /// Number of general counters.
    pub general: u32,
    /// Number of fixed counters.
    pub fixed: u32,
    /// Width of the general counters.
    pub general_width: CounterWidth,
    /// Width of the fixed counters, or of the general ones if there are no fixed counters.
    pub fixed_width: CounterWidth,
}

/// The form in which [`PmuCaps`] crosses a boundary between privilege levels.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct WireCaps {
    /// `VENDOR_*`.
    pub vendor: u32,
    /// Version of Intel's architectural performance monitoring; 0 on AMD.
    pub version: u32,
    /// `CAPS_*` bits; a reader ignores those that it does not know.
    pub features: u32,
    /// Number of general counters.
    pub general: u32,
    /// Number of fixed counters.
    pub fixed: u32,
    /// Width of the general counters, unit: bits.
    pub general_width: u32,
    /// Width of the fixed counters, unit: bits; 0 if there are none.
    pub fixed_width: u32,
    /// Always 0.
    pub reserved: u32,
}

layout!(WireCaps, "perfctr_caps", 32, {
    0 vendor: "__u32",
    4 version: "__u32",
    8 features: "__u32",
    12 general: "__u32",
    16 fixed: "__u32",
    20 general_width: "__u32",
    24 fixed_width: "__u32",
    28 reserved: "__u32",
});

impl From<&PmuCaps> for WireCaps {
    fn from(caps: &PmuCaps) -> Self {
        Self {
            vendor: caps.vendor,
            version: caps.version,
            features: caps.features,
            general: caps.general,
            fixed: caps.fixed,
            general_width: caps.general_width.bits(),
            fixed_width: if caps.fixed > 0 { caps.fixed_width.bits() } else { 0 },
            reserved: 0,
        }
    }
}

impl PmuCaps {
    /// Decodes capabilities from another privilege level. Returns `None` if no PMU can have them.
    pub fn from_wire(wire: &WireCaps) -> Option<Self> {
        if wire.general as usize > MAX_GENERAL || wire.fixed as usize > MAX_FIXED {
            return None;
        }
        let general_width = CounterWidth::new(wire.general_width)?;
        let fixed_width =
            if wire.fixed > 0 { CounterWidth::new(wire.fixed_width)? } else { general_width };
        Some(Self {
            vendor: wire.vendor,
            version: wire.version,
            features: wire.features,
            general: wire.general,
            fixed: wire.fixed,
            general_width,
            fixed_width,
        })
    }

    /// Returns whether the PMU has all of `features`, which are `CAPS_*` bits.
    #[inline(always)]
    pub const fn can(&self, features: u32) -> bool {
        self.features & features == features
    }

    /// Returns whether this PMU has the counter.
    pub const fn has(&self, slot: PhysSlot) -> bool {
        match slot.fixed_number() {
            Some(n) => n < self.fixed,
            None => (slot.index() as u32) < self.general,
        }
    }

    /// Returns the counter's width.
    pub const fn width(&self, slot: PhysSlot) -> CounterWidth {
        if slot.fixed_number().is_some() { self.fixed_width } else { self.general_width }
    }

    /// Returns the capabilities of a guest that may use only these slots, which are the first
    /// general counters and the first fixed ones.
    #[must_use]
    pub const fn within(&self, slots: u32) -> Self {
        let mut less = *self;
        less.general = 0;
        less.fixed = 0;
        let mut index = 0;
        while let Some(slot) = PhysSlot::new(index) {
            if self.has(slot) && slots & slot.bit() != 0 {
                match slot.fixed_number() {
                    Some(_) => less.fixed += 1,
                    None => less.general += 1,
                }
            }
            index += 1;
        }
        less
    }

    /// Returns the slots of the first `number` counters, or of all if this PMU has fewer: general
    /// ones first, and then fixed ones.
    pub fn first(&self, number: u32) -> u32 {
        slots_of(self.slots()).take(number as usize).fold(0, |mask, slot| mask | slot.bit())
    }

    /// Returns a mask with one bit for each slot that this PMU has.
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

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: WireCaps = WireCaps {
        vendor: VENDOR_INTEL,
        version: 3,
        features: CAPS_GLOBAL_INTEL | CAPS_SAMPLING | 1 << 31,
        general: 4,
        fixed: 3,
        general_width: 48,
        fixed_width: 40,
        reserved: 0,
    };

    #[test]
    fn capabilities_cross_a_boundary_unchanged() {
        let caps = PmuCaps::from_wire(&WIRE).unwrap();
        assert_eq!(WireCaps::from(&caps), WIRE);
        assert!(caps.can(CAPS_GLOBAL_INTEL | CAPS_SAMPLING) && !caps.can(CAPS_GLOBAL_AMD));
        assert_eq!((caps.general_width.bits(), caps.fixed_width.bits()), (48, 40));
    }

    #[test]
    fn without_fixed_counters_their_width_means_nothing() {
        let none = WireCaps { fixed: 0, fixed_width: 0, ..WIRE };
        let caps = PmuCaps::from_wire(&none).unwrap();
        assert_eq!(caps.fixed_width, caps.general_width);
        assert_eq!(WireCaps::from(&caps), none);
        assert_eq!(PmuCaps::from_wire(&WireCaps { fixed_width: 9, ..none }), Some(caps));
    }

    #[test]
    fn the_largest_pmu_has_every_slot() {
        let wire = WireCaps { general: MAX_GENERAL as u32, fixed: MAX_FIXED as u32, ..WIRE };
        assert_eq!(PmuCaps::from_wire(&wire).unwrap().slots(), 0x00ff_ffff);
        assert_eq!(PmuCaps::from_wire(&WIRE).unwrap().slots(), 0x0007_000f);
    }

    #[test]
    fn impossible_capabilities_are_refused() {
        for wire in [
            WireCaps { fixed_width: 0, ..WIRE },
            WireCaps { general_width: 31, ..WIRE },
            WireCaps { fixed_width: 65, ..WIRE },
            WireCaps { general: MAX_GENERAL as u32 + 1, ..WIRE },
            WireCaps { fixed: MAX_FIXED as u32 + 1, ..WIRE },
        ] {
            assert_eq!(PmuCaps::from_wire(&wire), None, "{wire:?}");
        }
    }
}
