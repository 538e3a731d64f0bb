// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Determines perfctr's type of the CPU, and what follows from it.
//!
//! Programs choose event numbers by the type, and PAPI's tables end at Westmere and Family 10h. A
//! CPU that perfctr does not know is a generic one, for which no program has numbers: the numbers
//! of another CPU could silently count something other than their names say.
//!
//! By the environment variable `LIBPFM_FORCE_PMU` users can tell PAPI's libpfm to treat the CPU as
//! an older one; then this library does so as well.

use std::env;
use std::ffi::{CStr, c_char};

use shared_abi::caps::{CAPS_SAMPLING, VENDOR_AMD, VENDOR_INTEL};
use shared_abi::ioctl;
use zerocopy::FromZeros;

use crate::abi::{ABI_VERSION, FEATURE_PCINT, FEATURE_RDPMC, FEATURE_RDTSC, Info};

/// The types, as the constants `PERFCTR_X86_*`.
pub(crate) const GENERIC: u32 = 0;
pub(crate) const AMD_K7: u32 = 9;
pub(crate) const AMD_K8: u32 = 13;
pub(crate) const AMD_K8C: u32 = 15;
pub(crate) const INTEL_P4M3: u32 = 16;
pub(crate) const INTEL_CORE: u32 = 17;
pub(crate) const INTEL_CORE2: u32 = 18;
pub(crate) const AMD_FAM10H: u32 = 19;
pub(crate) const INTEL_ATOM: u32 = 20;
pub(crate) const INTEL_NHLM: u32 = 21;
pub(crate) const INTEL_WSTMR: u32 = 22;
pub(crate) const INTEL_SNB: u32 = 23;

/// The name of each type, by its number.
const NAMES: [&CStr; 24] = [
    c"Generic x86",
    c"Intel Pentium",
    c"Intel Pentium MMX",
    c"Intel P6",
    c"Intel Pentium II",
    c"Intel Pentium III",
    c"Cyrix MII",
    c"WinChip C6",
    c"WinChip 2",
    c"AMD K7",
    c"VIA C3",
    c"Intel Pentium 4",
    c"Intel Pentium 4 Model 2",
    c"AMD K8",
    c"Intel Pentium M",
    c"AMD K8 Revision C",
    c"Intel Pentium 4 Model 3",
    c"Intel Core",
    c"Intel Core 2",
    c"AMD Family 10h",
    c"Intel Atom",
    c"Intel Nehalem",
    c"Intel Westmere",
    c"Intel Sandy Bridge",
];

/// Returns the type of a CPU whose leaf 1 of CPUID has this EAX.
fn cpu_type(vendor: u32, signature: u32) -> u32 {
    let base_family = signature >> 8 & 0xf;
    let family = base_family + if base_family == 0xf { signature >> 20 & 0xff } else { 0 };
    let model = (signature >> 4 & 0xf) | (signature >> 12 & 0xf0);
    let stepping = signature & 0xf;
    match (vendor, family, model) {
        (VENDOR_INTEL, 6, 15 | 22 | 23 | 29) => INTEL_CORE2,
        (VENDOR_INTEL, 6, 28) => INTEL_ATOM,
        (VENDOR_INTEL, 6, 14) => INTEL_CORE,
        (VENDOR_INTEL, 6, 26 | 30 | 46) => INTEL_NHLM,
        (VENDOR_INTEL, 6, 37 | 44) => INTEL_WSTMR,
        (VENDOR_INTEL, 6, 42 | 45) => INTEL_SNB,
        (VENDOR_AMD, 6, _) => AMD_K7,
        (VENDOR_AMD, 15, _) if model > 5 || model >= 4 && stepping >= 8 => AMD_K8C,
        (VENDOR_AMD, 15, _) => AMD_K8,
        (VENDOR_AMD, 16 | 17, _) => AMD_FAM10H,
        _ => GENERIC,
    }
}

/// Returns the type that `LIBPFM_FORCE_PMU` asks for, given the numbers of libpfm 3's PMUs.
fn forced(vendor: u32, wish: &str) -> Option<u32> {
    // The value is a number, and for AMD's PMUs also the family, model and stepping to assume.
    let number = wish.split(',').next().and_then(|number| number.trim().parse().ok());
    match (vendor, number?) {
        (VENDOR_INTEL, 36) => Some(INTEL_CORE2),
        (VENDOR_INTEL, 40) => Some(INTEL_NHLM),
        (VENDOR_INTEL, 41) => Some(INTEL_WSTMR),
        (VENDOR_AMD, 16) => Some(AMD_FAM10H),
        _ => None,
    }
}

/// Converts the device's information to perfctr's.
pub(crate) fn info(from: &ioctl::Info) -> Info {
    let mut info = Info::new_zeroed();
    info.abi_version = ABI_VERSION;
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    info.driver_version[..version.len()].copy_from_slice(version);
    let wish = env::var("LIBPFM_FORCE_PMU").ok();
    info.cpu_type = wish
        .and_then(|wish| forced(from.caps.vendor, &wish))
        .unwrap_or_else(|| cpu_type(from.caps.vendor, from.cpu_signature));
    info.cpu_features = FEATURE_RDTSC;
    if from.caps.general != 0 {
        info.cpu_features |= FEATURE_RDPMC;
    }
    if from.caps.features & CAPS_SAMPLING != 0 {
        info.cpu_features |= FEATURE_PCINT;
    }
    info.cpu_khz = from.tsc_khz;
    info.tsc_to_cpu_mult = 1;
    info
}

/// Returns the number of general and fixed counters that this CPU says it has (SDM volume 3, 20.2.1
/// and 20.2.2).
fn architectural_counters() -> u32 {
    let leaf = std::arch::x86_64::__cpuid(0xa);
    (leaf.eax >> 8 & 0xff) + (leaf.edx & 0x1f)
}

/// Returns the number of counters of a type of CPU, or 0 for those that have no 64-bit mode.
pub(crate) fn nrctrs(cpu_type: u32) -> u32 {
    match cpu_type {
        AMD_K8 | AMD_K8C | AMD_FAM10H => 4,
        INTEL_CORE2 => 5,
        INTEL_ATOM => architectural_counters(),
        INTEL_NHLM | INTEL_WSTMR | INTEL_SNB => 7,
        INTEL_P4M3 => 18,
        _ => 0,
    }
}

/// Returns the name of a type of CPU.
pub(crate) fn name(cpu_type: u32) -> &'static CStr {
    NAMES.get(cpu_type as usize).copied().unwrap_or(c"?")
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_info_nrctrs(info: Option<&Info>) -> u32 {
    info.map_or(0, |info| nrctrs(info.cpu_type))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_info_cpu_name(info: Option<&Info>) -> *const c_char {
    info.map_or(c"?", |info| name(info.cpu_type)).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_their_type() {
        for (vendor, signature, expected) in [
            (VENDOR_INTEL, 0x106a3, INTEL_NHLM),
            (VENDOR_INTEL, 0x206c1, INTEL_WSTMR),
            (VENDOR_INTEL, 0x6f7, INTEL_CORE2),
            (VENDOR_INTEL, 0x106c2, INTEL_ATOM),
            (VENDOR_INTEL, 0x206a7, INTEL_SNB),
            // Ivy Bridge, Ice Lake, Zen: nobody has numbers for them.
            (VENDOR_INTEL, 0x306a9, GENERIC),
            (VENDOR_INTEL, 0x606a6, GENERIC),
            (VENDOR_AMD, 0x100f42, AMD_FAM10H),
            (VENDOR_AMD, 0xf51, AMD_K8),
            (VENDOR_AMD, 0xf5a, AMD_K8C),
            (VENDOR_AMD, 0x830f10, GENERIC),
            (0, 0x663, GENERIC),
        ] {
            assert_eq!(cpu_type(vendor, signature), expected, "{signature:#x}");
        }
    }

    #[test]
    fn a_type_can_be_forced_within_its_vendor() {
        assert_eq!(forced(VENDOR_INTEL, "40"), Some(INTEL_NHLM));
        assert_eq!(forced(VENDOR_INTEL, "41"), Some(INTEL_WSTMR));
        assert_eq!(forced(VENDOR_AMD, "16,16,2,3"), Some(AMD_FAM10H));
        for (vendor, wish) in [(VENDOR_AMD, "40"), (VENDOR_INTEL, "16"), (VENDOR_INTEL, "x")] {
            assert_eq!(forced(vendor, wish), None, "{wish}");
        }
    }

    #[test]
    fn a_program_is_told_what_the_device_says() {
        let mut device =
            ioctl::Info { cpu_signature: 0x106a3, tsc_khz: 2_400_017, ..Default::default() };
        device.caps.vendor = VENDOR_INTEL;
        let features = |device: &ioctl::Info| info(device).cpu_features;
        assert_eq!(features(&device), FEATURE_RDTSC, "there are no counters");
        device.caps.general = 3;
        assert_eq!(features(&device), FEATURE_RDTSC | FEATURE_RDPMC, "they do not interrupt");
        device.caps.features = !CAPS_SAMPLING;
        assert_eq!(features(&device), FEATURE_RDTSC | FEATURE_RDPMC, "nor do these");
        device.caps.features = CAPS_SAMPLING;
        let facts = info(&device);
        assert_eq!(facts.cpu_features, FEATURE_RDTSC | FEATURE_RDPMC | FEATURE_PCINT);
        assert_eq!((facts.cpu_khz, facts.tsc_to_cpu_mult), (2_400_017, 1));
        assert_eq!((facts.cpu_type, facts.abi_version), (INTEL_NHLM, ABI_VERSION));
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        assert!(facts.driver_version.starts_with(version));
    }

    #[test]
    fn unknown_types_have_no_counters_and_a_name() {
        assert_eq!((nrctrs(GENERIC), nrctrs(INTEL_NHLM), nrctrs(1_000)), (0, 7, 0));
        assert_eq!((name(21), name(1_000)), (c"Intel Nehalem", c"?"));
    }
}
