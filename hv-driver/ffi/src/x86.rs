// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The registers themselves.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count};

use hv_driver::{Identity, Pmu, Probe};
use shared_abi::read::Counters;

use crate::{perfctr_glue_load_at_switch, perfctr_glue_try_rdmsr, perfctr_glue_try_wrmsr};

/// The PMU of the CPU that executes this, in ring 0.
///
/// RDPMC, RDTSC and RDMSR clear the high halves of RAX and RDX (SDM volume 2).
#[derive(Debug)]
pub struct X86Pmu;

impl Counters for X86Pmu {
    #[inline(always)]
    fn counter(&self, index: u32) -> u64 {
        let (low, high): (u64, u64);
        // SAFETY: ring 0 may read every counter that CPUID announced; the core passes no other.
        unsafe {
            asm!("rdpmc", in("ecx") index, out("rax") low, out("rdx") high,
                 options(nostack, preserves_flags));
        }
        high << 32 | low
    }

    #[inline(always)]
    fn clock(&self) -> u64 {
        let (low, high): (u64, u64);
        // SAFETY: reading the time-stamp counter has no effect.
        unsafe {
            asm!("rdtsc", out("rax") low, out("rdx") high, options(nostack, preserves_flags));
        }
        high << 32 | low
    }
}

impl Pmu for X86Pmu {
    #[inline(always)]
    fn read_register(&self, msr: u32) -> u64 {
        let (low, high): (u64, u64);
        // SAFETY: the core names only PMU registers that CPUID announced.
        unsafe {
            asm!("rdmsr", in("ecx") msr, out("rax") low, out("rdx") high,
                 options(nostack, preserves_flags));
        }
        high << 32 | low
    }

    #[inline(always)]
    fn write_register(&self, msr: u32, value: u64) {
        // SAFETY: the core names only PMU registers that CPUID announced, and writes only event
        // selects that it has validated; none of them can reach memory.
        unsafe {
            asm!("wrmsr", in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32,
                 options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn load_at_switch(&self, inside: u64, outside: u64) {
        // SAFETY: C notes both for the current vCPU; the core enables only counters that it drives.
        unsafe { perfctr_glue_load_at_switch(inside, outside) }
    }
}

impl Probe for X86Pmu {
    fn try_read_register(&self, msr: u32) -> Option<u64> {
        let mut value = 0;
        // SAFETY: C catches the fault, and writes only to `value`.
        unsafe { perfctr_glue_try_rdmsr(msr, &raw mut value) }.then_some(value)
    }

    fn try_write_register(&self, msr: u32, value: u64) -> bool {
        // SAFETY: C catches the fault; the core names only PMU registers, as for `wrmsr`.
        unsafe { perfctr_glue_try_wrmsr(msr, value) }
    }
}

/// Model-specific registers that say what there is (SDM volume 4, 2.1 and 2.17.2).
const IA32_MISC_ENABLE: u32 = 0x1a0;
const IA32_PERF_CAPABILITIES: u32 = 0x345;
const TSX_FORCE_ABORT: u32 = 0x10f;

/// What the CPU that executes this says of itself.
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
    if extended >= 0x8000_0001 {
        all.extended = __cpuid(0x8000_0001).ecx;
    }
    if extended >= 0x8000_0022 {
        let leaf = __cpuid(0x8000_0022);
        all.perfmon_amd = [leaf.eax, leaf.ebx];
    }
    all
}

/// 0 if there is no such register.
fn register(msr: u32) -> u64 {
    X86Pmu.try_read_register(msr).unwrap_or(0)
}

/// The interrupt flag of RFLAGS.
const RFLAGS_IF: u64 = 1 << 9;

/// Runs `work` with interrupts disabled.
#[inline(always)]
pub(crate) fn without_interrupts<R>(work: impl FnOnce() -> R) -> R {
    let flags: u64;
    // SAFETY: disabling interrupts in ring 0 has no other effect.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    let result = work();
    if flags & RFLAGS_IF != 0 {
        // SAFETY: they were enabled before.
        unsafe { asm!("sti") };
    }
    result
}
