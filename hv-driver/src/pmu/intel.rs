// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Intel's architectural performance monitoring.  Registers: SDM volume 4, table 2-2.

use shared_abi::PmuCaps;
use shared_abi::caps::{CAPS_FULL_WIDTH, CAPS_GLOBAL_INTEL, CAPS_SAMPLING, VENDOR_INTEL};
use shared_abi::limits::{MAX_FIXED, MAX_GENERAL};

use super::{Bank, Cpuid, Fixed, Global, Refusal, Registers, vendor, width};

pub(super) const VENDOR: [u32; 3] = vendor(b"GenuineIntel");

/// IA32_PERFEVTSEL0 and IA32_PMC0; IA32_FIXED_CTR0 and IA32_FIXED_CTR_CTRL; IA32_PERF_GLOBAL_CTRL,
/// _STATUS and _OVF_CTRL.
const REGISTERS: Registers = Registers {
    evntsel: Bank { first: 0x186, stride: 1 },
    counters: Bank { first: 0x0c1, stride: 1 },
    fixed: Some(Fixed { counters: Bank { first: 0x309, stride: 1 }, ctrl: 0x38d }),
    global: Some(Global { ctrl: 0x38f, status: 0x38e, acknowledge: 0x390 }),
    pebs_enable: None,
};

/// IA32_PERF_CAPABILITIES: IA32_A_PMCx take full-width writes (SDM volume 3, 20.2.8).
const PERF_CAPABILITIES_FW_WRITE: u64 = 1 << 13;

/// SDM volume 2, CPUID leaf 0AH, and volume 3, 20.2.
pub(super) fn pmu(cpuid: &Cpuid) -> Result<(PmuCaps, Registers), Refusal> {
    let [eax, _, _, edx] = cpuid.perfmon;
    let version = eax & 0xff;
    if version < 2 {
        return Err(Refusal::Version(version));
    }
    let general = ((eax >> 8) & 0xff).min(MAX_GENERAL as u32);
    if general == 0 {
        return Err(Refusal::NoCounters);
    }
    let general_width = width((eax >> 16) & 0xff)?;
    let fixed = (edx & 0x1f).min(MAX_FIXED as u32);
    let fixed_width = if fixed > 0 { width((edx >> 5) & 0xff)? } else { general_width };
    let full_width = cpuid.perf_capabilities & PERF_CAPABILITIES_FW_WRITE != 0;
    let caps = PmuCaps {
        vendor: VENDOR_INTEL,
        version,
        features: CAPS_GLOBAL_INTEL | CAPS_SAMPLING | if full_width { CAPS_FULL_WIDTH } else { 0 },
        general,
        fixed,
        general_width,
        fixed_width,
    };
    Ok((caps, Registers { fixed: REGISTERS.fixed.filter(|_| fixed > 0), ..REGISTERS }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_abi::PhysSlot;

    const NEHALEM: Cpuid = Cpuid {
        vendor: VENDOR,
        signature: 0x106a3,
        perfmon: [0x0730_0403, 0x44, 0, 0x603],
        features: 0,
        structured: 0,
        extended: 0,
        reserved: 0,
        misc_enable: 0,
        perf_capabilities: 0,
        tsx_force_abort: 0,
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
    fn core_2_has_40_bits() {
        let cpuid = Cpuid { perfmon: [0x0728_0202, 0, 0, 0x503], ..NEHALEM };
        let (caps, _) = cpuid.pmu().unwrap();
        assert_eq!((caps.general_width.bits(), caps.fixed_width.bits()), (40, 40));
    }

    #[test]
    fn features_follow_from_what_the_cpu_says() {
        let without_fixed = Cpuid { perfmon: [0x0730_0403, 0, 0, 0], ..NEHALEM }.pmu().unwrap();
        assert_eq!((without_fixed.0.fixed, without_fixed.1.fixed), (0, None));
        assert!(!without_fixed.0.can(CAPS_FULL_WIDTH));
        let wide = Cpuid { perf_capabilities: 1 << 13, ..NEHALEM }.pmu().unwrap();
        assert!(wide.0.can(CAPS_FULL_WIDTH | CAPS_GLOBAL_INTEL | CAPS_SAMPLING));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let with = |eax: u32, edx: u32| {
            Cpuid { perfmon: [eax, 0, 0, edx], ..NEHALEM }.pmu().map(|(caps, _)| caps)
        };
        assert_eq!(with(0, 0), Err(Refusal::Version(0)));
        assert_eq!(with(0x0730_0401, 0x603), Err(Refusal::Version(1)));
        assert_eq!(with(0x0730_0003, 0x603), Err(Refusal::NoCounters));
        assert_eq!(with(0x071f_0403, 0x603), Err(Refusal::Width(31)));
        assert_eq!(with(0x0730_0403, 0x823), Err(Refusal::Width(65)));
    }
}
