// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Loops with known numbers of instructions and branches in each round.
//!
//! The code around a loop, such as the call, executes the same instructions for any number of
//! rounds. So it is known exactly how many instructions more than one round many rounds execute.
#![expect(unsafe_code, reason = "only assembly has a known number of instructions")]

use std::arch::{asm, global_asm};

/// The number of instructions, and of branches, that one round of a loop executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    pub instructions: u64,
    pub branches: u64,
}

/// A round of [`count_down`].
pub const COUNT_DOWN: Round = Round { instructions: 2, branches: 1 };

/// Executes this many rounds of a loop that does nothing. The number must not be 0.
#[inline(never)]
pub fn count_down(rounds: u64) {
    // SAFETY: only the register is changed.
    unsafe { asm!("2: dec {0}", "jnz 2b", inout(reg) rounds => _, options(nomem, nostack)) }
}

/// A round of [`touch`].
pub const TOUCH: Round = Round { instructions: 4, branches: 1 };
/// Size of a page in bytes.
pub const PAGE: usize = 4096;

/// Writes to the first byte of each of this many pages.
///
/// # Panics
///
/// If the number is 0, or if there are fewer pages.
#[inline(never)]
pub fn touch(pages: &mut [u8], rounds: u64) {
    assert!(rounds > 0 && rounds as usize <= pages.len() / PAGE);
    // SAFETY: each byte that is written is one of `pages`.
    unsafe {
        asm!(
            "2: mov byte ptr [{at}], 1",
            "add {at}, 4096",
            "dec {rounds}",
            "jnz 2b",
            at = inout(reg) pages.as_mut_ptr() => _,
            rounds = inout(reg) rounds => _,
            options(nostack),
        );
    }
}

/// A round of [`identify`].
pub const IDENTIFY: Round = Round { instructions: 5, branches: 1 };

/// Executes CPUID this many times. The number must not be 0. In a guest that has rings of its own,
/// each CPUID causes an exit from the guest.
#[inline(never)]
pub fn identify(rounds: u64) {
    // SAFETY: CPUID changes the named registers, and RBX, which is restored.
    unsafe {
        asm!(
            "mov {saved}, rbx",
            "2: xor eax, eax",
            "xor ecx, ecx",
            "cpuid",
            "dec {rounds}",
            "jnz 2b",
            "mov rbx, {saved}",
            saved = out(reg) _,
            rounds = inout(reg) rounds => _,
            out("eax") _,
            out("ecx") _,
            out("edx") _,
            options(nomem, nostack),
        );
    }
}

/// The number of one-byte instructions, one after the other, in a round of [`straight`].
const STRAIGHT: u64 = 16_384;
/// The number of instructions of a round of [`straight`]: the one-byte ones, and the loop's two.
pub const STRAIGHT_ROUND: u64 = STRAIGHT + 2;

global_asm!(
    ".pushsection .text.perfctr_selftest_straight, \"ax\", @progbits",
    ".balign 64",
    ".globl perfctr_selftest_straight",
    ".hidden perfctr_selftest_straight",
    "perfctr_selftest_straight:",
    "2: .skip {straight}, 0x90",
    "dec rdi",
    "jnz 2b",
    "ret",
    ".popsection",
    straight = const STRAIGHT,
);

unsafe extern "C" {
    fn perfctr_selftest_straight(rounds: u64);
}

/// Size in bytes of the DEC that follows the one-byte instructions.
const DEC_BYTES: u64 = 3;

/// Executes the straight block this many times. The number must not be 0.
pub fn straight(rounds: u64) {
    // SAFETY: the code changes only RDI and the flags, as a function may.
    unsafe { perfctr_selftest_straight(rounds) }
}

/// Returns how many instructions of the straight block come before the one at this address, or
/// `None` if no instruction of the block begins there.
pub fn place(ip: u64) -> Option<u64> {
    match ip.checked_sub(perfctr_selftest_straight as *const () as u64)? {
        before @ 0..=STRAIGHT => Some(before),
        bytes if bytes == STRAIGHT + DEC_BYTES => Some(STRAIGHT + 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_end_and_touch_what_they_are_given() {
        count_down(3);
        identify(2);
        straight(2);
        let mut pages = vec![0; 3 * PAGE];
        touch(&mut pages, 2);
        let touched: Vec<usize> = (0..pages.len()).filter(|&n| pages[n] != 0).collect();
        assert_eq!(touched, [0, PAGE]);
    }

    #[test]
    fn places_are_instructions_of_the_block() {
        let start = perfctr_selftest_straight as *const () as u64;
        for (bytes, before) in
            [(0, 0), (1, 1), (16_383, 16_383), (16_384, 16_384), (16_387, 16_385)]
        {
            assert_eq!(place(start + bytes), Some(before));
        }
        for elsewhere in [start - 1, start + 16_385, start + 16_386, start + 16_388] {
            assert_eq!(place(elsewhere), None, "{}", elsewhere.wrapping_sub(start));
        }
    }
}
