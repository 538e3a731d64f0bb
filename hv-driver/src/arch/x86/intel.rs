// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Intel's architectural performance monitoring. Registers: SDM volume 4, table 2-2.

use shared_abi::PmuCaps;
use shared_abi::caps::{
    CAPS_FULL_WIDTH, CAPS_GLOBAL_INTEL, CAPS_SAMPLING, CAPS_SHARED_MASKS, CAPS_SIBLING_ERRATUM,
    VENDOR_INTEL,
};
use shared_abi::limits::{MAX_FIXED, MAX_GENERAL};

use super::branches::BranchRegisters;
use super::pebs::PreciseRegisters;
use super::{Bank, Fixed, Global, Identity, Readable, Refusal, Registers, vendor, width};

pub(super) const VENDOR: [u32; 3] = vendor(b"GenuineIntel");

/// IA32_PERFEVTSEL0 and IA32_PMC0; IA32_FIXED_CTR0 and IA32_FIXED_CTR_CTRL; IA32_PERF_GLOBAL_CTRL,
/// _STATUS and _OVF_CTRL.
const REGISTERS: Registers = Registers {
    evntsel: Bank { first: 0x186, stride: 1 },
    counters: Bank { first: 0x0c1, stride: 1 },
    fixed: Some(Fixed { counters: Bank { first: 0x309, stride: 1 }, ctrl: 0x38d }),
    global: Some(Global { ctrl: 0x38f, status: 0x38e, acknowledge: 0x390 }),
    record_enable: None,
    readable: [None; 2],
    branches: None,
    precise: None,
};

/// IA32_PERF_CAPABILITIES: IA32_A_PMCx take full-width writes (SDM volume 3, 20.2.8).
const PERF_CAPABILITIES_FW_WRITE: u64 = 1 << 13;

/// IA32_PERF_CAPABILITIES: RDPMC reads PERF_METRICS with 2000_0000H (SDM volume 2, RDPMC).
const PERF_CAPABILITIES_METRICS: u64 = 1 << 15;
/// PERF_METRICS, which counts only where IA32_PERF_GLOBAL_CTRL enables it; the driver never does.
const METRICS: Readable =
    Readable { stops: Bank { first: 0x329, stride: 1 }, number: 1, is_shared: false };

/// IA32_PERF_CAPABILITIES: the bits of the format of branch records.
const PERF_CAPABILITIES_BRANCHES: u64 = 0x3f;
/// The format in which a source is an address with a flag in its highest bit.
const BRANCHES_WITH_FLAGS: u64 = 3;

/// IA32_PEBS_ENABLE.
const IA32_PEBS_ENABLE: u32 = 0x3f1;
/// IA32_MISC_ENABLE: there is no processor event-based sampling.
const MISC_ENABLE_NO_PEBS: u64 = 1 << 12;
/// CPUID leaf 1, EDX: debug store.
const FEATURES_DEBUG_STORE: u32 = 1 << 21;
/// CPUID leaf 7, EDX: there is a register TSX_FORCE_ABORT.
const STRUCTURED_TSX_FORCE_ABORT: u32 = 1 << 13;
/// TSX_FORCE_ABORT: transactions abort, and the counter is free.
const RTM_FORCE_ABORT: u64 = 1 << 0;

/// CPUID leaf 0AH, EAX: from this version on ECX is a mask of the fixed counters.
const VERSION_WITH_FIXED_MASK: u32 = 5;

/// Returns the PMU of a processor of Intel (SDM volume 2, CPUID leaves 0AH and 23H, and volume 3,
/// 20.2).
pub(super) fn pmu(cpuid: &Identity) -> Result<(PmuCaps, Registers), Refusal> {
    let [eax, _, ecx, edx] = cpuid.perfmon;
    let [general_mask, fixed_mask] = cpuid.perfmon_masks;
    let version = eax & 0xff;
    if version < 2 {
        return Err(Refusal::Version(version));
    }
    let general = ((eax >> 8) & 0xff).min(MAX_GENERAL as u32).min(free_of_tsx(cpuid));
    let general = general.min(first_of(general_mask));
    if general == 0 {
        return Err(Refusal::NoCounters);
    }
    let general_width = width((eax >> 16) & 0xff)?;
    let fixed_by_version = if version >= VERSION_WITH_FIXED_MASK { ecx } else { 0 };
    let fixed = (edx & 0x1f).min(MAX_FIXED as u32);
    let fixed = fixed.min(first_of(fixed_by_version)).min(first_of(fixed_mask));
    let fixed_width = if fixed > 0 { width((edx >> 5) & 0xff)? } else { general_width };
    let full_width = cpuid.perf_capabilities & PERF_CAPABILITIES_FW_WRITE != 0;
    let caps = PmuCaps {
        vendor: VENDOR_INTEL,
        version,
        features: CAPS_GLOBAL_INTEL
            | CAPS_SAMPLING
            | if full_width { CAPS_FULL_WIDTH } else { 0 }
            | of_model(cpuid),
        general,
        fixed,
        general_width,
        fixed_width,
    };
    let metrics = cpuid.perf_capabilities & PERF_CAPABILITIES_METRICS != 0;
    let registers = Registers {
        fixed: REGISTERS.fixed.filter(|_| fixed > 0),
        readable: [metrics.then_some(METRICS), None],
        record_enable: has_pebs(cpuid).then_some(IA32_PEBS_ENABLE),
        branches: records_as_nehalem(cpuid).then_some(BranchRegisters::NEHALEM),
        precise: PreciseRegisters::new(record_format(cpuid), IA32_PEBS_ENABLE)
            .filter(|_| has_pebs(cpuid)),
        ..REGISTERS
    };
    Ok((caps, registers))
}

/// Returns how many counters from the first one on are in the mask without a gap. A mask of 0
/// leaves none out.
const fn first_of(mask: u32) -> u32 {
    if mask == 0 { u32::MAX } else { mask.trailing_ones() }
}

/// Returns the number of counters below the one that the microcode uses unless transactions are
/// forced to abort ("Performance Monitoring Impact of Intel Transactional Synchronization Extension
/// Memory Ordering Issue", document 604224).
const fn free_of_tsx(cpuid: &Identity) -> u32 {
    let taken = cpuid.structured & STRUCTURED_TSX_FORCE_ABORT != 0
        && cpuid.tsx_force_abort & RTM_FORCE_ABORT == 0;
    if taken { 3 } else { u32::MAX }
}

/// Returns whether the CPU has PEBS (SDM volume 3, 20.3.1.1.1, and volume 4, IA32_MISC_ENABLE).
const fn has_pebs(cpuid: &Identity) -> bool {
    cpuid.features & FEATURES_DEBUG_STORE != 0 && cpuid.misc_enable & MISC_ENABLE_NO_PEBS == 0
}

/// Returns the format of the records of PEBS (SDM volume 3, IA32_PERF_CAPABILITIES).
pub(super) const fn record_format(cpuid: &Identity) -> u32 {
    (cpuid.perf_capabilities >> 8 & 0xf) as u32
}

/// Returns the format of the CPU's branch records.
pub(super) const fn branch_format(cpuid: &Identity) -> u32 {
    (cpuid.perf_capabilities & PERF_CAPABILITIES_BRANCHES) as u32
}

/// Returns whether the CPU records branches as Nehalem does.
///
/// Nehalem, Westmere, Sandy Bridge and Ivy Bridge record 16 branches in the same registers. Others
/// have other formats or depths (SDM volume 3, sections on last branch records of each generation).
const fn records_as_nehalem(cpuid: &Identity) -> bool {
    let known = matches!(
        cpuid.family_and_model(),
        (6, 0x1a | 0x1e | 0x1f | 0x2e | 0x25 | 0x2c | 0x2f | 0x2a | 0x2d | 0x3a | 0x3e)
    );
    known && branch_format(cpuid) as u64 == BRANCHES_WITH_FLAGS
}

/// Says which models have events that need a special rule.
const fn of_model(cpuid: &Identity) -> u32 {
    match cpuid.family_and_model() {
        (6, 0x0f | 0x16 | 0x17 | 0x1d) => CAPS_SHARED_MASKS,
        // Sandy Bridge, Ivy Bridge, Haswell.
        (6, 0x2a | 0x2d | 0x3a | 0x3e | 0x3c | 0x3f | 0x45 | 0x46) => CAPS_SIBLING_ERRATUM,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_abi::PhysSlot;

    const NEHALEM: Identity = Identity {
        vendor: VENDOR,
        signature: 0x106a3,
        perfmon: [0x0730_0403, 0x44, 0, 0x603],
        ..Identity::NONE
    };

    #[test]
    fn nehalem() {
        let (caps, registers) = NEHALEM.pmu().unwrap();
        assert_eq!((caps.version, caps.general, caps.fixed), (3, 4, 3));
        assert_eq!((caps.general_width.bits(), caps.fixed_width.bits()), (48, 48));
        assert_eq!(caps.slots(), 0xf | 7 << 16);
        let slots = [PhysSlot::general(2), PhysSlot::fixed(1)].map(Option::unwrap);
        assert_eq!(slots.map(|slot| registers.counter(slot)), [0xc3, 0x30a]);
        assert_eq!(slots.map(|slot| registers.evntsel(slot)), [Some(0x188), None]);
    }

    #[test]
    fn there_are_no_more_counters_than_a_page_has() {
        for (general, fixed) in [(4, 3), (8, 9), (9, 8), (255, 31)] {
            let cpuid =
                Identity { perfmon: [0x0730_0003 | general << 8, 0, 0, 0x600 | fixed], ..NEHALEM };
            let (caps, _) = cpuid.pmu().unwrap();
            let most = (general.min(MAX_GENERAL as u32), fixed.min(MAX_FIXED as u32));
            assert_eq!((caps.general, caps.fixed), most);
            let wire = shared_abi::WireCaps::from(&caps);
            assert_eq!(PmuCaps::from_wire(&wire), Some(caps), "the guest understands it");
        }
    }

    #[test]
    fn counters_that_a_mask_does_not_name_and_those_after_them_are_not_used() {
        let counters = |version: u32, ecx, perfmon_masks| {
            // Eight general counters and four fixed ones, if no mask says otherwise.
            let perfmon = [0x0730_0800 | version, 0, ecx, 0x604];
            let (caps, registers) =
                Identity { perfmon, perfmon_masks, ..NEHALEM }.pmu().map_err(|_| ())?;
            assert_eq!(registers.fixed.is_some(), caps.fixed > 0);
            Ok((caps.general, caps.fixed))
        };
        for (version, ecx, masks, expected) in [
            (5, 0, [0, 0], Ok((8, 4))),
            (5, 0xf, [0xff, 0xf], Ok((8, 4))),
            (5, 0x3, [0, 0], Ok((8, 2))),
            (5, 0xe, [0, 0], Ok((8, 0))),
            // Before version 5 the register is reserved.
            (4, 0x3, [0, 0], Ok((8, 4))),
            (6, 0xf, [0xf7, 0xf], Ok((3, 4))),
            (6, 0xf, [0xff, 0xb], Ok((8, 2))),
            (6, 0x7, [0x3f, 0x1], Ok((6, 1))),
            // The mask may have more counters than the number, and their registers may have other
            // addresses.
            (6, 0x77, [0x3ff, 0x77], Ok((8, 3))),
            (6, 0xf, [0xfe, 0xf], Err(())),
        ] {
            assert_eq!(counters(version, ecx, masks), expected, "{ecx:#x}, {masks:#x?}");
        }
    }

    #[test]
    fn core_2_has_40_bits() {
        let cpuid = Identity { perfmon: [0x0728_0202, 0, 0, 0x503], ..NEHALEM };
        let (caps, _) = cpuid.pmu().unwrap();
        assert_eq!((caps.general_width.bits(), caps.fixed_width.bits()), (40, 40));
    }

    #[test]
    fn features_follow_from_what_the_cpu_says() {
        let without_fixed = Identity { perfmon: [0x0730_0403, 0, 0, 0], ..NEHALEM }.pmu().unwrap();
        assert_eq!((without_fixed.0.fixed, without_fixed.1.fixed), (0, None));
        assert!(!without_fixed.0.can(CAPS_FULL_WIDTH));
        let wide = Identity { perf_capabilities: 1 << 13, ..NEHALEM }.pmu().unwrap();
        assert!(wide.0.can(CAPS_FULL_WIDTH | CAPS_GLOBAL_INTEL | CAPS_SAMPLING));
    }

    #[test]
    fn models_whose_events_reach_beyond_their_core_are_known() {
        let features = |signature| Identity { signature, ..NEHALEM }.pmu().unwrap().0.features;
        for (signature, beyond) in [
            (0x106a3, 0),
            (0x206a7, CAPS_SIBLING_ERRATUM),
            (0x306c3, CAPS_SIBLING_ERRATUM),
            (0x306d4, 0),
            (0x6f7, CAPS_SHARED_MASKS),
            (0x1067a, CAPS_SHARED_MASKS),
        ] {
            let asked = CAPS_SIBLING_ERRATUM | CAPS_SHARED_MASKS;
            assert_eq!(features(signature) & asked, beyond, "{signature:#x}");
        }
    }

    #[test]
    fn the_counter_that_the_tsx_workaround_takes_is_nobodys() {
        let general = |structured, tsx_force_abort| {
            let cpuid = Identity { structured, tsx_force_abort, ..NEHALEM };
            cpuid.pmu().unwrap().0.general
        };
        // CPUID leaf 7, EDX bit 13: there is a register TSX_FORCE_ABORT.
        assert_eq!((general(1 << 13, 0), general(1 << 13, 1), general(0, 0)), (3, 4, 4));
    }

    #[test]
    fn taking_over_clears_pebs_where_it_is() {
        let pebs = |features, misc_enable| {
            let cpuid = Identity { features, misc_enable, ..NEHALEM };
            cpuid.pmu().unwrap().1.record_enable
        };
        // CPUID leaf 1, EDX bit 21: a debug store; IA32_MISC_ENABLE bit 12: but no PEBS.
        assert_eq!(
            (pebs(1 << 21, 0), pebs(1 << 21, 1 << 12), pebs(0, 0)),
            (Some(0x3f1), None, None)
        );
    }

    #[test]
    fn branch_records_are_known_by_model_and_format() {
        let records = |signature, perf_capabilities| {
            let cpuid = Identity { signature, perf_capabilities, ..NEHALEM };
            cpuid.pmu().unwrap().1.branches.is_some()
        };
        for (signature, format, known) in [
            (0x106a3, 3, true),
            (0x306a9, 3, true),
            // Format 0 is what a CPU without the register seems to have.
            (0x106a3, 0, false),
            (0x106a3, 4, false),
            // Haswell, and Core 2, which has 4 pairs.
            (0x306c3, 3, false),
            (0x6f7, 3, false),
        ] {
            assert_eq!(records(signature, format), known, "{signature:#x}, {format}");
        }
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let with = |eax: u32, edx: u32| {
            Identity { perfmon: [eax, 0, 0, edx], ..NEHALEM }.pmu().map(|(caps, _)| caps)
        };
        assert_eq!(with(0, 0), Err(Refusal::Version(0)));
        assert_eq!(with(0x0730_0401, 0x603), Err(Refusal::Version(1)));
        assert_eq!(with(0x0730_0003, 0x603), Err(Refusal::NoCounters));
        assert_eq!(with(0x071f_0403, 0x603), Err(Refusal::Width(31)));
        assert_eq!(with(0x0730_0403, 0x823), Err(Refusal::Width(65)));
    }

    #[test]
    fn rdpmc_reads_metrics_where_they_are() {
        let stops = |perf_capabilities| {
            let (_, registers) = Identity { perf_capabilities, ..NEHALEM }.pmu().unwrap();
            let readable = registers.readable.into_iter().flatten();
            readable.flat_map(|these| these.stops().map(move |msr| (msr, these.is_shared)))
        };
        assert_eq!(stops(1 << 13).count(), 0);
        assert!(stops(1 << 15).eq([(0x329, false)]));
    }
}
