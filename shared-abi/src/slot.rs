// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The numbers by which the ABI names physical counters.

use core::num::NonZeroU32;

use crate::arch;
use crate::limits::{MAX_FIXED, MAX_GENERAL, MAX_SLOTS};

/// A physical counter's place in a page. General counters begin at 0, and fixed counters at
/// [`MAX_GENERAL`].
///
/// Pages are indexed by physical counter, never by the order in which a thread lists its counters.
/// So two threads that list the same events in different orders still agree about every slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PhysSlot(u8);

impl PhysSlot {
    /// The slot of the first general counter, which every page has.
    pub const FIRST: Self = Self(0);

    /// Returns the slot with this index, or `None` if a page has no such slot.
    pub const fn new(index: u32) -> Option<Self> {
        if (index as usize) < MAX_SLOTS { Some(Self(index as u8)) } else { None }
    }

    /// Returns the slot with this index, which comes from another privilege level, or `None` if a
    /// page has no such slot. A processor that predicts the check's outcome wrongly continues with
    /// slot 0, and not with an address that the caller has chosen.
    pub fn from_guest(index: u32) -> Option<Self> {
        Self::new(index).map(|_| Self(masked(index, MAX_SLOTS as u32) as u8))
    }

    /// Returns the slot of general counter `n`, or `None` if a page has no such slot.
    pub const fn general(n: u32) -> Option<Self> {
        if (n as usize) < MAX_GENERAL { Some(Self(n as u8)) } else { None }
    }

    /// Returns the slot of fixed counter `n`, or `None` if a page has no such slot.
    pub const fn fixed(n: u32) -> Option<Self> {
        if (n as usize) < MAX_FIXED { Some(Self(MAX_GENERAL as u8 + n as u8)) } else { None }
    }

    /// Returns the slot of the counter that is read with this [index](Self::counter_index).
    pub const fn from_counter_index(index: u32) -> Option<Self> {
        arch::slot_of_counter_index(index)
    }

    /// Returns the number by which the instruction that reads counters names this counter.
    #[inline(always)]
    pub const fn counter_index(self) -> u32 {
        arch::counter_index(self)
    }

    /// Returns the fixed counter's number, or `None` for a general counter.
    pub const fn fixed_number(self) -> Option<u32> {
        if self.0 as usize >= MAX_GENERAL { Some(self.0 as u32 - MAX_GENERAL as u32) } else { None }
    }

    /// Returns the index in a page's array of slots.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the slot's bit in a mask of slots.
    pub const fn bit(self) -> u32 {
        1 << self.0
    }
}

/// Returns `index` if it is below `bound`, and 0 if it is not, without a branch that a processor
/// could predict wrongly. `bound` is at most 2^31.
fn masked(index: u32, bound: u32) -> u32 {
    // If the compiler knew that the check was made, it would remove the code below.
    let index = core::hint::black_box(index);
    let below = (u64::from(index).wrapping_sub(u64::from(bound)) as i64 >> 63) as u32;
    index & below
}

/// Iterates over the slots whose bits are set in `mask`, the lowest first.
#[inline(always)]
pub fn slots_of(mask: u32) -> impl Iterator<Item = PhysSlot> {
    bits_of(mask & ALL_SLOTS).map_while(PhysSlot::new)
}

/// Iterates over the numbers of the bits that are set in `mask`, the lowest first.
#[inline(always)]
pub fn bits_of(mut mask: u32) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let lowest = NonZeroU32::new(mask)?.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        Some(lowest)
    })
}

/// A mask with one bit for each slot that a page has.
pub const ALL_SLOTS: u32 = (1 << MAX_SLOTS) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_out_of_bounds_becomes_slot_0() {
        assert_eq!([0, 23, 24, 1 << 31, u32::MAX].map(|i| masked(i, 24)), [0, 23, 0, 0, 0]);
        assert_eq!(PhysSlot::from_guest(23), PhysSlot::new(23));
        assert_eq!(PhysSlot::from_guest(24), None);
    }

    #[test]
    fn a_slot_is_read_with_its_counters_index() {
        for (slot, index) in [
            (PhysSlot::general(3), 3),
            (PhysSlot::fixed(0), 1 << 30),
            (PhysSlot::fixed(2), 1 << 30 | 2),
        ] {
            assert_eq!(slot.map(PhysSlot::counter_index), Some(index));
            assert_eq!(PhysSlot::from_counter_index(index), slot);
        }
    }

    #[test]
    fn masks_list_their_slots() {
        let mut slots = slots_of(0b101 | 1 << 23);
        assert_eq!(slots.next().map(PhysSlot::index), Some(0));
        assert_eq!(slots.next().map(PhysSlot::index), Some(2));
        assert_eq!(slots.next().and_then(PhysSlot::fixed_number), Some(7));
        assert_eq!(slots.next(), None);
        assert_eq!(slots_of(0).next(), None);
        assert_eq!(slots_of(!ALL_SLOTS).next(), None);
    }
}
