// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! AMD's three kinds of counters: K7's, those of the core extension, and those of version 2. The
//! manual is APM volume 2, 13.2.1 and appendix A, and volume 3, appendix E.

use shared_abi::arch::EVNTSEL_QUALIFIERS;
use shared_abi::caps::{
    CAPS_EVENT_12BIT, CAPS_GLOBAL_AMD, CAPS_GUEST_ONLY, CAPS_SAMPLING, VENDOR_AMD,
};
use shared_abi::limits::MAX_GENERAL;
use shared_abi::slot::slots_of;
use shared_abi::{Config, PmuCaps};

use super::branches::BranchRegisters;
use super::{Bank, Global, Identity, Readable, Refusal, Registers, vendor, width};

pub(super) const VENDOR: [u32; 3] = vendor(b"AuthenticAMD");

/// PerfEvtSel0 and PerfCtr0.
const K7: Registers = Registers {
    evntsel: Bank { first: 0xc001_0000, stride: 1 },
    counters: Bank { first: 0xc001_0004, stride: 1 },
    fixed: None,
    global: None,
    record_enable: None,
    readable: [None; 2],
    branches: None,
    precise: None,
};
/// Returns the slots of a configuration that count VMRUN on a CPU that counts VMRUN in the guest:
/// those of retired instructions and of retired branches, unless they have a threshold.
pub(crate) fn entry_slots(config: &Config) -> u32 {
    slots_of(config.slots())
        .filter(|&slot| matches!(config.evntsel(slot) & EVNTSEL_QUALIFIERS, 0xc0 | 0xc2))
        .fold(0, |slots, slot| slots | slot.bit())
}

/// The number of counters of K7's kind.
const K7_COUNTERS: u32 = 4;

/// PERF_CTL0 and PERF_CTR0; selects and counters alternate.
const CORE: Registers = Registers {
    evntsel: Bank { first: 0xc001_0200, stride: 2 },
    counters: Bank { first: 0xc001_0201, stride: 2 },
    ..K7
};
/// The number of counters of the core extension.
const CORE_COUNTERS: u32 = 6;

/// PerfCntrGlobalCtl, PerfCntrGlobalStatus and PerfCntrGlobalStatusClr.
const GLOBAL: Global = Global { ctrl: 0xc000_0301, status: 0xc000_0300, acknowledge: 0xc000_0302 };

/// CPUID leaf 0x80000001, ECX: SVM, and with it event selects for guests only.
const EXTENDED_SVM: u32 = 1 << 2;
/// CPUID leaf 0x80000001, ECX: the core extension.
const EXTENDED_PERFCTR_CORE: u32 = 1 << 23;
/// CPUID leaf 0x80000001, ECX: counters of the northbridge or data fabric, which RDPMC reads with 6
/// to 9, and from the fifth on with 16 to 27.
const EXTENDED_PERFCTR_NB: u32 = 1 << 24;
/// CPUID leaf 0x80000001, ECX: counters of the last-level cache, which RDPMC reads with 10 and up.
const EXTENDED_PERFCTR_LLC: u32 = 1 << 28;
/// NB_PERF_CTL0, whose counter is the register after it.
const NB: Readable =
    Readable { stops: Bank { first: 0xc001_0240, stride: 2 }, number: 4, is_shared: true };
/// The most of these counters that RDPMC reads.
const NB_COUNTERS_MAX: u32 = 16;
/// ChL3PmcCfg0, whose counter is the register after it.
const LLC: Readable =
    Readable { stops: Bank { first: 0xc001_0230, stride: 2 }, number: 6, is_shared: true };
/// CPUID leaf 0x80000022, EAX: version 2.
const PERFMON_V2: u32 = 1 << 0;
/// CPUID leaf 0x80000022, EAX: LbrExtV2, whose number of pairs is in EBX.
const LBR_V2: u32 = 1 << 1;

/// Returns the PMU of an AMD processor. There are four counters since family 10h, six with the core
/// extension, and with version 2 as many as CPUID says; all have 48 bits.
pub(super) fn pmu(cpuid: &Identity) -> Result<(PmuCaps, Registers), Refusal> {
    let (family, _) = cpuid.family_and_model();
    if family < 0x10 {
        return Err(Refusal::Family(family));
    }
    let has = |feature| cpuid.extended & feature != 0;
    let (general, registers, control) = match cpuid.perfmon_amd {
        [eax, ebx] if has(EXTENDED_PERFCTR_CORE) && eax & PERFMON_V2 != 0 => {
            let registers = Registers { global: Some(GLOBAL), ..CORE };
            ((ebx & 0xf).min(MAX_GENERAL as u32), registers, CAPS_GLOBAL_AMD)
        }
        _ if has(EXTENDED_PERFCTR_CORE) => (CORE_COUNTERS, CORE, 0),
        _ => (K7_COUNTERS, K7, 0),
    };
    if general == 0 {
        return Err(Refusal::NoCounters);
    }
    let width = width(48)?;
    let nb = Readable { number: northbridge_counters(cpuid), ..NB };
    let readable =
        [has(EXTENDED_PERFCTR_NB).then_some(nb), has(EXTENDED_PERFCTR_LLC).then_some(LLC)];
    let guest_only = if has(EXTENDED_SVM) { CAPS_GUEST_ONLY } else { 0 };
    let caps = PmuCaps {
        vendor: VENDOR_AMD,
        version: 0,
        features: CAPS_EVENT_12BIT | CAPS_SAMPLING | control | guest_only,
        general,
        fixed: 0,
        general_width: width,
        fixed_width: width,
    };
    Ok((caps, Registers { readable, branches: branches(cpuid), ..registers }))
}

/// Returns the registers that record branches, on a CPU that has some.
fn branches(cpuid: &Identity) -> Option<BranchRegisters> {
    let [eax, ebx] = cpuid.perfmon_amd;
    let pairs = ebx >> 4 & 0x3f;
    (eax & LBR_V2 != 0 && pairs != 0).then(|| BranchRegisters::amd(pairs))
}

/// Returns how many counters of the northbridge or data fabric RDPMC reads, on a CPU that has some.
/// Version 2 reports their number; earlier CPUs, and those that report 0, have four.
fn northbridge_counters(cpuid: &Identity) -> u32 {
    let [eax, ebx] = cpuid.perfmon_amd;
    match (ebx >> 10) & 0x3f {
        number if eax & PERFMON_V2 == 0 || number == 0 => NB.number,
        number if number > NB_COUNTERS_MAX => NB_COUNTERS_MAX,
        number => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_abi::PhysSlot;

    const FAMILY_10H: Identity =
        Identity { vendor: VENDOR, signature: 0x0010_0f42, ..Identity::NONE };

    /// Returns the event select and the counter of the last of this many counters.
    fn last(registers: &Registers, counters: u32) -> (Option<u32>, u32) {
        let slot = PhysSlot::general(counters - 1).unwrap();
        (registers.evntsel(slot), registers.counter(slot))
    }

    #[test]
    fn family_10h() {
        let (caps, registers) = FAMILY_10H.pmu().unwrap();
        assert_eq!((caps.vendor, caps.general, caps.fixed), (VENDOR_AMD, 4, 0));
        assert!(caps.can(CAPS_SAMPLING) && !caps.can(CAPS_GUEST_ONLY));
        assert!(!caps.can(CAPS_GLOBAL_AMD));
        assert_eq!(last(&registers, 4), (Some(0xc001_0003), 0xc001_0007));
        let svm = Identity { extended: 1 << 2, ..FAMILY_10H };
        assert!(svm.pmu().unwrap().0.can(CAPS_GUEST_ONLY));
    }

    #[test]
    fn the_core_extension_has_six() {
        let (caps, registers) = Identity { extended: 1 << 23, ..FAMILY_10H }.pmu().unwrap();
        assert_eq!((caps.general, registers.global), (6, None));
        assert!(caps.can(CAPS_SAMPLING));
        assert_eq!(last(&registers, 6), (Some(0xc001_020a), 0xc001_020b));
    }

    #[test]
    fn version_2_has_global_registers_and_says_how_many_counters() {
        let v2 =
            |counters| Identity { extended: 1 << 23, perfmon_amd: [1, counters], ..FAMILY_10H };
        let (caps, registers) = v2(0x36).pmu().unwrap();
        assert_eq!((caps.general, registers.global), (6, Some(GLOBAL)));
        assert!(caps.can(CAPS_GLOBAL_AMD | CAPS_SAMPLING));
        assert_eq!(last(&registers, 6), (Some(0xc001_020a), 0xc001_020b));
        assert_eq!(v2(0x30).pmu(), Err(Refusal::NoCounters));
        let without_core = Identity { extended: 0, ..v2(6) };
        assert_eq!(without_core.pmu().unwrap().0.general, 4);
    }

    #[test]
    fn branch_records_are_as_many_as_cpuid_says() {
        let records = |perfmon_amd| {
            let cpuid = Identity { extended: 1 << 23, perfmon_amd, ..FAMILY_10H };
            cpuid.pmu().unwrap().1.branches
        };
        assert_eq!(records([3, 6 | 16 << 4]), Some(BranchRegisters::amd(16)));
        assert_eq!(records([3, 6 | 63 << 4 | 4 << 10]), Some(BranchRegisters::amd(63)));
        assert_eq!(records([1, 6 | 16 << 4]), None);
        assert_eq!(records([3, 6]), None, "none at all");
    }

    #[test]
    fn older_families_are_refused_by_name() {
        let k8 = Identity { signature: 0xf4a, ..FAMILY_10H };
        assert_eq!(k8.pmu(), Err(Refusal::Family(0xf)));
    }

    #[test]
    fn rdpmc_reads_counters_of_the_northbridge_and_the_last_level_cache() {
        let stops = |extended| {
            let (_, registers) = Identity { extended, ..FAMILY_10H }.pmu().unwrap();
            let readable = registers.readable.into_iter().flatten();
            readable.flat_map(|these| these.stops().map(move |msr| (msr, these.is_shared)))
        };
        assert_eq!(stops(1 << 23).count(), 0);
        let nb = [0xc001_0240, 0xc001_0242, 0xc001_0244, 0xc001_0246].map(|msr| (msr, true));
        assert!(stops(1 << 24).eq(nb));
        assert_eq!(stops(1 << 28).count(), 6);
        assert_eq!(stops(1 << 24 | 1 << 28).last(), Some((0xc001_023a, true)));
    }

    #[test]
    fn rdpmc_reads_as_many_counters_of_the_data_fabric_as_version_2_says() {
        let number = |perfmon_amd| {
            let cpuid = Identity { extended: 3 << 23, perfmon_amd, ..FAMILY_10H };
            let (_, registers) = cpuid.pmu().unwrap();
            registers.readable.into_iter().flatten().flat_map(Readable::stops).count()
        };
        let says = |fabric: u32| [1, 6 | 0x3f << 16 | fabric << 10 | 0x3f << 4];
        for (reported, expected) in [(1, 1), (4, 4), (6, 6), (16, 16), (17, 16), (63, 16), (0, 4)] {
            assert_eq!(number(says(reported)), expected, "{reported} are reported");
        }
        assert_eq!(number([0, 6 << 10]), 4, "without version 2 the leaf says nothing");
    }
}
