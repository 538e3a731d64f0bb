// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The instructions that read counters.
//!
//! # Ordering
//!
//! RDPMC and RDTSC wait for nothing: out of order execution may take their values before earlier
//! instructions have retired (SDM volume 2, RDPMC and RDTSC). An LFENCE in front makes them wait
//! until all earlier instructions have completed (SDM volume 2, LFENCE; APM volume 3, LFENCE, where
//! the kernel has made it dispatch-serialising, as current hypervisors and kernels do). A read
//! takes the TSC first, so the fence stands there, once per attempt. The reads of counters follow
//! immediately, without fences between them.
//!
//! No fence is needed behind them: counters of retired events are read in program order, so they do
//! not count later instructions. Counts of other events, like cycles, are uncertain by some tens of
//! cycles; CPUID in place of LFENCE would not change that and would trap to the hypervisor.
#![expect(unsafe_code, reason = "RDPMC has no safe form")]

use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64};

use shared_abi::read::Counters;
use shared_abi::seq::Stamp;

#[cfg(feature = "std")]
mod faults;

#[cfg(feature = "std")]
pub use faults::{leave_faults, survive_faults};
#[cfg(feature = "std")]
pub(crate) use faults::{survive_by_default, survived};

/// Expands to assembler directives that add an entry to the table of RDPMC instructions.
///
/// If the RDPMC at the label `2:` faults, the handler of faults finds this entry, and continues the
/// program at the label that is the macro's argument.
macro_rules! continues_at {
    ($label:literal) => {
        concat!(
            ".pushsection perfctr_rdpmc, \"aR\", @progbits\n",
            ".balign 4\n",
            ".long 2b - .\n",
            ".long ",
            $label,
            " - .\n",
            ".popsection",
        )
    };
}

/// The counters of the CPU that executes the code.
///
/// RDPMC faults unless CR4.PCE is set. So a caller reads only after it has found
/// [`THREAD_DIRECT`](shared_abi::thread_page::THREAD_DIRECT) set in its page, which says that
/// CR4.PCE is set. That may no longer be true when RDPMC executes. In a process that has mapped
/// the device's pages for a session, or has called `survive_faults`,
/// [`counter`](Counters::counter) then returns 0, and [`counter_under`](Counters::counter_under)
/// makes its stamp invalid; elsewhere SIGSEGV ends the process.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "it is written by its name")]
pub struct Hardware;

impl Counters for Hardware {
    #[inline(always)]
    fn counter(&self, index: u32) -> u64 {
        let (low, high): (u64, u64);
        // SAFETY: RDPMC writes EAX and EDX and touches no memory. The option `nomem` is left out,
        // so that the compiler does not move the instruction across the loads of a page. After a
        // fault the handler in `faults` continues behind the instruction.
        unsafe {
            asm!(
                "2: rdpmc",
                "3:",
                continues_at!("3b"),
                in("ecx") index,
                out("rax") low,
                out("rdx") high,
                options(nostack, preserves_flags),
            );
        }
        high << 32 | low
    }

    #[inline(always)]
    fn counter_under(&self, index: u32, stamp: &mut Stamp) -> u64 {
        let (low, high): (u64, u64);
        // SAFETY: RDPMC writes EAX and EDX and touches no memory. The option `nomem` is left out,
        // so that the compiler does not move the instruction across the loads of a page. After a
        // fault the handler continues in the other section, which sets all bits of the stamp, and
        // goes on behind the instruction.
        unsafe {
            asm!(
                "2: rdpmc",
                "3:",
                ".pushsection .text.perfctr_rdpmc_faulted, \"ax\", @progbits",
                "4: mov {stamp}, -1",
                "jmp 3b",
                ".popsection",
                continues_at!("4b"),
                stamp = inout(reg) *stamp.word(),
                in("ecx") index,
                out("rax") low,
                out("rdx") high,
                options(nostack, preserves_flags),
            );
        }
        high << 32 | low
    }

    #[inline(always)]
    fn clock(&self) -> u64 {
        let value: u64;
        // SAFETY: LFENCE has no operands, RDTSC writes EAX and EDX, and the others only compute;
        // none touches memory. The option `nomem` is left out, as for RDPMC. LEA adds both halves
        // in a register that RDPMC leaves alone, so that nobody has to move the sum there.
        unsafe {
            asm!(
                "lfence",
                "rdtsc",
                "shl rdx, 32",
                "lea {value}, [rdx + rax]",
                value = out(reg) value,
                out("rax") _,
                out("rdx") _,
                options(nostack),
            );
        }
        value
    }

    #[inline(always)]
    fn fence(&self) {
        // SAFETY: LFENCE has no operands and changes nothing.
        unsafe { asm!("lfence", options(nostack, preserves_flags)) };
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
    fn any(&self, one: u64, other: u64) -> bool {
        // A read leaves its loop where no bit is set, so this jumps there directly. If it jumped
        // where a bit is set, compilers would add a jump out of the loop.
        // SAFETY: the instructions only compute, and jump to a label of this block.
        unsafe {
            asm!(
                "or {one}, {other}",
                "jz {clear}",
                one = inout(reg) one => _,
                other = in(reg) other,
                clear = label { return false },
                options(nomem, nostack),
            );
        }
        true
    }

    #[inline(always)]
    fn opaque(&self, mut word: u64) -> u64 {
        // SAFETY: the block contains no instruction. It is not `pure`, so the compiler keeps it
        // between the instructions that read counters.
        unsafe { asm!("/* {} */", inout(reg) word, options(nomem, nostack, preserves_flags)) };
        word
    }
}

/// Loads that are correct only on x86. Its total store order (SDM volume 3, 10.2.2) keeps loads in
/// the program's order, so that every load acquires, and aligned words are loaded at once (10.1.1).
///
/// The loads are volatile, because compilers fold volatile loads into the instructions that use
/// their values, and do not do so with atomic loads. A volatile load of memory to which another
/// thread of the same program stores would be a data race. No thread of the program stores here:
/// programs map these pages read-only, and the guest's kernel and the hypervisor write them.
mod tso {
    use super::{AtomicU32, AtomicU64};

    #[inline(always)]
    pub(super) fn load(word: &AtomicU64) -> u64 {
        // SAFETY: `word` is a reference, so the pointer is valid and aligned.
        unsafe { word.as_ptr().read_volatile() }
    }

    #[inline(always)]
    pub(super) fn load_half(half: &AtomicU32) -> u32 {
        // SAFETY: `half` is a reference, so the pointer is valid and aligned.
        unsafe { half.as_ptr().read_volatile() }
    }
}
