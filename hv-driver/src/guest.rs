// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Describes a guest by the properties on which its counters depend; the registration of a page
//! fixes them.

use shared_abi::PmuCaps;
use shared_abi::caps::{CAPS_GLOBAL_AMD, CAPS_GLOBAL_INTEL, CAPS_GUEST_ONLY};

/// How counters distinguish the guest's kernel mode from its user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rings {
    /// The driver distinguishes them, because both execute in ring 3 (64-bit PV).
    ///
    /// It folds the counters at each change of the mode.
    Folded = 0,
    /// The hardware distinguishes them, because the guest has its own rings (HVM, PVH, KVM).
    Hardware = 1,
}

/// The guest's time-stamp counter: `offset + (scale * host >> fraction_bits)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Clock {
    /// What is added, unit: ticks of the guest's counter.
    pub offset: u64,
    /// A fixed-point number; it is 0 if the guest's counter has the host's frequency.
    pub scale: u64,
    /// The number of bits after the point in `scale`.
    pub fraction_bits: u32,
    /// Always 0.
    pub reserved: u32,
}

impl Clock {
    /// Makes the clock of a guest that reads the host's time-stamp counter.
    pub const fn native() -> Self {
        Self { offset: 0, scale: 0, fraction_bits: 0, reserved: 0 }
    }

    /// Returns what the guest reads when the host's counter is `host`.
    #[inline(always)]
    pub const fn guest(&self, host: u64) -> u64 {
        let scaled = if self.scale == 0 { host } else { self.scaled(host) };
        scaled.wrapping_add(self.offset)
    }

    const fn scaled(&self, host: u64) -> u64 {
        let product = host as u128 * self.scale as u128;
        product.wrapping_shr(self.fraction_bits) as u64
    }
}

/// What starts and stops the counters of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// One register enables and stops counters without a change of their selectors.
    Global,
    /// Each selector has an enable bit of its own.
    Selectors,
    /// Each selector is limited to guests.
    GuestSelectors,
    /// The hardware loads the register that enables counters whenever the guest is entered or left.
    Entry,
}

impl Gate {
    /// Returns the gate for such a guest on such a PMU.
    pub const fn new(caps: &PmuCaps, rings: Rings) -> Self {
        match rings {
            Rings::Hardware if caps.can(CAPS_GUEST_ONLY) => Self::GuestSelectors,
            Rings::Hardware if caps.can(CAPS_GLOBAL_INTEL) => Self::Entry,
            _ if caps.can(CAPS_GLOBAL_INTEL) || caps.can(CAPS_GLOBAL_AMD) => Self::Global,
            _ => Self::Selectors,
        }
    }
}

/// A kind of guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Guest {
    /// How its modes are distinguished.
    pub rings: Rings,
    /// The guest's number of the user who may read the vCPU's page and counters.
    pub observer: u32,
    /// Its time-stamp counter.
    pub clock: Clock,
}

impl Guest {
    /// Returns whether the guest's counters can stand still while the hypervisor executes.
    ///
    /// With [`Rings::Folded`] they always do, since no selector counts ring 0.
    pub const fn can_count(&self, caps: &PmuCaps) -> bool {
        match self.rings {
            Rings::Folded => true,
            Rings::Hardware => {
                matches!(Gate::new(caps, self.rings), Gate::GuestSelectors | Gate::Entry)
            }
        }
    }

    /// Makes a 64-bit PV guest that reads the host's time-stamp counter.
    pub const fn pv() -> Self {
        Self { rings: Rings::Folded, observer: 0, clock: Clock::native() }
    }
}

#[cfg(test)]
mod tests {
    use shared_abi::caps::{VENDOR_AMD, VENDOR_INTEL};
    use shared_abi::{CounterWidth, PmuCaps};

    use super::*;

    #[test]
    fn each_guest_is_gated_by_the_best_that_its_pmu_has() {
        let [general_width, fixed_width] = [48, 40].map(|bits| CounterWidth::new(bits).unwrap());
        let gate = |vendor, features, rings| {
            let (general, fixed) = (4, 3);
            let version = 2;
            let caps =
                PmuCaps { vendor, version, features, general, fixed, general_width, fixed_width };
            Gate::new(&caps, rings)
        };
        for (vendor, features, folded, hardware) in [
            (VENDOR_INTEL, CAPS_GLOBAL_INTEL, Gate::Global, Gate::Entry),
            (VENDOR_AMD, CAPS_GLOBAL_AMD | CAPS_GUEST_ONLY, Gate::Global, Gate::GuestSelectors),
            (VENDOR_AMD, CAPS_GUEST_ONLY, Gate::Selectors, Gate::GuestSelectors),
            (VENDOR_AMD, CAPS_GLOBAL_AMD, Gate::Global, Gate::Global),
            (VENDOR_AMD, 0, Gate::Selectors, Gate::Selectors),
        ] {
            let gates = [Rings::Folded, Rings::Hardware].map(|rings| gate(vendor, features, rings));
            assert_eq!(gates, [folded, hardware], "{features:#x}");
        }
    }

    #[test]
    fn the_guests_clock_is_scaled_and_then_moved() {
        assert_eq!(Clock::native().guest(12_345), 12_345);
        let slower = Clock { offset: 7, scale: 1 << 47, fraction_bits: 48, reserved: 0 };
        assert_eq!(slower.guest(1_000), 507);
        assert_eq!(slower.guest(u64::MAX), u64::MAX / 2 + 7);
        let earlier = Clock { offset: 100_u64.wrapping_neg(), ..Clock::native() };
        assert_eq!(earlier.guest(40), 60_u64.wrapping_neg());
    }
}
