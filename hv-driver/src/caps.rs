// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Which counters this CPU has, from CPUID.

use shared_abi::caps::{
    CAPS_EVENT_12BIT, CAPS_GLOBAL_INTEL, CAPS_SAMPLING, VENDOR_AMD, VENDOR_INTEL,
};
use shared_abi::limits::{MAX_FIXED, MAX_GENERAL};
use shared_abi::{CounterWidth, PmuCaps};

/// What the glue reads with CPUID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Cpuid {
    /// Leaf 0: EBX, EDX, ECX, which spell the vendor.
    pub vendor: [u32; 3],
    /// Leaf 1, EAX: family, model and stepping.
    pub signature: u32,
    /// Leaf 0xA: EAX, EBX, ECX, EDX; zeroes if there is no such leaf.
    pub perfmon: [u32; 4],
}

/// Why the PMU cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Neither Intel nor AMD.
    Vendor([u32; 3]),
    /// Architectural performance monitoring older than 2, which has no global control.
    Version(u32),
    /// No general counters.
    NoCounters,
    /// A counter width outside 32 to 64 bits.
    Width(u32),
    /// An AMD family without counters that this driver knows.
    Family(u32),
}

impl Refusal {
    /// What was expected, and what was found; the console shows both.
    pub const fn describe(&self) -> (&'static str, u32) {
        match *self {
            Self::Vendor([first, ..]) => ("CPU vendor Intel or AMD", first),
            Self::Version(version) => ("architectural performance monitoring 2 or later", version),
            Self::NoCounters => ("at least 1 general counter left for guests", 0),
            Self::Width(bits) => ("counters of 32 to 64 bits", bits),
            Self::Family(family) => ("AMD family 0x10 or later", family),
        }
    }
}

const INTEL: [u32; 3] =
    [u32::from_le_bytes(*b"Genu"), u32::from_le_bytes(*b"ineI"), u32::from_le_bytes(*b"ntel")];
const AMD: [u32; 3] =
    [u32::from_le_bytes(*b"Auth"), u32::from_le_bytes(*b"enti"), u32::from_le_bytes(*b"cAMD")];

impl Cpuid {
    /// The counters, or why there are none.
    pub fn pmu(&self) -> Result<PmuCaps, Refusal> {
        match self.vendor {
            INTEL => self.intel(),
            AMD => self.amd(),
            other => Err(Refusal::Vendor(other)),
        }
    }

    /// SDM volume 2, CPUID leaf 0AH, and volume 3, 20.2.
    fn intel(&self) -> Result<PmuCaps, Refusal> {
        let [eax, _, _, edx] = self.perfmon;
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
        Ok(PmuCaps {
            vendor: VENDOR_INTEL,
            version,
            features: CAPS_GLOBAL_INTEL | CAPS_SAMPLING,
            general,
            fixed,
            general_width,
            fixed_width,
        })
    }

    /// APM volume 2, 13.2.1: four counters of 48 bits since family 10h.
    fn amd(&self) -> Result<PmuCaps, Refusal> {
        let base = (self.signature >> 8) & 0xf;
        let family = if base == 0xf { base + ((self.signature >> 20) & 0xff) } else { base };
        if family < 0x10 {
            return Err(Refusal::Family(family));
        }
        let width = width(48)?;
        Ok(PmuCaps {
            vendor: VENDOR_AMD,
            version: 0,
            features: CAPS_EVENT_12BIT,
            general: 4,
            fixed: 0,
            general_width: width,
            fixed_width: width,
        })
    }
}

fn width(bits: u32) -> Result<CounterWidth, Refusal> {
    CounterWidth::new(bits).ok_or(Refusal::Width(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEHALEM: Cpuid =
        Cpuid { vendor: INTEL, signature: 0x106a3, perfmon: [0x0730_0403, 0x44, 0, 0x603] };

    #[test]
    fn nehalem() {
        let caps = NEHALEM.pmu().unwrap();
        assert_eq!((caps.version, caps.general, caps.fixed), (3, 4, 3));
        assert_eq!((caps.general_width.bits(), caps.fixed_width.bits()), (48, 48));
        assert_eq!(caps.slots(), 0xf | 7 << 16);
        assert_eq!(crate::msr::global_enable(caps.slots()), 0x7_0000_000f);
    }

    #[test]
    fn core_2_has_40_bits() {
        let cpuid = Cpuid { perfmon: [0x0728_0202, 0, 0, 0x503], ..NEHALEM };
        assert_eq!(cpuid.pmu().unwrap().general_width.bits(), 40);
        assert_eq!(cpuid.pmu().unwrap().fixed_width.bits(), 40);
    }

    #[test]
    fn amd_family_10h() {
        let cpuid = Cpuid { vendor: AMD, signature: 0x0010_0f42, perfmon: [0; 4] };
        let caps = cpuid.pmu().unwrap();
        assert_eq!((caps.vendor, caps.general, caps.fixed), (VENDOR_AMD, 4, 0));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let with = |eax: u32, edx: u32| Cpuid { perfmon: [eax, 0, 0, edx], ..NEHALEM }.pmu();
        assert_eq!(with(0, 0), Err(Refusal::Version(0)));
        assert_eq!(with(0x0730_0401, 0x603), Err(Refusal::Version(1)));
        assert_eq!(with(0x0730_0003, 0x603), Err(Refusal::NoCounters));
        assert_eq!(with(0x071f_0403, 0x603), Err(Refusal::Width(31)));
        assert_eq!(with(0x0730_0403, 0x823), Err(Refusal::Width(65)));
        assert_eq!(Cpuid { vendor: [1, 2, 3], ..NEHALEM }.pmu(), Err(Refusal::Vendor([1, 2, 3])));
        let k8 = Cpuid { vendor: AMD, signature: 0xf4a, perfmon: [0; 4] };
        assert_eq!(k8.pmu(), Err(Refusal::Family(0xf)));
    }
}
