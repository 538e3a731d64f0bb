// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Prints lines of a name, tabs, and a value.

use std::ffi::CString;
use std::fmt::Write;

use shared_abi::arch::EVNTSEL_INT;
use shared_abi::limits::MAX_COUNTERS;

use crate::abi::{
    CpuControl, CpuMask, CpusInfo, FEATURE_PCINT, FEATURE_RDPMC, FEATURE_RDTSC, Info,
};
use crate::cpu;

/// The column of the values. Unit: characters.
const COLUMN: usize = 24;
const TAB: usize = 8;

/// Adds one line.
fn line(text: &mut String, name: &str, value: &str) {
    let tabs = COLUMN.saturating_sub(name.len()).div_ceil(TAB).max(1);
    // Writing to a string does not fail.
    let _ = writeln!(text, "{name}{}{value}", "\t".repeat(tabs));
}

/// Writes through the C library, whose buffer may hold what the program has written before.
fn print(text: &str) {
    if let Ok(text) = CString::new(text) {
        // SAFETY: both are strings, and the format takes one.
        unsafe { libc::printf(c"%s".as_ptr(), text.as_ptr()) };
    }
}

pub(crate) fn info_text(info: &Info) -> String {
    let version: Vec<u8> = info.driver_version.iter().copied().take_while(|c| *c != 0).collect();
    let features: Vec<&str> =
        [(FEATURE_RDPMC, "rdpmc"), (FEATURE_RDTSC, "rdtsc"), (FEATURE_PCINT, "pcint")]
            .into_iter()
            .filter(|(bit, _)| info.cpu_features & bit != 0)
            .map(|(_, name)| name)
            .collect();
    let name = cpu::name(info.cpu_type).to_string_lossy();
    let mut text = String::new();
    line(&mut text, "abi_version", &format!("{:#010X}", info.abi_version).replace('X', "x"));
    line(&mut text, "driver_version", &String::from_utf8_lossy(&version));
    line(&mut text, "cpu_type", &format!("{} ({name})", info.cpu_type));
    let features = features.join(",");
    line(&mut text, "cpu_features", &format!("{:#x} ({features})", info.cpu_features));
    line(&mut text, "cpu_khz", &info.cpu_khz.to_string());
    line(&mut text, "tsc_to_cpu_mult", &info.tsc_to_cpu_mult.to_string());
    line(&mut text, "cpu_nrctrs", &cpu::nrctrs(info.cpu_type).to_string());
    text
}

fn mask_text(words: &[u32]) -> String {
    let mut cpus = Vec::new();
    for (word, bits) in (0..).zip(words) {
        cpus.extend((0..32).filter(|bit| bits & 1 << bit != 0).map(|bit| word * 32 + bit));
    }
    let list: Vec<String> = cpus.iter().map(u32::to_string).collect();
    format!("[{}], total: {}", list.join(","), list.len())
}

fn control_text(control: &CpuControl) -> String {
    let mut text = String::new();
    line(&mut text, "tsc_on", &control.tsc_on.to_string());
    line(&mut text, "nractrs", &control.nractrs.to_string());
    if control.nrictrs != 0 {
        line(&mut text, "nrictrs", &control.nrictrs.to_string());
    }
    let used = control.nractrs.saturating_add(control.nrictrs) as usize;
    for n in 0..used.min(MAX_COUNTERS) {
        let pmc = control.pmc_map[n];
        let pmc = if pmc < MAX_COUNTERS as u32 { pmc.to_string() } else { format!("0x{pmc:08X}") };
        line(&mut text, &format!("pmc_map[{n}]"), &pmc);
        line(&mut text, &format!("evntsel[{n}]"), &format!("0x{:08X}", control.evntsel[n]));
        if control.evntsel_high[n] != 0 {
            let high = format!("0x{:08X}", control.evntsel_high[n]);
            line(&mut text, &format!("evntsel_high[{n}]"), &high);
        }
        if u64::from(control.evntsel[n]) & EVNTSEL_INT != 0 {
            line(&mut text, &format!("ireset[{n}]"), &control.ireset[n].to_string());
        }
    }
    for (n, bits) in control.offcore_rsp.iter().enumerate().filter(|(_, bits)| **bits != 0) {
        line(&mut text, &format!("offcore_rsp[{n}]"), &format!("0x{bits:08X}"));
    }
    text
}

/// Returns the words of a mask, or none if there is no mask.
///
/// # Safety
///
/// `mask` is null or valid.
unsafe fn words<'a>(mask: *const CpuMask) -> &'a [u32] {
    if mask.is_null() {
        return &[];
    }
    // SAFETY: `nrwords` words follow the structure's first one.
    unsafe {
        let first = (&raw const (*mask).mask).cast();
        std::slice::from_raw_parts(first, (*mask).nrwords as usize)
    }
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_info_print(info: Option<&Info>) {
    if let Some(info) = info {
        print(&info_text(info));
    }
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_cpus_info_print(info: Option<&CpusInfo>) {
    let Some(info) = info else { return };
    // SAFETY: both masks are null, or part of the block that `perfctr_cpus_info` has made.
    let (cpus, forbidden) = unsafe { (words(info.cpus), words(info.cpus_forbidden)) };
    let mut text = String::new();
    line(&mut text, "cpus", &mask_text(cpus));
    line(&mut text, "cpus_forbidden", &mask_text(forbidden));
    print(&text);
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_cpu_control_print(control: Option<&CpuControl>) {
    if let Some(control) = control {
        print(&control_text(control));
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn values_stand_in_one_column() {
        let mut control = CpuControl::new_zeroed();
        (control.tsc_on, control.nractrs) = (1, 1);
        control.evntsel[0] = 0x0041_00c0;
        control.pmc_map[0] = 0x4000_0000;
        assert_eq!(
            control_text(&control),
            "tsc_on\t\t\t1\nnractrs\t\t\t1\npmc_map[0]\t\t0x40000000\nevntsel[0]\t\t0x004100C0\n"
        );
    }

    #[test]
    fn counters_that_interrupt_are_printed_behind_the_others() {
        let mut control = CpuControl::new_zeroed();
        (control.nractrs, control.nrictrs) = (1, 1);
        (control.evntsel[0], control.pmc_map[0]) = (0x0041_00c0, 2);
        (control.evntsel[1], control.pmc_map[1]) = (0x0051_00c4, 1);
        (control.evntsel_high[1], control.ireset[1]) = (0x3, -1_009);
        let expected = [
            ("tsc_on", "0"),
            ("nractrs", "1"),
            ("nrictrs", "1"),
            ("pmc_map[0]", "2"),
            ("evntsel[0]", "0x004100C0"),
            ("pmc_map[1]", "1"),
            ("evntsel[1]", "0x005100C4"),
            ("evntsel_high[1]", "0x00000003"),
            ("ireset[1]", "-1009"),
        ];
        let text = control_text(&control);
        let found: Vec<_> = text.lines().map(|line| line.split_once('\t').unwrap()).collect();
        let found: Vec<_> = found.iter().map(|(name, value)| (*name, value.trim())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn words_for_responses_have_the_numbers_of_their_registers() {
        for (words, expected) in [
            ([0, 0], vec![]),
            ([1, 0], vec!["offcore_rsp[0]\t\t0x00000001"]),
            ([0, 2], vec!["offcore_rsp[1]\t\t0x00000002"]),
            ([3, 4], vec!["offcore_rsp[0]\t\t0x00000003", "offcore_rsp[1]\t\t0x00000004"]),
        ] {
            let mut control = CpuControl::new_zeroed();
            control.offcore_rsp = words;
            let text = control_text(&control);
            let found = text.lines().filter(|line| line.starts_with("offcore"));
            assert_eq!(found.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn a_name_that_fills_its_column_does_not_touch_its_value() {
        for (length, tabs) in [(7, 3), (8, 2), (23, 1), (24, 1), (40, 1)] {
            let (mut text, name) = (String::new(), "n".repeat(length));
            line(&mut text, &name, "1");
            assert_eq!(text, format!("{name}{}1\n", "\t".repeat(tabs)), "{length}");
        }
    }

    #[test]
    fn features_and_masks_are_listed() {
        let mut info = Info::new_zeroed();
        (info.abi_version, info.cpu_type, info.cpu_features) = (0x0502_0501, 21, 7);
        let text = info_text(&info);
        assert!(text.starts_with("abi_version\t\t0x05020501\n"), "{text}");
        assert!(text.contains("cpu_type\t\t21 (Intel Nehalem)\n"), "{text}");
        assert!(text.contains("cpu_features\t\t0x7 (rdpmc,rdtsc,pcint)\n"), "{text}");
        assert_eq!(mask_text(&[0b101, 1]), "[0,2,32], total: 3");
    }
}
