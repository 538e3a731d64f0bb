// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Knows which events are right on this CPU.

#[cfg(target_arch = "x86_64")]
use raw_cpuid::native_cpuid::cpuid_count;
use std::sync::OnceLock;

use shared_abi::PhysSlot;
use shared_abi::arch::events::AMD;
use shared_abi::caps::{VENDOR_AMD, VENDOR_INTEL};
use shared_abi::events::Generic;

use crate::error::Error;
use crate::event::{Event, What};

/// Intel's architectural events, by their bits in CPUID leaf 0AH, EBX (SDM volume 3, table 20-1).
const ARCHITECTURAL: [Generic; 7] = [
    Generic::Cycles,
    Generic::Instructions,
    Generic::BusCycles,
    Generic::CacheReferences,
    Generic::CacheMisses,
    Generic::Branches,
    Generic::BranchMisses,
];

#[cfg(target_arch = "x86_64")]
const LEAF_PMU: u32 = 0xa;

/// Stands for the vendor of a processor that is not an x86.
const ELSEWHERE: u32 = u32::MAX;

/// The events that a CPU is known to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// `VENDOR_*`, 0 or [`ELSEWHERE`].
    vendor: u32,
    /// One bit for each architectural event that the CPU does not have.
    missing: u32,
    /// Number of Intel's fixed counters.
    fixed: u32,
}

impl Known {
    /// Returns no known events: on this architecture only the kernel knows which events there are.
    #[cfg(not(target_arch = "x86_64"))]
    const fn here() -> Self {
        Self { vendor: ELSEWHERE, missing: 0, fixed: 0 }
    }

    /// Asks the CPU that executes this code.
    #[cfg(target_arch = "x86_64")]
    fn here() -> Self {
        let name = cpuid_count(0, 0);
        let vendor = match [name.ebx, name.edx, name.ecx].map(u32::to_le_bytes).concat().as_slice()
        {
            b"GenuineIntel" => VENDOR_INTEL,
            b"AuthenticAMD" | b"HygonGenuine" => VENDOR_AMD,
            _ => 0,
        };
        // EAX of leaf 0 is the number of the highest leaf.
        if name.eax < LEAF_PMU {
            return Self { vendor, missing: missing(0, 0), fixed: 0 };
        }
        let leaf = cpuid_count(LEAF_PMU, 0);
        Self { vendor, missing: missing(leaf.eax, leaf.ebx), fixed: leaf.edx & 0x1f }
    }

    /// Returns whether the CPU is known to count this event.
    fn has(&self, event: &Event) -> bool {
        let select = event.select(self.vendor);
        match self.vendor {
            _ if event.name.is_some() || event.is_software() => true,
            // On other architectures Linux itself counts its generic events correctly, or refuses
            // them.
            ELSEWHERE => matches!(event.what, What::Generic(_)),
            // Only a fixed counter counts this event.
            VENDOR_INTEL if select.is_none() => event
                .fixed()
                .and_then(PhysSlot::fixed_number)
                .is_some_and(|number| number < self.fixed),
            VENDOR_INTEL => {
                let is = |event: &Generic| event.select(VENDOR_INTEL) == select;
                let bit = ARCHITECTURAL.iter().position(is);
                bit.is_some_and(|bit| self.missing >> bit & 1 == 0)
            }
            VENDOR_AMD => select.is_some_and(|select| AMD.contains(&select)),
            _ => false,
        }
    }
}

/// Returns the architectural events that the CPU does not have, from EAX and EBX of CPUID leaf 0AH.
/// If a hypervisor hides the leaf from its guests (version 0), no event counts as missing.
#[cfg(any(test, target_arch = "x86_64"))]
fn missing(eax: u32, ebx: u32) -> u32 {
    let (version, listed) = (eax & 0xff, eax >> 24);
    if version == 0 { 0 } else { ebx | u32::MAX.checked_shl(listed).unwrap_or(0) }
}

/// Refuses the first event that no counter counts.
pub(crate) fn check_counters(events: &[Event]) -> Result<(), Error> {
    let reason = "the kernel counts it, and no counter: `perfctr stat` and watches can";
    let software = events.iter().find(|event| event.is_software());
    software.map_or(Ok(()), |&event| Err(Error::unavailable(event, reason)))
}

/// Refuses the first event that this CPU is not known to count.
pub(crate) fn check(events: &[Event]) -> Result<(), Error> {
    // The result is kept, because each CPUID in a virtual machine exits to the hypervisor.
    static HERE: OnceLock<Known> = OnceLock::new();
    let known = HERE.get_or_init(Known::here);
    match events.iter().find(|event| event.verified && !known.has(event)) {
        None => Ok(()),
        Some(&event) => {
            let reason = "it is not known to be right on this CPU; where the CPU's manual has it, \
                          --unverified (in Rust, Event::unverified) counts it";
            Err(Error::unavailable(event, reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nehalem's leaf: version 3, 7 events.
    const EAX: u32 = 7 << 24 | 48 << 16 | 4 << 8 | 3;

    #[test]
    fn announced_events_are_known() {
        let cpu = Known { vendor: VENDOR_INTEL, missing: missing(EAX, 0), fixed: 3 };
        for event in [Event::INSTRUCTIONS, Event::CYCLES.user(), Event::BRANCHES.kernel()] {
            assert!(cpu.has(&event), "{event}");
        }
        assert!(cpu.has(&Event::raw(0x4f2e)));
        for unknown in [0x0151, 0x01c0, 0x00c0 | 1 << 24, 0x0] {
            assert!(!cpu.has(&Event::raw(unknown)), "{unknown:#x}");
        }
    }

    #[test]
    fn an_event_that_is_missing_is_not_known_by_name_either() {
        let cpu = Known { vendor: VENDOR_INTEL, missing: missing(EAX, 1 << 5), fixed: 2 };
        assert!(!cpu.has(&Event::BRANCHES) && !cpu.has(&Event::raw(0xc4)));
        assert!(cpu.has(&Event::INSTRUCTIONS));
        assert!(!cpu.has(&Event::REF_CYCLES) && Known { fixed: 3, ..cpu }.has(&Event::REF_CYCLES));
        // Only as many bits of EBX as EAX says have a meaning.
        let few = Known {
            vendor: VENDOR_INTEL,
            missing: missing(EAX & 0xff_ffff | 2 << 24, 0),
            fixed: 3,
        };
        assert!(few.has(&Event::INSTRUCTIONS) && !few.has(&Event::BRANCHES));
    }

    #[test]
    fn amd_and_hidden_leaves_have_their_events() {
        let amd = Known { vendor: VENDOR_AMD, missing: 0, fixed: 0 };
        assert!(amd.has(&Event::BRANCHES) && amd.has(&Event::raw(0xc3)));
        // Later families count micro-operations (0xc1) in another way.
        assert!(!amd.has(&Event::raw(0x3c)) && !amd.has(&Event::raw(0xc1)));
        assert!(amd.has(&Event::raw(0xc5)));
        assert_eq!(missing(0, 0), 0);
        assert!(!Known { vendor: 0, missing: 0, fixed: 0 }.has(&Event::CYCLES));
        let elsewhere = Known { vendor: ELSEWHERE, missing: 0, fixed: 0 };
        assert!(elsewhere.has(&Event::CYCLES) && !elsewhere.has(&Event::raw(0x3c)));
    }
}
