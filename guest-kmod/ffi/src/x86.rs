// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The instructions of x86 that read counters, the clock, and pages.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64};

use shared_abi::read::Counters;
use shared_abi::seq::Stamp;

use crate::{Linux, perfctr_glue_rdpmc};

impl Counters for Linux {
    #[inline(always)]
    fn counter(&self, index: u32) -> u64 {
        let (low, high): (u64, u64);
        // SAFETY: the glue handles a fault of RDPMC, and reading a counter has no other effect.
        unsafe {
            asm!("call {}", sym perfctr_glue_rdpmc, in("ecx") index, out("rax") low,
                 out("rdx") high, out("r10") _);
        }
        high << 32 | low
    }

    #[inline(always)]
    fn counter_under(&self, index: u32, stamp: &mut Stamp) -> u64 {
        let (low, high): (u64, u64);
        // SAFETY: the glue handles a fault of RDPMC and then sets all bits of R10. Reading a
        // counter has no other effect.
        unsafe {
            asm!("call {}", sym perfctr_glue_rdpmc, in("ecx") index, out("rax") low,
                 out("rdx") high, inout("r10") *stamp.word());
        }
        high << 32 | low
    }

    #[inline(always)]
    fn clock(&self) -> u64 {
        // SAFETY: reading the time-stamp counter has no effect.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    #[inline(always)]
    fn load(&self, word: &AtomicU64) -> u64 {
        tso::load(word)
    }

    #[inline(always)]
    fn load_half(&self, half: &AtomicU32) -> u32 {
        tso::load_half(half)
    }

    #[inline(always)]
    fn opaque(&self, mut word: u64) -> u64 {
        // SAFETY: this emits no instruction. It is not `pure`, so it stays between the
        // instructions that read counters.
        unsafe { asm!("/* {} */", inout(reg) word, options(nomem, nostack, preserves_flags)) };
        word
    }
}

/// Loads that are correct on x86 alone, where every load has acquire semantics. Its total store
/// order (SDM volume 3, 10.2.2) keeps loads in program order, and aligned words are loaded
/// atomically (10.1.1).
///
/// The loads are volatile, because compilers fold volatile loads, but not atomic ones, into
/// operands of the instructions that use them. For the compiler, a volatile load would be a data
/// race if another thread of the same program stored to the memory. No thread does: the core loads
/// only vCPU pages this way. The hypervisor writes to them, and the module writes to a page only on
/// the vCPU whose page it is.
mod tso {
    use super::{AtomicU32, AtomicU64};

    #[inline(always)]
    pub(super) fn load(word: &AtomicU64) -> u64 {
        // SAFETY: the reference is valid and aligned while this function executes.
        unsafe { word.as_ptr().read_volatile() }
    }

    #[inline(always)]
    pub(super) fn load_half(half: &AtomicU32) -> u32 {
        // SAFETY: the reference is valid and aligned while this function executes.
        unsafe { half.as_ptr().read_volatile() }
    }
}
