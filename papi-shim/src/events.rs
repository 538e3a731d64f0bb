// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Describes events.
//!
//! There are only events that mean the same on every CPU of a kind: Intel's architectural ones (SDM
//! volume 3, table 20-1) and those that AMD has kept since K7 (BKDG of Family 10h, 3.14).

use std::ffi::{CStr, c_char};
use std::ptr;

use crate::cpu;

/// `struct perfctr_event`.
#[derive(Debug)]
#[repr(C)]
pub struct Event {
    evntsel: u16,
    counters_set: u16,
    unit_mask: *const UnitMask,
    name: *const c_char,
    description: *const c_char,
}

impl Event {
    /// Returns the event number, with the unit mask in bits 15:8.
    fn code(&self) -> u16 {
        // SAFETY: the tables' pointers lead to constants.
        self.evntsel | unsafe { &*self.unit_mask }.default_value << 8
    }

    fn strings(&self) -> (&CStr, &CStr) {
        // SAFETY: `events!` makes both pointers of C strings.
        unsafe { (CStr::from_ptr(self.name), CStr::from_ptr(self.description)) }
    }
}

/// `struct perfctr_unit_mask` with one value.
#[derive(Debug)]
#[repr(C)]
pub struct UnitMask {
    default_value: u16,
    /// `enum perfctr_unit_mask_type`, a byte wide.
    kind: u8,
    nvalues: u8,
    values: [UnitMaskValue; 1],
}

/// `struct perfctr_unit_mask_value`.
#[derive(Debug)]
#[repr(C)]
pub struct UnitMaskValue {
    value: u32,
    description: *const c_char,
}

/// `struct perfctr_event_set`.
#[derive(Debug)]
#[repr(C)]
pub struct EventSet {
    cpu_type: u32,
    event_prefix: *const c_char,
    include: *const EventSet,
    nevents: u32,
    events: *const Event,
}

// SAFETY: all of these are constants whose pointers lead to constants.
unsafe impl Sync for Event {}
// SAFETY: a unit mask is a constant, and its description a string literal.
unsafe impl Sync for UnitMask {}
// SAFETY: a set is a constant, whose prefix is a literal and whose events are a static.
unsafe impl Sync for EventSet {}

const _: () = {
    assert!(size_of::<Event>() == 32 && size_of::<EventSet>() == 40);
    assert!(std::mem::offset_of!(Event, unit_mask) == 8);
    assert!(size_of::<UnitMask>() == 24 && size_of::<UnitMaskValue>() == 16);
    assert!(std::mem::offset_of!(UnitMask, nvalues) == 3);
    assert!(std::mem::offset_of!(UnitMask, values) == 8);
    assert!(std::mem::offset_of!(EventSet, include) == 16);
};

/// Makes a list of events, each with its only unit mask.
macro_rules! events {
    ($counters:literal;
     $($name:ident $evntsel:literal $unit_mask:literal $description:literal,)+) => {
        &[$(Event {
            evntsel: $evntsel,
            counters_set: $counters,
            unit_mask: const {
                &UnitMask {
                    default_value: $unit_mask,
                    kind: 0,
                    nvalues: 1,
                    values: [UnitMaskValue { value: $unit_mask, description: c"".as_ptr() }],
                }
            },
            name: name(concat!(stringify!($name), "\0")),
            description: name(concat!($description, "\0")),
        }),+]
    };
}

/// Returns a string for C, which has to end with a NUL byte.
const fn name(text: &'static str) -> *const c_char {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text.as_ptr(),
        Err(_) => panic!("no NUL byte at the end"),
    }
}

static ARCHITECTURAL: &[Event] = events! {
    0b1111;
    UNHALTED_CORE_CYCLES 0x3c 0x00 "Core clock cycles while not halted",
    UNHALTED_REFERENCE_CYCLES 0x3c 0x01 "Reference clock cycles while not halted",
    INSTRUCTIONS_RETIRED 0xc0 0x00 "Instructions that have retired",
    LLC_REFERENCES 0x2e 0x4f "References to the last level cache",
    LLC_MISSES 0x2e 0x41 "Misses of the last level cache",
    BRANCHES_RETIRED 0xc4 0x00 "Branch instructions that have retired",
    BRANCH_MISSES_RETIRED 0xc5 0x00 "Mispredicted branch instructions that have retired",
};

static AMD: &[Event] = events! {
    0b1111;
    DATA_CACHE_ACCESSES 0x40 0x00 "Accesses to the data cache",
    DATA_CACHE_MISSES 0x41 0x00 "Misses of the data cache",
    CPU_CLK_UNHALTED 0x76 0x00 "Clock cycles while not halted",
    RETIRED_INSTRUCTIONS 0xc0 0x00 "Instructions that have retired",
    RETIRED_UOPS 0xc1 0x00 "Micro-operations that have retired",
    RETIRED_BRANCHES 0xc2 0x00 "Branch instructions that have retired",
    RETIRED_MISPREDICTED_BRANCHES 0xc3 0x00 "Mispredicted branches that have retired",
    RETIRED_TAKEN_BRANCHES 0xc4 0x00 "Taken branches that have retired",
};

const fn set(cpu_type: u32, prefix: &'static CStr, events: &'static [Event]) -> EventSet {
    EventSet {
        cpu_type,
        event_prefix: prefix.as_ptr(),
        include: ptr::null(),
        nevents: events.len() as u32,
        events: events.as_ptr(),
    }
}

/// Returns a line for each event of a type of CPU.
pub(crate) fn text(cpu_type: u32) -> String {
    let Some(set) = SETS.iter().find(|set| set.cpu_type == cpu_type) else {
        return format!(
            "no events are known by name on a {}\n",
            cpu::name(cpu_type).to_string_lossy()
        );
    };
    // SAFETY: a set's pointers lead to constants.
    let (prefix, events) = unsafe {
        let events = std::slice::from_raw_parts(set.events, set.nevents as usize);
        (CStr::from_ptr(set.event_prefix), events)
    };
    let line = |event: &Event| {
        let (name, description) = event.strings();
        let name = format!("{}{}", prefix.to_string_lossy(), name.to_string_lossy());
        format!("{:#06x} {name:<32} {}\n", event.code(), description.to_string_lossy())
    };
    events.iter().map(line).collect()
}

static SETS: [EventSet; 7] = [
    set(cpu::AMD_K8, c"K8_", AMD),
    set(cpu::AMD_K8C, c"K8_", AMD),
    set(cpu::INTEL_CORE2, c"ARCH_", ARCHITECTURAL),
    set(cpu::AMD_FAM10H, c"K8_", AMD),
    set(cpu::INTEL_NHLM, c"ARCH_", ARCHITECTURAL),
    set(cpu::INTEL_WSTMR, c"ARCH_", ARCHITECTURAL),
    set(cpu::INTEL_SNB, c"ARCH_", ARCHITECTURAL),
];

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_cpu_event_set(cpu_type: u32) -> *const EventSet {
    SETS.iter().find(|set| set.cpu_type == cpu_type).map_or(ptr::null(), ptr::from_ref)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines that `include/perfctr_event_codes.h` must have.
    fn codes(prefix: &str, events: &[Event]) -> Vec<String> {
        let line = |event: &Event| {
            let (name, _) = event.strings();
            format!("#define {prefix}{} {:#x}", name.to_str().unwrap(), event.code())
        };
        events.iter().map(line).collect()
    }

    #[test]
    fn the_header_has_every_code() {
        let header = include_str!("../include/perfctr_event_codes.h");
        let listed: Vec<&str> = header.lines().filter(|line| line.contains(" 0x")).collect();
        let mut expected = codes("ARCH_", ARCHITECTURAL);
        expected.extend(codes("K8_", AMD));
        assert_eq!(listed, expected);
    }

    #[test]
    fn each_type_has_the_events_of_its_vendor() {
        for kind in [cpu::AMD_K8, cpu::AMD_K8C, cpu::AMD_FAM10H] {
            assert!(text(kind).contains("0x0076 K8_CPU_CLK_UNHALTED "), "type {kind}");
            assert!(!text(kind).contains("ARCH_"), "type {kind}");
        }
        for kind in [cpu::INTEL_CORE2, cpu::INTEL_NHLM, cpu::INTEL_WSTMR, cpu::INTEL_SNB] {
            assert!(text(kind).contains("0x013c ARCH_UNHALTED_REFERENCE_CYCLES "), "type {kind}");
            assert!(!text(kind).contains("K8_"), "type {kind}");
        }
    }

    #[test]
    fn only_described_types_have_a_set() {
        assert!(perfctr_cpu_event_set(cpu::GENERIC).is_null());
        assert_eq!(text(cpu::GENERIC), "no events are known by name on a Generic x86\n");
        assert!(text(cpu::INTEL_NHLM).contains("0x4f2e ARCH_LLC_REFERENCES "));
        // SAFETY: a set is a constant.
        let set = unsafe { perfctr_cpu_event_set(cpu::INTEL_NHLM).as_ref() }.unwrap();
        assert_eq!((set.cpu_type, set.nevents), (cpu::INTEL_NHLM, 7));
    }
}
