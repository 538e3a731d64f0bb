// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Access to the registers of x86.
#![expect(unsafe_code, reason = "MSRs and RDPMC")]

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};

use hv_driver::{ExpectedInterrupts, Identity, Pmu, Probe, RecordArea};
use shared_abi::read::Counters;

use crate::{perfctr_glue_load_at_switch, perfctr_glue_try_rdmsr, perfctr_glue_try_wrmsr};

/// The counters and the clock, which ring 0 may read at any moment.
///
/// RDPMC, RDTSC and RDMSR clear the high halves of RAX and RDX (SDM volume 2).
#[derive(Debug)]
pub(crate) struct Registers;

impl Counters for Registers {
    #[inline(always)]
    fn counter(&self, index: u32) -> u64 {
        let (low, high): (u64, u64);
        // SAFETY: RDPMC faults for a counter that does not exist, and changes nothing else. The
        // core passes indices of slots that CPUID has announced. When this CPU came up, the core
        // read and wrote each of these counters where C catches a fault.
        unsafe {
            asm!("rdpmc", in("ecx") index, out("rax") low, out("rdx") high,
                 options(nostack, preserves_flags));
        }
        high << 32 | low
    }

    #[inline(always)]
    fn clock(&self) -> u64 {
        let (low, high): (u64, u64);
        // SAFETY: ring 0 may always execute RDTSC, which writes only these two registers.
        unsafe {
            asm!("rdtsc", out("rax") low, out("rdx") high, options(nostack, preserves_flags));
        }
        high << 32 | low
    }
}

/// The PMU of a physical CPU. The core gets it only from an `OnCpu`, on the CPU that it belongs to.
#[derive(Debug)]
pub(crate) struct X86Pmu {
    pub(crate) expected: ExpectedInterrupts,
    /// The memory for precise records, if the host has any.
    pub(crate) area: Option<&'static RecordArea>,
}

impl Counters for X86Pmu {
    #[inline(always)]
    fn counter(&self, index: u32) -> u64 {
        Registers.counter(index)
    }

    #[inline(always)]
    fn clock(&self) -> u64 {
        Registers.clock()
    }
}

impl Pmu for X86Pmu {
    #[inline(always)]
    fn read_register(&self, msr: u32) -> u64 {
        let (low, high): (u64, u64);
        // SAFETY: RDMSR faults for a register that does not exist, and changes nothing. The core
        // reads registers of the PMU that CPUID has announced, and it tried them when this CPU came
        // up.
        unsafe {
            asm!("rdmsr", in("ecx") msr, out("rax") low, out("rdx") high,
                 options(nostack, preserves_flags));
        }
        high << 32 | low
    }

    #[inline(always)]
    fn write_register(&self, msr: u32, value: u64) {
        // SAFETY: the core writes registers of the PMU that it tried when this CPU came up, and in
        // an event select only bits that `Config::new` lets a guest set. PEBS makes the PMU write
        // to memory, which is that of this CPU's `RecordArea`: the core writes no other address to
        // its register, and the area itself says where it ends.
        unsafe {
            asm!("wrmsr", in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32,
                 options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn load_at_switch(&self, inside: u64, outside: u64) {
        // SAFETY: C keeps two numbers for the vCPU that is current here. The hardware loads them
        // into the register that enables counters, and their bits are those of the driver's
        // counters.
        unsafe { perfctr_glue_load_at_switch(inside, outside) }
    }

    fn expect_interrupts(&self, slots: u32, seen: bool) {
        self.expected.expect(slots, seen, self.clock());
    }

    #[inline(always)]
    fn record_area(&self) -> Option<&RecordArea> {
        self.area
    }
}

impl Probe for X86Pmu {
    fn try_read_register(&self, msr: u32) -> Option<u64> {
        try_rdmsr(msr)
    }

    fn try_write_register(&self, msr: u32, value: u64) -> bool {
        // SAFETY: C catches the fault of a register that does not exist. The core tries only
        // registers of the PMU, with values that let nothing count beyond user mode.
        unsafe { perfctr_glue_try_wrmsr(msr, value) }
    }
}

fn try_rdmsr(msr: u32) -> Option<u64> {
    let mut value = 0;
    // SAFETY: C catches the fault of a register that does not exist. It writes only to `value`,
    // which lives until C returns.
    unsafe { perfctr_glue_try_rdmsr(msr, &raw mut value) }.then_some(value)
}

/// Model-specific registers that say what there is (SDM volume 4, 2.1 and 2.17.2).
const IA32_MISC_ENABLE: u32 = 0x1a0;
const IA32_PERF_CAPABILITIES: u32 = 0x345;
const TSX_FORCE_ABORT: u32 = 0x10f;

/// Returns what the CPU that executes this says about itself.
pub(crate) fn cpuid() -> Identity {
    let (vendor, model) = (__cpuid(0), __cpuid(1));
    let extended = __cpuid(0x8000_0000).eax;
    let mut all = Identity {
        vendor: [vendor.ebx, vendor.edx, vendor.ecx],
        signature: model.eax,
        features: model.edx,
        misc_enable: register(IA32_MISC_ENABLE),
        perf_capabilities: register(IA32_PERF_CAPABILITIES),
        tsx_force_abort: register(TSX_FORCE_ABORT),
        ..Identity::NONE
    };
    if vendor.eax >= 7 {
        all.structured = __cpuid_count(7, 0).edx;
    }
    if vendor.eax >= 0xa {
        let leaf = __cpuid(0xa);
        all.perfmon = [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx];
    }
    if vendor.eax >= 0x1a {
        all.core_type = __cpuid(0x1a).eax;
    }
    // Sub-leaf 0 says which other sub-leaves there are.
    if vendor.eax >= 0x23 && __cpuid_count(0x23, 0).eax & 1 << 1 != 0 {
        let leaf = __cpuid_count(0x23, 1);
        all.perfmon_masks = [leaf.eax, leaf.ebx];
    }
    if extended >= 0x8000_0001 {
        all.extended = __cpuid(0x8000_0001).ecx;
    }
    if extended >= 0x8000_0022 {
        let leaf = __cpuid(0x8000_0022);
        all.perfmon_amd = [leaf.eax, leaf.ebx];
    }
    all
}

/// Reads a register, and returns 0 if there is no such register.
fn register(msr: u32) -> u64 {
    try_rdmsr(msr).unwrap_or(0)
}
