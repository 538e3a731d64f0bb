// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The instructions that read counters.
//!
//! # Ordering
//!
//! RDPMC and RDTSC wait for nothing: out of order execution may take their values before earlier
//! instructions have retired (SDM volume 2, RDPMC and RDTSC).  An LFENCE in front makes them wait
//! until all earlier instructions have completed (SDM volume 2, LFENCE; APM volume 3, LFENCE, where
//! the kernel has made it dispatch-serialising, as current hypervisors and kernels do).  A read
//! takes the TSC first, so the fence stands there, once per attempt.  The counters follow it
//! immediately and are not fenced from each other.
//!
//! Nothing is needed behind them: counters of retired events are read in program order, so what
//! comes later is not counted.  Events that are not about retirement, like cycles, stay fuzzy by
//! some tens of cycles; CPUID in place of LFENCE would not change that and would trap to the
//! hypervisor.
#![expect(unsafe_code, reason = "RDPMC has no safe form")]

use core::arch::asm;

use shared_abi::read::Counters;

mod faults;

pub use faults::survive_faults;
pub(crate) use faults::survived;

/// The counters of the CPU that executes this.
///
/// RDPMC faults, which ends the process, unless CR4.PCE is set; whoever reads with this has been
/// told so by a page with [`THREAD_DIRECT`](shared_abi::thread_page::THREAD_DIRECT) set.  With
/// [`survive_faults`] it gives 0 instead.
#[derive(Clone, Copy, Debug)]
pub struct Hardware;

impl Counters for Hardware {
    #[inline(always)]
    fn rdpmc(&self, index: u32) -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: RDPMC writes EAX and EDX and touches no memory.  That there is no `nomem` keeps
        // the compiler from moving it across the loads of a page.
        unsafe {
            asm!(
                "rdpmc",
                in("ecx") index,
                out("eax") low,
                out("edx") high,
                options(nostack, preserves_flags),
            );
        }
        u64::from(high) << 32 | u64::from(low)
    }

    #[inline(always)]
    fn rdtsc(&self) -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: as above; LFENCE has no operands.
        unsafe {
            asm!(
                "lfence",
                "rdtsc",
                out("eax") low,
                out("edx") high,
                options(nostack, preserves_flags),
            );
        }
        u64::from(high) << 32 | u64::from(low)
    }
}
