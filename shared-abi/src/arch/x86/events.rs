// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The events that a guest may count.
//!
//! An event that counts other cores tells one tenant about another, and some events disturb a
//! sibling's counters. The manuals do not say for every model which events these are. So this file
//! lists the events that are allowed. The host may allow the others ([`CAPS_ALL_EVENTS`]), except
//! those that are known to do harm.

use super::{EVNTSEL_INSTRUCTIONS, EVNTSEL_QUALIFIERS};
use crate::caps::{
    CAPS_ALL_EVENTS, CAPS_SHARED_MASKS, CAPS_SIBLING_ERRATUM, PmuCaps, VENDOR_AMD, VENDOR_INTEL,
};
use crate::events::Generic;
use crate::slot::PhysSlot;

/// AMD's events of the core's own pipeline that mean the same in every family since 10h, with no
/// unit mask: cycles, instructions, branches, mispredicted branches, taken branches, and taken
/// branches that were mispredicted (Processor Programming References, "core performance monitor
/// counters").
pub const AMD: [u64; 6] = [0x76, 0xc0, 0xc2, 0xc3, 0xc4, 0xc5];

/// The event of conditional branches on AMD since family 17h, which rr counts there. On earlier
/// families the same number counts cycles in which the decoder of the counter's own core waits.
const AMD_CONDITIONALS: u64 = 0xd1;

/// AMD's locked instructions of family 17h that their own core has executed speculatively
/// (LsLocks.SpecLockMapCommit). Where the core executes such instructions, the event of conditional
/// branches counts too many; rr detects that by this event. Families before that do not define the
/// event.
const AMD_SPECULATIVE_LOCKS: u64 = 0x08_25;

/// Numbers of the fixed counters that count only their own logical processor (SDM volume 3, table
/// 20-2). The fixed counters behind them count TOPDOWN.SLOTS and its parts. Those slots belong to
/// the whole core, so their counts tell whether the sibling is halted.
const FIXED: [Generic; 3] = [Generic::Instructions, Generic::Cycles, Generic::ReferenceCycles];

/// Returns the event's number and unit mask for a general counter (SDM volume 3, table 20-1; AMD's
/// Processor Programming References, "core performance monitor counters").
pub const fn select(event: Generic, vendor: u32) -> Option<u64> {
    match (event, vendor) {
        (Generic::Instructions, VENDOR_INTEL | VENDOR_AMD) => Some(0xc0),
        (Generic::Cycles, VENDOR_INTEL) => Some(0x3c),
        (Generic::Cycles, VENDOR_AMD) => Some(0x76),
        (Generic::Branches, VENDOR_INTEL) => Some(0xc4),
        (Generic::Branches, VENDOR_AMD) => Some(0xc2),
        (Generic::BranchMisses, VENDOR_INTEL) => Some(0xc5),
        (Generic::BranchMisses, VENDOR_AMD) => Some(0xc3),
        (Generic::CacheReferences, VENDOR_INTEL) => Some(0x4f2e),
        (Generic::CacheMisses, VENDOR_INTEL) => Some(0x412e),
        (Generic::BusCycles, VENDOR_INTEL) => Some(0x013c),
        _ => None,
    }
}

/// Returns whether every Intel processor with PEBS can store precise records of this event: retired
/// instructions and retired branches, without a threshold (SDM volume 3, "Processor Event Based
/// Sampling (PEBS)").
///
/// Processors also have records of other events, but each model of other ones. If a counter waited
/// for a record of an event without records, it would never interrupt.
pub const fn has_precise_records(evntsel: u64) -> bool {
    matches!(evntsel & EVNTSEL_QUALIFIERS, 0xc0 | 0xc4)
}

/// Returns whether a counter with this event select counts retired instructions, without a
/// threshold. On a CPU that retires interrupts and exceptions as instructions, it counts these,
/// too.
///
/// Both vendors have the same number for the event, and Intel's first fixed counter counts it, too.
pub fn counts_instructions(slot: PhysSlot, evntsel: u64) -> bool {
    match slot.fixed_number() {
        Some(number) => number == 0,
        None => evntsel & EVNTSEL_QUALIFIERS == EVNTSEL_INSTRUCTIONS,
    }
}

/// Returns the fixed counter that counts an event (SDM volume 3, table 20-2).
pub fn fixed(event: Generic) -> Option<PhysSlot> {
    let number = FIXED.into_iter().position(|counted| counted == event)?;
    PhysSlot::fixed(number as u32)
}

/// Returns whether a guest may use the fixed counter with this number.
pub(crate) fn is_fixed_allowed(caps: &PmuCaps, number: u32) -> bool {
    (number as usize) < FIXED.len() || caps.can(CAPS_ALL_EVENTS)
}

/// Returns whether a guest's general counter may count the event of these event-select bits.
pub(crate) fn is_allowed(caps: &PmuCaps, event: u64) -> bool {
    is_of_own_core(caps.vendor, event) || caps.can(CAPS_ALL_EVENTS) && !does_harm(caps, event)
}

/// Returns whether the event is one of those that count only their own core on every processor of
/// the vendor.
fn is_of_own_core(vendor: u32, event: u64) -> bool {
    match vendor {
        VENDOR_INTEL => is_intels(event),
        VENDOR_AMD => {
            AMD.contains(&event) || matches!(event, AMD_CONDITIONALS | AMD_SPECULATIVE_LOCKS)
        }
        _ => false,
    }
}

/// Returns whether this unit mask and event number are one of Intel's architectural events (SDM
/// volume 3, table 20-1), or conditional branches, BR_INST_RETIRED.CONDITIONAL. All of them count
/// only the logical processor.
fn is_intels(event: u64) -> bool {
    matches!(event, 0x003c | 0x00c0 | 0x013c | 0x4f2e | 0x412e | 0x00c4 | 0x00c5 | 0x01c4)
}

fn does_harm(caps: &PmuCaps, event: u64) -> bool {
    match caps.vendor {
        VENDOR_INTEL => intel_harms(caps, event),
        VENDOR_AMD => amd_harms(event),
        _ => true,
    }
}

fn intel_harms(caps: &PmuCaps, event: u64) -> bool {
    let (number, mask) = (event & 0xff, event >> 8);
    match number {
        // OFFCORE_RESPONSE (SDM volume 3, chapter 20): its qualifiers are in registers that all
        // logical processors of a core share.
        0xb7 | 0xbb | 0x2a | 0x2b => true,
        // MEM_*_RETIRED: may change a sibling's counters (specification updates of these models,
        // "performance monitor counters may produce incorrect results").
        0xd0..=0xd3 => caps.can(CAPS_SIBLING_ERRATUM),
        // Core 2 (SDM volume 3, 20.6): L2 events of all cores, bus events of all cores or agents.
        0x21..=0x32 => caps.can(CAPS_SHARED_MASKS) && mask & 0xc0 == 0xc0,
        0x60..=0x7f => caps.can(CAPS_SHARED_MASKS) && (mask & 0xc0 == 0xc0 || mask & 0x20 != 0),
        _ => false,
    }
}

/// Returns whether an event does harm on AMD. Northbridge events have bits 7:5 of the event number
/// set (APM volume 2, 13.2.1).
fn amd_harms(event: u64) -> bool {
    event & 0xe0 == 0xe0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::count::CounterWidth;

    fn caps(vendor: u32, features: u32) -> PmuCaps {
        let [general_width, fixed_width] = [48, 40].map(|bits| CounterWidth::new(bits).unwrap());
        PmuCaps { vendor, version: 3, features, general: 4, fixed: 3, general_width, fixed_width }
    }

    #[test]
    fn each_vendor_has_numbers_of_its_own() {
        let of = |vendor| {
            use Generic::{BranchMisses, Branches, Cycles, Instructions};
            [Instructions, Cycles, Branches, BranchMisses].map(|event| select(event, vendor))
        };
        assert_eq!(of(VENDOR_INTEL), [0xc0, 0x3c, 0xc4, 0xc5].map(Some));
        assert_eq!(of(VENDOR_AMD), [0xc0, 0x76, 0xc2, 0xc3].map(Some));
        assert_eq!(of(7), [None; 4]);
        assert_eq!(select(Generic::BusCycles, VENDOR_AMD), None);
    }

    #[test]
    fn the_hosts_consent_lets_everything_in_that_does_no_harm() {
        let all = caps(VENDOR_INTEL, CAPS_ALL_EVENTS);
        for event in [0x4f_24, 0x81_d0, 0xcf_2e, 0xc0_6f, 0x7f_88] {
            assert!(is_allowed(&all, event) && !is_allowed(&caps(VENDOR_INTEL, 0), event));
        }
        for event in [0x01_b7, 0x01_bb, 0x01_2a, 0x01_2b] {
            assert!(!is_allowed(&all, event), "{event:#x}");
        }
    }

    #[test]
    fn models_on_which_an_event_harms_do_not_let_it_in() {
        let erratum = caps(VENDOR_INTEL, CAPS_ALL_EVENTS | CAPS_SIBLING_ERRATUM);
        assert!(!is_allowed(&erratum, 0x81_d0) && is_allowed(&erratum, 0x4f_24));
        let core_2 = caps(VENDOR_INTEL, CAPS_ALL_EVENTS | CAPS_SHARED_MASKS);
        for (event, allowed) in [
            (0x4f_2e, true),
            (0xcf_2e, false),
            (0x40_70, true),
            (0x60_70, false),
            (0xc0_70, false),
            (0xc0_88, true),
            // The first and the last event of each kind, and what is beside them: L2_ADS,
            // L2_NO_REQ, and the bus.
            (0xc0_20, true),
            (0xc0_21, false),
            (0x4032, true),
            (0xc032, false),
            (0xc0_33, true),
            (0xc0_5f, true),
            (0xc0_60, false),
            (0x20_7f, false),
            (0xc0_80, true),
        ] {
            assert_eq!(is_allowed(&core_2, event), allowed, "{event:#x}");
        }
    }

    #[test]
    fn amd_has_a_list_of_its_own() {
        let (few, all) = (caps(VENDOR_AMD, 0), caps(VENDOR_AMD, CAPS_ALL_EVENTS));
        assert!(is_allowed(&few, 0xc2) && !is_allowed(&few, 0x3c) && is_allowed(&all, 0x3c));
        assert!(is_allowed(&few, 0xd1) && !is_allowed(&few, 0x01_d1));
        assert!(is_allowed(&few, 0x08_25) && !is_allowed(&few, 0x25));
        assert!(!is_allowed(&few, 0x1_0000_00c0) && is_allowed(&all, 0x1_0000_00c0));
        assert!(!is_allowed(&all, 0x4_0000_00e0));
        assert!(!is_allowed(&caps(7, CAPS_ALL_EVENTS), 0xc0));
    }
}
