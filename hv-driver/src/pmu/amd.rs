// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! AMD's counters of the K7 kind.  APM volume 2, 13.2.1 and appendix A.

use shared_abi::PmuCaps;
use shared_abi::caps::{CAPS_EVENT_12BIT, CAPS_GUEST_ONLY, VENDOR_AMD};

use super::{Bank, Cpuid, Refusal, Registers, vendor, width};

pub(super) const VENDOR: [u32; 3] = vendor(b"AuthenticAMD");

/// PerfEvtSel0 and PerfCtr0.
const REGISTERS: Registers = Registers {
    evntsel: Bank { first: 0xc001_0000, stride: 1 },
    counters: Bank { first: 0xc001_0004, stride: 1 },
    fixed: None,
    global: None,
    pebs_enable: None,
};

/// CPUID leaf 0x80000001, ECX: SVM, and with it event selects for guests only.
const EXTENDED_SVM: u32 = 1 << 2;

/// APM volume 2, 13.2.1: four counters of 48 bits since family 10h.
pub(super) fn pmu(cpuid: &Cpuid) -> Result<(PmuCaps, Registers), Refusal> {
    let (family, _) = cpuid.family_and_model();
    if family < 0x10 {
        return Err(Refusal::Family(family));
    }
    let width = width(48)?;
    let guest_only = cpuid.extended & EXTENDED_SVM != 0;
    let caps = PmuCaps {
        vendor: VENDOR_AMD,
        version: 0,
        features: CAPS_EVENT_12BIT | if guest_only { CAPS_GUEST_ONLY } else { 0 },
        general: 4,
        fixed: 0,
        general_width: width,
        fixed_width: width,
    };
    Ok((caps, REGISTERS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_abi::PhysSlot;

    #[test]
    fn family_10h() {
        let cpuid = Cpuid { vendor: VENDOR, signature: 0x0010_0f42, ..Cpuid::default() };
        let (caps, registers) = cpuid.pmu().unwrap();
        assert_eq!((caps.vendor, caps.general, caps.fixed), (VENDOR_AMD, 4, 0));
        assert!(!caps.can(CAPS_GUEST_ONLY));
        let slot = PhysSlot::general(3).unwrap();
        assert_eq!(registers.counter(slot), 0xc001_0007);
        assert_eq!(registers.evntsel(slot), Some(0xc001_0003));
        let svm = Cpuid { extended: 1 << 2, ..cpuid };
        assert!(svm.pmu().unwrap().0.can(CAPS_GUEST_ONLY));
    }

    #[test]
    fn older_families_are_refused_by_name() {
        let k8 = Cpuid { vendor: VENDOR, signature: 0xf4a, ..Cpuid::default() };
        assert_eq!(k8.pmu(), Err(Refusal::Family(0xf)));
    }
}
