// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Computes the values of a physical CPU's selector registers.

use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_INT, EVNTSEL_OS, EVNTSEL_RINGS, EVNTSEL_USR};
use shared_abi::caps::CAPS_GUEST_ONLY;
use shared_abi::limits::{MAX_FIXED, MAX_SLOTS};
use shared_abi::slot::{ALL_SLOTS, slots_of};
use shared_abi::{Config, PhysSlot, PmuCaps};

use crate::guest::{Gate, Rings};
use crate::hal::Pmu;

/// Event select that counts the hypervisor's own instructions: event C0H in ring 0.
pub const EVNTSEL_OWN_INSTRUCTIONS: u64 = 0xc0 | EVNTSEL_OS | EVNTSEL_EN;

/// Count only while a guest executes, after VMRUN (APM volume 2, 13.2.1).
pub const EVNTSEL_GUEST_ONLY: u64 = 1 << 40;

/// Count only while no guest executes, before VMRUN and after the exit (APM volume 2, 13.2.1).
pub const EVNTSEL_HOST_ONLY: u64 = 1 << 41;

/// IA32_FIXED_CTR_CTRL, for counter 0: count in ring 0 (SDM volume 3, 20.2.2).
const FIXED_OS: u64 = 1 << 0;

/// IA32_FIXED_CTR_CTRL, for counter 0: count in rings 1 to 3.
pub(crate) const FIXED_USR: u64 = 1 << 1;

/// IA32_FIXED_CTR_CTRL, for counter 0: interrupt on overflow.
const FIXED_PMI: u64 = 1 << 3;

/// Bits per fixed counter in IA32_FIXED_CTR_CTRL.
pub(crate) const FIXED_BITS: u32 = 4;

/// The values of a physical CPU's selector registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selectors {
    /// Event select of each general counter; fixed counters' elements are 0.
    pub evntsel: [u64; MAX_SLOTS],
    /// IA32_FIXED_CTR_CTRL.
    pub fixed_ctrl: u64,
}

impl Selectors {
    /// No counter counts.
    pub const NONE: Self = Self { evntsel: [0; MAX_SLOTS], fixed_ctrl: 0 };

    /// Makes the selectors count a guest's configuration, and nothing else.
    ///
    /// With [`Rings::Folded`] no counter ever has the OS bit in hardware: only the hypervisor
    /// executes in ring 0, and the driver starts and folds counters when the guest's mode changes.
    ///
    /// A counter in `precise` does not interrupt when it overflows: the record that its next event
    /// writes interrupts.
    pub fn select(&mut self, config: &Config, rings: Rings, gate: Gate, precise: u32) {
        *self = Self::NONE;
        for slot in slots_of(config.slots()) {
            let sampling = config.sampling() & !precise & slot.bit() != 0;
            let asked = config.evntsel(slot) & EVNTSEL_RINGS;
            let rings = match rings {
                Rings::Folded => EVNTSEL_USR,
                Rings::Hardware => asked,
            };
            match slot.fixed_number() {
                Some(n) => self.fixed_ctrl |= fixed_select(rings, sampling) << (FIXED_BITS * n),
                None => {
                    let interrupt = if sampling { EVNTSEL_INT } else { 0 };
                    let limited = gate == Gate::GuestSelectors;
                    let gate = if limited { EVNTSEL_GUEST_ONLY } else { 0 };
                    if let Some(evntsel) = self.evntsel.get_mut(slot.index()) {
                        *evntsel = config.evntsel(slot) & !EVNTSEL_RINGS | rings | interrupt | gate;
                    }
                }
            }
        }
    }

    /// Returns the slots that interrupt when they overflow.
    pub fn interrupting(&self) -> u32 {
        self.slots_with(FIXED_PMI, EVNTSEL_INT)
    }

    /// Returns whether a slot interrupts when it overflows.
    pub fn interrupts(&self, slot: PhysSlot) -> bool {
        self.has(slot, FIXED_PMI, EVNTSEL_INT)
    }

    /// Returns the slots that count in some ring.
    pub fn counting(&self) -> u32 {
        self.slots_with(FIXED_OS | FIXED_USR, EVNTSEL_EN)
    }

    /// Returns the slots whose select has one of these bits.
    fn slots_with(&self, fixed: u64, general: u64) -> u32 {
        slots_of(ALL_SLOTS)
            .filter(|&slot| self.has(slot, fixed, general))
            .fold(0, |mask, slot| mask | slot.bit())
    }

    fn has(&self, slot: PhysSlot, fixed: u64, general: u64) -> bool {
        match slot.fixed_number() {
            Some(n) => self.fixed_ctrl >> (FIXED_BITS * n) & fixed != 0,
            None => self.evntsel.get(slot.index()).is_some_and(|e| e & general != 0),
        }
    }
}

/// Returns whether selectors can be limited to guests and to their host on this CPU now.
///
/// Where SVM is not enabled, counters with such a limit stand still (APM volume 2, 13.2.1). No
/// guest has rings of its own there.
pub(crate) fn can_limit_selectors(caps: &PmuCaps, pmu: &impl Pmu) -> bool {
    caps.can(CAPS_GUEST_ONLY) && pmu.read_register(EFER) & EFER_SVME != 0
}

/// EFER, and its bit that enables SVM (APM volume 2, 3.1.7).
const EFER: u32 = 0xc000_0080;
const EFER_SVME: u64 = 1 << 12;

/// Returns the selector of what guests execute, for a guest with these `rings`.
/// `limited` is what [`can_limit_selectors`] has said.
pub(crate) const fn of_guest(evntsel: u64, rings: Rings, limited: bool) -> u64 {
    match rings {
        Rings::Hardware if limited => evntsel | EVNTSEL_RINGS | EVNTSEL_GUEST_ONLY,
        _ => evntsel & !EVNTSEL_RINGS | EVNTSEL_USR,
    }
}

/// Returns the selector of what the hypervisor executes.
pub(crate) const fn of_hypervisor(evntsel: u64, limited: bool) -> u64 {
    let limit = if limited { EVNTSEL_HOST_ONLY } else { 0 };
    evntsel & !EVNTSEL_RINGS | EVNTSEL_OS | limit
}

const fn fixed_select(rings: u64, sampling: bool) -> u64 {
    (if rings & EVNTSEL_OS != 0 { FIXED_OS } else { 0 })
        | (if rings & EVNTSEL_USR != 0 { FIXED_USR } else { 0 })
        | (if sampling { FIXED_PMI } else { 0 })
}

const _: () = assert!(MAX_FIXED as u32 * FIXED_BITS <= 64);

#[cfg(test)]
mod tests {
    use super::super::Identity;
    use super::*;
    use shared_abi::CounterConfig;

    #[test]
    fn the_hypervisor_counts_its_own_instructions() {
        // SDM volume 3, figure 20-1: event C0H, OS in bit 17, enable in bit 22.
        assert_eq!(EVNTSEL_OWN_INSTRUCTIONS, 0x0042_00c0);
    }

    #[test]
    fn selectors_say_which_slots_count_and_interrupt() {
        let nehalem = Identity {
            vendor: [0x756e_6547, 0x4965_6e69, 0x6c65_746e],
            signature: 0x106a3,
            perfmon: [0x0730_0403, 0, 0, 3 | 40 << 5],
            ..Identity::NONE
        };
        let (caps, _) = nehalem.pmu().unwrap();
        let counter = |slot, mode, select| CounterConfig {
            slot,
            mode,
            period: 1_000 * u64::from(mode),
            evntsel: select,
            ..CounterConfig::default()
        };
        let listed = [
            counter(1, 0, 0x43_00c0),
            counter(2, 1, 0x41_00c4),
            counter(16, 0, 0x42_0000),
            counter(18, 1, 0x41_0000),
        ];
        let config = shared_abi::Config::new(&caps, &listed).unwrap();
        let mut selectors = Selectors { evntsel: [0x43_00c0; MAX_SLOTS], fixed_ctrl: 0xfff };
        selectors.select(&config, Rings::Hardware, Gate::Global, 0);
        // A nibble for each fixed counter: ring 0 in bit 0, others in bit 1, interrupt in bit 3.
        assert_eq!(selectors.fixed_ctrl, 0xa01);
        assert_eq!(selectors.evntsel[..4], [0, 0x43_00c0, 0x51_00c4, 0]);
        assert_eq!(selectors.counting(), 0b110 | 0b101 << 16);
        assert_eq!(selectors.interrupting(), 0b100 | 0b100 << 16);
        let slots = [1, 2, 16, 17, 18].map(|index| PhysSlot::new(index).unwrap());
        assert_eq!(slots.map(|slot| selectors.interrupts(slot)), [false, true, false, false, true]);
        assert_eq!(Selectors::NONE.counting(), 0);
    }
}
