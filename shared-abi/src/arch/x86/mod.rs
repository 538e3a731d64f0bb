// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! x86: Intel's and AMD's performance counters.
//!
//! The event select is the SDM's IA32_PERFEVTSELx word (volume 3, 20.2.1.1) with the rings as the
//! *guest* means them: USR is guest user mode, OS is guest kernel mode, whatever ring the
//! hypervisor lets either run in. Fixed counters take their rings from the same two bits.

pub mod events;

use crate::slot::PhysSlot;

/// The bits that hold the event number and the unit mask.
pub const EVNTSEL_EVENT_MASK: u64 = 0xffff;
/// The counter counts in the guest's user mode.
pub const EVNTSEL_USR: u64 = 1 << 16;
/// The counter counts in the guest's kernel mode.
pub const EVNTSEL_OS: u64 = 1 << 17;
/// The counter counts rising edges.
pub const EVNTSEL_EDGE: u64 = 1 << 18;
/// Pin control, which only the hypervisor may set.
pub const EVNTSEL_PC: u64 = 1 << 19;
/// The counter interrupts on overflow. Only the hypervisor may set this bit; a configuration asks
/// for it by [`MODE_SAMPLING`](crate::config::MODE_SAMPLING).
pub const EVNTSEL_INT: u64 = 1 << 20;
/// The counter counts the sibling hardware thread, too. A guest may never set this bit.
pub const EVNTSEL_ANY: u64 = 1 << 21;
/// The counter is enabled.
pub const EVNTSEL_EN: u64 = 1 << 22;
/// The comparison with the counter mask is inverted.
pub const EVNTSEL_INV: u64 = 1 << 23;
/// The bits that hold the counter mask.
pub const EVNTSEL_CMASK: u64 = 0xff << 24;
/// On AMD, the bits that hold bits 11:8 of the event number (APM volume 2, 13.2.1).
pub const EVNTSEL_AMD_EVENT_HIGH: u64 = 0xf << 32;

/// The bits of user mode and kernel mode.
pub const EVNTSEL_RINGS: u64 = EVNTSEL_USR | EVNTSEL_OS;

/// The bits that say what is counted: the event, its unit mask, edge, inversion and counter mask.
pub const EVNTSEL_QUALIFIERS: u64 = EVNTSEL_EVENT | EVNTSEL_EDGE | EVNTSEL_INV | EVNTSEL_CMASK;

/// The event number of instructions retired, which is the same on Intel (SDM volume 3, 20.2.1.2)
/// and on AMD.
pub const EVNTSEL_INSTRUCTIONS: u64 = 0xc0;

/// The bits that hold the event and its unit mask.
pub(crate) const EVNTSEL_EVENT: u64 = EVNTSEL_EVENT_MASK | EVNTSEL_AMD_EVENT_HIGH;

/// The bits that a guest may not set, because they affect more than its own counting.
pub(crate) const EVNTSEL_PRIVILEGED: u64 = EVNTSEL_PC | EVNTSEL_INT | EVNTSEL_ANY;

/// The bits that a guest may set. [`EVNTSEL_AMD_EVENT_HIGH`] exists only on some CPUs.
pub(crate) const EVNTSEL_GUEST: u64 = EVNTSEL_QUALIFIERS | EVNTSEL_RINGS | EVNTSEL_EN;

/// The modulus mask of the time-stamp counter, which is 64 bits wide.
pub const CLOCK_MASK: u64 = u64::MAX;

/// The longest distance to an overflow, unit: events. A counter is preset through a register that
/// takes 32 bits and extends their sign (SDM volume 3, 20.2.6).
pub const PRESET_EVENTS_MAX: u64 = (1 << 31) - 1;

/// RDPMC's index of fixed counter 0 (SDM volume 3, 20.2.2: bit 30 selects the fixed ones).
const RDPMC_FIXED: u32 = 1 << 30;

/// Returns whether what comes by this vector is an instruction itself, and retires as one: INT3 or
/// INTO (SDM volume 3, "Sources of Exceptions"). INT n comes by entries of its own or, where a
/// guest may not execute it, as an exception of another vector.
pub const fn is_instruction(vector: u8) -> bool {
    matches!(vector, 3 | 4)
}

/// Returns whether an address is a kernel's: kernels have the upper half of all canonical addresses
/// (SDM volume 1, 3.3.7.1), and programs have the lower half.
pub const fn is_kernels_address(address: u64) -> bool {
    address >> 63 == 1
}

/// Returns the index by which RDPMC reads the counter.
pub const fn counter_index(slot: PhysSlot) -> u32 {
    match slot.fixed_number() {
        Some(n) => RDPMC_FIXED | n,
        None => slot.index() as u32,
    }
}

/// Returns the slot of the counter that RDPMC reads by `index`.
pub const fn slot_of_counter_index(index: u32) -> Option<PhysSlot> {
    if index & RDPMC_FIXED != 0 {
        PhysSlot::fixed(index & !RDPMC_FIXED)
    } else {
        PhysSlot::general(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_SLOTS;

    #[test]
    fn counter_indices_round_trip() {
        for index in 0..MAX_SLOTS as u32 {
            let slot = PhysSlot::new(index).unwrap();
            assert_eq!(slot_of_counter_index(counter_index(slot)), Some(slot));
        }
        assert_eq!(PhysSlot::fixed(2).map(counter_index), Some(0x4000_0002));
        for absent in [16, RDPMC_FIXED + 8, 0x8000_0000, 0xc000_0000] {
            assert_eq!(slot_of_counter_index(absent), None, "{absent:#x}");
        }
    }
}
