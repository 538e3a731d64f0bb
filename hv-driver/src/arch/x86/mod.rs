// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Determines which PMU an x86 CPU has: its capabilities, and its registers.
//!
//! There is one file for each vendor; no other code depends on the vendor.

mod amd;
pub(crate) mod branches;
mod identity;
mod intel;
mod pebs;
pub(crate) mod probe;
pub(crate) mod selectors;

pub(crate) use amd::entry_slots;
use branches::BranchRegisters;
pub use identity::Identity;
pub(crate) use pebs::PreciseRecord;
use pebs::PreciseRegisters;
pub use pebs::{RECORD_AREA_BYTES, RecordArea};
use shared_abi::arch::events;
use shared_abi::caps::VENDOR_INTEL;
use shared_abi::hypercall::{PLACE_KERNEL, PLACE_USER};
use shared_abi::limits::{MAX_FIXED, MAX_GENERAL};
use shared_abi::slot::slots_of;
use shared_abi::{Config, CounterWidth, PhysSlot, PmuCaps};

/// Returns the slots of a configuration that count retired instructions, see
/// [`events::counts_instructions`].
pub(crate) fn instruction_slots(config: &Config) -> u32 {
    let counts_instructions =
        |slot: &PhysSlot| events::counts_instructions(*slot, config.evntsel(*slot));
    let slots = slots_of(config.slots()).filter(counts_instructions);
    slots.fold(0, |slots, slot| slots | slot.bit())
}

/// Returns the slots of a configuration that are to have precise records, and whose events can.
pub(crate) fn precise_slots(config: &Config) -> u32 {
    let has_records = |slot: &PhysSlot| events::has_precise_records(config.evntsel(*slot));
    let slots = slots_of(config.precise()).filter(has_records);
    slots.fold(0, |slots, slot| slots | slot.bit())
}

/// The addresses that a 64-bit PV guest cannot map, since Xen uses them itself
/// (`HYPERVISOR_VIRT_START` and `HYPERVISOR_VIRT_END` of Xen's public headers).
const HYPERVISOR: core::ops::Range<u64> = 0xffff_8000_0000_0000..0xffff_8800_0000_0000;
/// The first address of the upper half, in which the kernel is.
const KERNEL_HALF: u64 = 1 << 63;

/// Returns the mode (`PLACE_*`) in which a 64-bit PV guest executes at an address, or `None` if
/// only the hypervisor executes there.
pub(crate) fn mode_at(address: u64) -> Option<u32> {
    let mode = if address & KERNEL_HALF != 0 { PLACE_KERNEL } else { PLACE_USER };
    Some(mode).filter(|_| !HYPERVISOR.contains(&address))
}

/// Returns whether the local APICs of such CPUs mask their entry for the PMU when they deliver its
/// interrupt.
///
/// Intel's mask it (SDM volume 3, "Local Vector Table"). A masked entry then shows that the PMU has
/// interrupted, and no counter interrupts again until the entry is unmasked. AMD's do not mask it.
pub(crate) fn masks_entry_of_pmu(caps: &PmuCaps) -> bool {
    caps.vendor == VENDOR_INTEL
}

/// IA32_DEBUGCTL; AMD's CPUs have the same bits in DebugCtl.
const DEBUGCTL: u32 = 0x1d9;

/// Why the PMU cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The vendor is neither Intel nor AMD.
    Vendor([u32; 3]),
    /// Architectural performance monitoring is older than version 2, and has no global control.
    Version(u32),
    /// There are no general counters.
    NoCounters,
    /// A counter has fewer than 32 or more than 64 bits.
    Width(u32),
    /// The AMD family has no counters that this driver knows.
    Family(u32),
    /// Leaf 1 of CPUID reports another model than on the boot CPU.
    Model(u32),
    /// Leaf 0x1A of CPUID reports another kind of core than on the boot CPU.
    CoreType(u32),
    /// CPUID reports other counters than on the boot CPU.
    Counters(u32),
    /// A register does not exist, or does not keep what is written to it.
    Register(u32),
    /// The host wants branches recorded, and the CPU does not record them in a format that this
    /// driver knows.
    Branches(u32),
    /// The host wants precise places, and the CPU does not store them in a format that this driver
    /// knows.
    Precise(u32),
}

impl Refusal {
    /// Returns what was expected and what was found; the console shows both.
    pub const fn describe(&self) -> (&'static str, u32) {
        match *self {
            Self::Vendor([first, ..]) => ("CPU vendor Intel or AMD", first),
            Self::Version(version) => ("architectural performance monitoring 2 or later", version),
            Self::NoCounters => ("at least 1 general counter left for guests", 0),
            Self::Width(bits) => ("counters of 32 to 64 bits", bits),
            Self::Family(family) => ("AMD family 0x10 or later", family),
            Self::Model(signature) => ("the model of CPU 0", signature),
            Self::CoreType(found) => ("the kind of core of CPU 0", found),
            Self::Counters(perfmon) => ("the counters of CPU 0", perfmon),
            Self::Register(msr) => ("registers that keep what is written to them", msr),
            Self::Branches(format) => {
                ("branch records of Intel Nehalem to Ivy Bridge or AMD LbrExtV2", format)
            }
            Self::Precise(format) => ("precise records (PEBS) of format 2 or 3", format),
        }
    }
}

/// A register for each of several counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bank {
    first: u32,
    stride: u32,
}

impl Bank {
    const fn of(self, n: u32) -> u32 {
        self.first + n * self.stride
    }
}

/// The registers of the fixed counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    counters: Bank,
    /// Selects for all of them, in the layout of IA32_FIXED_CTR_CTRL.
    pub ctrl: u32,
}

/// The registers of all counters together, each with a bit for every counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Global {
    /// Enables counters.
    pub ctrl: u32,
    /// Says which have overflowed.
    pub status: u32,
    /// Clears bits of `status`.
    pub acknowledge: u32,
}

/// Counters that the driver does not use, but that guests can read by RDPMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readable {
    /// The selector or the counter of each, which a write of 0 stops or clears.
    stops: Bank,
    number: u32,
    /// Whether they count events of several cores, so that other software of the host may use them.
    pub is_shared: bool,
}

impl Readable {
    /// Returns the registers that are cleared so that guests learn nothing by reading them.
    pub fn stops(self) -> impl Iterator<Item = u32> {
        (0..self.number).map(move |n| self.stops.of(n))
    }
}

/// Where a PMU's registers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    evntsel: Bank,
    counters: Bank,
    /// The fixed counters' registers, if there are such counters.
    pub fixed: Option<Fixed>,
    /// The registers of all counters together, if the PMU has them.
    pub global: Option<Global>,
    /// The register that lets counters write records to memory; the driver clears it.
    pub record_enable: Option<u32>,
    /// The other counters that RDPMC reads, if there are any.
    pub readable: [Option<Readable>; 2],
    /// The registers that record branches, if there are any that the driver knows.
    pub branches: Option<BranchRegisters>,
    /// The registers that let counters write records with precise places, if the driver knows their
    /// format.
    pub precise: Option<PreciseRegisters>,
}

impl Registers {
    /// Returns the counter's event-select register; `None` for fixed counters, which share one.
    pub const fn evntsel(&self, slot: PhysSlot) -> Option<u32> {
        match slot.fixed_number() {
            Some(_) => None,
            None => Some(self.evntsel.of(slot.index() as u32)),
        }
    }

    /// Returns the register of the counter itself.
    pub const fn counter(&self, slot: PhysSlot) -> u32 {
        match (slot.fixed_number(), self.fixed) {
            (Some(n), Some(fixed)) => fixed.counters.of(n),
            _ => self.counters.of(slot.index() as u32),
        }
    }
}

/// Returns the bits of these slots in the registers of all counters; those of fixed counters begin
/// at bit 32.
pub const fn global_bits(slots: u32) -> u64 {
    let fixed = slots >> MAX_GENERAL;
    let general = slots & !(u32::MAX << MAX_GENERAL);
    general as u64 | (fixed as u64) << 32
}

/// Returns the slots of these bits.
pub const fn slots_of_global(bits: u64) -> u32 {
    let (general, fixed) = (bits as u32, (bits >> 32) as u32);
    general & !(u32::MAX << MAX_GENERAL) | fixed << MAX_GENERAL
}

impl Identity {
    /// Returns the CPU's PMU.
    ///
    /// # Errors
    ///
    /// Says why the PMU cannot be used.
    pub fn pmu(&self) -> Result<(PmuCaps, Registers), Refusal> {
        match self.vendor {
            intel::VENDOR => intel::pmu(self),
            amd::VENDOR => amd::pmu(self),
            other => Err(Refusal::Vendor(other)),
        }
    }

    /// Returns the format of the CPU's branch records; 0 if it says of none.
    pub(crate) fn branch_format(&self) -> u32 {
        if self.vendor == intel::VENDOR { intel::branch_format(self) } else { 0 }
    }

    /// Returns the format of the CPU's precise records; 0 if it has none that say so.
    pub(crate) fn record_format(&self) -> u32 {
        if self.vendor == intel::VENDOR { intel::record_format(self) } else { 0 }
    }

    /// Checks that a CPU with the identity `other` has the same events and counters.
    ///
    /// # Errors
    ///
    /// Says what differs.
    pub fn agrees(&self, other: &Self) -> Result<(), Refusal> {
        let model = |cpuid: &Self| (cpuid.vendor, cpuid.family_and_model());
        if model(self) != model(other) {
            return Err(Refusal::Model(other.signature));
        }
        if self.core_type != other.core_type {
            return Err(Refusal::CoreType(other.core_type));
        }
        let counters = |cpuid: &Self| (cpuid.perfmon, cpuid.perfmon_masks, cpuid.perfmon_amd);
        if counters(self) != counters(other) || self.pmu()? != other.pmu()? {
            return Err(Refusal::Counters(other.perfmon[0]));
        }
        Ok(())
    }
}

const fn vendor(spelled: &[u8; 12]) -> [u32; 3] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *spelled;
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
        u32::from_le_bytes([i, j, k, l]),
    ]
}

fn width(bits: u32) -> Result<CounterWidth, Refusal> {
    CounterWidth::new(bits).ok_or(Refusal::Width(bits))
}

const _: () = assert!(MAX_FIXED <= 32 && MAX_GENERAL <= 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_vendors_are_refused_by_name() {
        let cpuid = Identity { vendor: [1, 2, 3], ..Identity::NONE };
        assert_eq!(cpuid.pmu(), Err(Refusal::Vendor([1, 2, 3])));
    }

    #[test]
    fn a_refusal_says_what_was_expected_and_what_was_found() {
        for (refusal, expected, found) in [
            (Refusal::Vendor([9, 2, 3]), "Intel or AMD", 9),
            (Refusal::Version(8), "monitoring 2", 8),
            (Refusal::NoCounters, "general counter", 0),
            (Refusal::Width(70), "32 to 64 bits", 70),
            (Refusal::Family(6), "family 0x10", 6),
            (Refusal::Branches(5), "Nehalem to Ivy Bridge", 5),
            (Refusal::Precise(4), "format 2 or 3", 4),
        ] {
            let (text, number) = refusal.describe();
            assert!(text.contains(expected) && number == found, "{text}, {number}");
        }
    }

    #[test]
    fn general_counters_come_first_in_global_registers() {
        assert_eq!(global_bits(0xf | 7 << 16), 0x7_0000_000f);
        assert_eq!(slots_of_global(0x7_0000_000f | 1 << 62), 0xf | 7 << 16);
    }
}
