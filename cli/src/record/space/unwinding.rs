// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests of unwinding, on the stack of the test itself.
#![expect(unsafe_code, reason = "the registers of this very thread")]

use std::arch::asm;

use super::*;

/// Returns the registers of the function that this is a part of.
#[inline(always)]
fn registers() -> user_regs_struct {
    // SAFETY: it is made of numbers.
    let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: it only reads registers.
    unsafe {
        asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) registers.rip,
             out(reg) registers.rsp, out(reg) registers.rbp, options(nomem, nostack));
    }
    registers
}

#[test]
fn a_stack_has_each_caller_once_though_a_file_was_loaded_since() {
    let (registers, mut files) = (registers(), Files::default());
    let space = || Space::of(std::process::id()).unwrap();
    let expected = space().stack(&mut files, &registers, true);
    assert!(expected.len() > 3, "the test's thread was begun by the library: {expected:?}");
    let mut space = space();
    for _ in 0..2 {
        space.look(&mut files);
        // The files of the other callers are as if they were new.
        space.maps.retain(|map| map.addresses.contains(&registers.rip));
        assert_eq!(space.stack(&mut files, &registers, true), expected);
    }
    let alone = space.stack(&mut files, &registers, false);
    assert_eq!(alone, expected[..1]);
}
