// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Functions with frame pointers, whose place is known after each number of instructions.
#![expect(unsafe_code, reason = "only assembly has a known number of instructions")]

use std::arch::global_asm;

global_asm!(
    ".text",
    ".globl vm_tests_descend, vm_tests_descend_return, vm_tests_frame",
    // The arguments are the iterations, and the number of functions that call each other.
    "vm_tests_descend:",
    "push rbp",
    "mov rbp, rsp",
    "mov rax, rdi",
    "1: dec rax",
    "jnz 1b",
    "dec rsi",
    "jz 2f",
    "call vm_tests_descend",
    "vm_tests_descend_return:",
    "2: pop rbp",
    "ret",
    // The arguments are the iterations, and a frame pointer.
    "vm_tests_frame:",
    "push rbp",
    "mov rbp, rsi",
    "1: dec rdi",
    "jnz 1b",
    "pop rbp",
    "ret",
);

unsafe extern "C" {
    fn vm_tests_descend(iterations: u64, depth: u64);
    fn vm_tests_descend_return();
    fn vm_tests_frame(iterations: u64, frame: u64);
}

/// Functions that call each other: each executes a loop, and calls the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descent {
    /// The iterations of each function's loop, at least 1.
    pub iterations: u64,
    /// The number of functions, at least 1.
    pub depth: u64,
}

/// Where a descent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The next instruction.
    pub ip: u64,
    /// The number of functions that have called, and have frames above the present frame pointer.
    pub calls: usize,
    /// Whether the present function has set up its own frame.
    pub framed: bool,
}

impl Descent {
    /// The number of instructions up to the call, without the loop.
    const BESIDE: u64 = 6;
    /// The offsets of the instructions up to the call, and after it.
    const OFFSETS: [u64; 9] = [0, 1, 4, 7, 10, 12, 15, 17, 22];

    /// Executes the descent.
    pub fn execute(self) {
        // SAFETY: the assembly follows the calling convention. Each of its functions uses two words
        // of stack: its return address and the frame pointer.
        unsafe { vm_tests_descend(self.iterations, self.depth) }
    }

    /// Returns the number of instructions up to its end. The last function calls no other one.
    pub const fn instructions(self) -> u64 {
        self.descending() + 2 * self.depth
    }

    /// Returns the number of instructions up to the last function's end.
    pub const fn descending(self) -> u64 {
        self.depth * self.of_each() - 1
    }

    const fn of_each(self) -> u64 {
        2 * self.iterations + Self::BESIDE
    }

    /// Returns the address to which each function but the first returns.
    pub fn return_address() -> u64 {
        vm_tests_descend_return as *const () as u64
    }

    /// Returns where the descent is after this many of its first [`descending`](Self::descending)
    /// instructions.
    ///
    /// # Panics
    ///
    /// The assembler has chosen other encodings.
    pub fn at(self, executed: u64) -> At {
        let (level, within) = (executed / self.of_each(), executed % self.of_each());
        let looped = 2 * self.iterations;
        let instruction = match within.checked_sub(3) {
            None => within,
            Some(n) if n < looped => 3 + n % 2,
            Some(n) => 5 + (n - looped),
        };
        let first = vm_tests_descend as *const () as u64;
        assert_eq!(Self::return_address() - first, Self::OFFSETS[8], "other encodings");
        let framed = within >= 2;
        let calls = level as usize - usize::from(!framed && level > 0);
        At { ip: first + Self::OFFSETS[instruction as usize], calls, framed }
    }
}

/// Executes a loop while the frame pointer has this value.
pub fn loop_with_frame(iterations: u64, frame: u64) {
    // SAFETY: nobody follows the frame pointer, and the assembly restores it.
    unsafe { vm_tests_frame(iterations, frame) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descent_is_where_it_is() {
        let descent = Descent { iterations: 10, depth: 3 };
        assert_eq!((descent.descending(), descent.instructions()), (77, 83));
        let first = descent.at(0).ip;
        let at = |executed| {
            let At { ip, calls, framed } = descent.at(executed);
            (ip - first, calls, framed)
        };
        assert_eq!([at(0), at(1), at(2)], [(0, 0, false), (1, 0, false), (4, 0, true)]);
        assert_eq!([at(3), at(4), at(22)], [(7, 0, true), (10, 0, true), (10, 0, true)]);
        assert_eq!([at(23), at(24), at(25)], [(12, 0, true), (15, 0, true), (17, 0, true)]);
        assert_eq!([at(26), at(27), at(28)], [(0, 0, false), (1, 0, false), (4, 1, true)]);
        assert_eq!([at(52), at(54), at(76)], [(0, 1, false), (4, 2, true), (15, 2, true)]);
        descent.execute();
        loop_with_frame(10, 7);
    }
}
