// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Assembly that enters the kernel in the middle, with a known number of instructions.
#![expect(unsafe_code, reason = "only assembly has a known number of instructions")]

use std::arch::global_asm;
use std::io;
use std::mem::zeroed;
use std::ptr::null_mut;

use shared_abi::limits::PAGE_BYTES;

use crate::step::Executed;

global_asm!(
    ".text",
    ".globl vm_tests_nothing, vm_tests_system_calls, vm_tests_strings, vm_tests_signals",
    ".globl vm_tests_yields, vm_tests_exits",
    ".globl vm_tests_step_over",
    "vm_tests_nothing:",
    "ret",
    "vm_tests_yields:",
    "mov r8d, 24", // sched_yield
    "jmp 1f",
    "vm_tests_system_calls:",
    "mov r8d, 39", // getpid
    // This instruction is not needed, but it makes both bodies equal for the counters.
    "jmp 1f",
    "1: push rbx",
    "mov rbx, rdi",
    "2: mov eax, r8d",
    "syscall",
    "dec rbx",
    "jnz 2b",
    "pop rbx",
    "ret",
    // Strings of all lengths from RDI down to none, at RSI.
    "vm_tests_strings:",
    "mov rdx, rdi",
    "mov al, 7",
    "2: mov rdi, rsi",
    "mov rcx, rdx",
    "rep stosb",
    "sub rdi, rdx",
    "mov rcx, rdx",
    "repe scasb",
    "dec rdx",
    "jnz 2b",
    "rep stosb", // RCX is 0.
    "ret",
    // UD2 does not retire; the handler steps over it.
    "vm_tests_signals:",
    "2: ud2",
    "dec rdi",
    "jnz 2b",
    "ret",
    // CPUID exits, so it does not retire in the guest.
    "vm_tests_exits:",
    "push rbx",
    "2: xor eax, eax",
    "cpuid",
    "dec rdi",
    "jnz 2b",
    "pop rbx",
    "ret",
    "vm_tests_step_over:",
    "add qword ptr [rdx + 168], 2", // The saved RIP in the third argument, a ucontext.
    "ret",
);

unsafe extern "C" {
    fn vm_tests_nothing(rounds: u64, memory: *mut u8);
    fn vm_tests_system_calls(rounds: u64, memory: *mut u8);
    fn vm_tests_yields(rounds: u64, memory: *mut u8);
    fn vm_tests_strings(rounds: u64, memory: *mut u8);
    fn vm_tests_signals(rounds: u64, memory: *mut u8);
    fn vm_tests_exits(rounds: u64, memory: *mut u8);
    fn vm_tests_step_over(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void);
}

/// The action of a body in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Nothing.
    Nothing,
    /// A system call.
    SystemCall,
    /// A system call that yields the CPU to another thread.
    Yield,
    /// REP STOSB and REPE SCASB, across the boundary of two pages.
    Strings,
    /// An invalid instruction, handled by [`step_over_invalid`].
    Signal,
    /// CPUID, which leaves a guest that has rings of its own.
    Exit,
}

/// Code to be measured.
#[derive(Clone, Copy, Debug)]
pub struct Body {
    does: Does,
    code: unsafe extern "C" fn(u64, *mut u8),
    rounds: u64,
}

impl Body {
    /// The most rounds of a body.
    const ROUNDS_MAX: u64 = PAGE_BYTES as u64;

    /// Makes a body of this many rounds, at least one.
    pub fn new(does: Does, rounds: u64) -> Self {
        assert!((1..=Self::ROUNDS_MAX).contains(&rounds));
        let code = match does {
            Does::Nothing => vm_tests_nothing,
            Does::SystemCall => vm_tests_system_calls,
            Does::Yield => vm_tests_yields,
            Does::Strings => vm_tests_strings,
            Does::Signal => vm_tests_signals,
            Does::Exit => vm_tests_exits,
        };
        Self { does, code, rounds }
    }

    /// Returns what it executes in user mode, without the RET at its end.
    pub fn executed(self) -> Executed {
        let (once, each) = match self.does {
            Does::Nothing => ((0, 0), (0, 0)),
            Does::SystemCall | Does::Yield => ((5, 1), (4, 2)),
            Does::Strings => ((3, 0), (8, 1)),
            // In each round, four of the instructions are those of the handler and of the C
            // library's return from it.
            Does::Signal => ((0, 0), (6, 3)),
            Does::Exit => ((2, 0), (3, 1)),
        };
        let executed = |(instructions, branches)| Executed { instructions, branches };
        executed(once).plus(executed(each).times(self.rounds))
    }

    /// Executes the body. Strings are in the middle of `memory`, which has two pages.
    #[inline(always)]
    pub fn execute(&self, memory: &mut [u8]) {
        assert!(memory.len() == 2 * PAGE_BYTES);
        // SAFETY: each of these pieces of code keeps to the C calling convention. A string starts
        // in the first page of `memory` and is no longer than a page, so it ends in the second one.
        unsafe { (self.code)(self.rounds, memory.as_mut_ptr().add(PAGE_BYTES - 8)) }
    }
}

/// Makes the process skip UD2 instructions from now on.
///
/// # Errors
///
/// The kernel's error.
pub fn step_over_invalid() -> io::Result<()> {
    // SAFETY: the handler changes only the address at which its thread continues.
    let result = unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = vm_tests_step_over as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGILL, &raw const action, null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::{Kind, Trace};

    #[test]
    fn bodies_execute_what_they_say() {
        let trace = |does, rounds| {
            let body = |()| {
                Body::new(does, rounds).execute(&mut vec![0; 2 * PAGE_BYTES]);
                Ok(())
            };
            let trace = Trace::of(|| Ok(()), body, |_| ()).unwrap();
            let all = trace.len();
            (trace.between(0, all), trace.places(Kind::SystemCall).len())
        };
        for does in [Does::SystemCall, Does::Yield, Does::Strings] {
            let ((few, _), (many, _)) = (trace(does, 3), trace(does, 11));
            let expected = Body::new(does, 11).executed().less(Body::new(does, 3).executed());
            assert_eq!(many.less(few), expected, "{does:?}");
        }
    }
}
