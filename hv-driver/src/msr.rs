// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Model-specific registers of the PMU.
//!
//! Intel: SDM volume 4, table 2-2.  AMD: APM volume 2, 13.2.1 and appendix A.

use shared_abi::caps::VENDOR_AMD;
use shared_abi::config::{EVNTSEL_EN, EVNTSEL_INT, EVNTSEL_OS, EVNTSEL_RINGS, EVNTSEL_USR};
use shared_abi::limits::{MAX_FIXED, MAX_GENERAL, MAX_SLOTS};
use shared_abi::slot::{ALL_SLOTS, slots_of};
use shared_abi::{Config, PhysSlot, PmuCaps, planted};

/// IA32_PMC0: general counter 0.
pub const IA32_PMC0: u32 = 0x0c1;
/// IA32_PERFEVTSEL0: event select of general counter 0.
pub const IA32_PERFEVTSEL0: u32 = 0x186;
/// IA32_FIXED_CTR0: fixed counter 0.
pub const IA32_FIXED_CTR0: u32 = 0x309;
/// IA32_FIXED_CTR_CTRL: four bits for each fixed counter, ring 0 and rings 1 to 3 lowest.
pub const IA32_FIXED_CTR_CTRL: u32 = 0x38d;
/// IA32_PERF_GLOBAL_STATUS: one overflow bit per counter, as in IA32_PERF_GLOBAL_CTRL.
pub const IA32_PERF_GLOBAL_STATUS: u32 = 0x38e;
/// IA32_PERF_GLOBAL_OVF_CTRL: clears the bits of IA32_PERF_GLOBAL_STATUS that are written as 1.
pub const IA32_PERF_GLOBAL_OVF_CTRL: u32 = 0x390;
/// IA32_PERF_GLOBAL_CTRL: one enable bit per counter, fixed ones from bit 32.
pub const IA32_PERF_GLOBAL_CTRL: u32 = 0x38f;
/// PerfEvtSel0 of the K7 kind.
pub const AMD_PERFEVTSEL0: u32 = 0xc001_0000;
/// PerfCtr0 of the K7 kind.
pub const AMD_PERFCTR0: u32 = 0xc001_0004;

/// Event select that counts the hypervisor's own instructions: event C0H in ring 0.
pub const EVNTSEL_OWN_INSTRUCTIONS: u64 = 0xc0 | EVNTSEL_OS | EVNTSEL_EN;

/// IA32_FIXED_CTR_CTRL, for counter 0: count in rings 1 to 3.
const FIXED_USR: u64 = 1 << 1;

/// IA32_FIXED_CTR_CTRL, for counter 0: interrupt on overflow.
const FIXED_PMI: u64 = 1 << 3;

/// Bits per fixed counter in IA32_FIXED_CTR_CTRL.
const FIXED_BITS: u32 = 4;

/// The counter's event-select register; `None` for fixed counters, which share one.
pub fn evntsel(caps: &PmuCaps, slot: PhysSlot) -> Option<u32> {
    let base = if caps.vendor == VENDOR_AMD { AMD_PERFEVTSEL0 } else { IA32_PERFEVTSEL0 };
    match slot.fixed_number() {
        Some(_) => None,
        None => Some(base + slot.index() as u32),
    }
}

/// The counter itself.
pub fn counter(caps: &PmuCaps, slot: PhysSlot) -> u32 {
    match slot.fixed_number() {
        Some(n) => IA32_FIXED_CTR0 + n,
        None if caps.vendor == VENDOR_AMD => AMD_PERFCTR0 + slot.index() as u32,
        None => IA32_PMC0 + slot.index() as u32,
    }
}

/// IA32_PERF_GLOBAL_CTRL with these slots enabled; each is stopped by its own selector instead.
pub fn global_enable(slots: u32) -> u64 {
    let fixed = slots >> MAX_GENERAL;
    let general = slots & !(u32::MAX << MAX_GENERAL);
    u64::from(general) | u64::from(fixed) << 32
}

/// Whether IA32_FIXED_CTR_CTRL lets fixed counter `n` count in any ring.
pub fn fixed_counts(fixed_ctrl: u64, n: u32) -> bool {
    fixed_ctrl >> (FIXED_BITS * n) & 0b11 != 0
}

/// What a physical CPU's selector registers hold.
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

    /// Selectors that count a guest's configuration in rings 1 to 3.
    ///
    /// A 64-bit PV guest executes its kernel and its user mode in ring 3 and the hypervisor alone
    /// executes in ring 0, so no guest counter ever has the OS bit in hardware.  Which of the
    /// guest's modes a counter counts in is decided when the guest changes its mode.
    pub fn of_pv(config: &Config) -> Self {
        let mut selectors = Self::NONE;
        for slot in slots_of(config.slots()) {
            let sampling = config.sampling() & slot.bit() != 0;
            match slot.fixed_number() {
                Some(n) => {
                    let bits = FIXED_USR | if sampling { FIXED_PMI } else { 0 };
                    selectors.fixed_ctrl |= bits << (FIXED_BITS * n);
                }
                None => {
                    let interrupt = if sampling { EVNTSEL_INT } else { 0 };
                    if let Some(evntsel) = selectors.evntsel.get_mut(slot.index()) {
                        let rings = planted!(GuestRingsProgrammed, EVNTSEL_RINGS, 0);
                        *evntsel = config.evntsel(slot) & !rings | EVNTSEL_USR | interrupt;
                    }
                }
            }
        }
        selectors
    }

    /// Slots that interrupt when they overflow.
    pub fn interrupting(&self) -> u32 {
        slots_of(ALL_SLOTS)
            .filter(|slot| match slot.fixed_number() {
                Some(n) => self.fixed_ctrl >> (FIXED_BITS * n) & FIXED_PMI != 0,
                None => self.evntsel.get(slot.index()).is_some_and(|e| e & EVNTSEL_INT != 0),
            })
            .fold(0, |mask, slot| mask | slot.bit())
    }
}

const _: () = assert!(MAX_FIXED as u32 * FIXED_BITS <= 64);
