// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that threads' vector registers keep their values while other threads and a tenant use
//! theirs.
//!
//! Keeping them is the task of the emulator and of Xen. But if they are not kept, no test means
//! anything, because memory is copied through these registers.
#![expect(unsafe_code, reason = "only assembly keeps a value in a register")]

use std::arch::asm;
use std::ops::Range;
use std::thread;

use vm_tests::tally::{Tally, equal};

/// The number of threads. There are more than vCPUs, so that they are switched.
const THREADS: u64 = 6;
/// How often each thread checks its registers.
const LOOKS: u64 = 400;
/// The number of iterations for which a value stays in its registers: about a millisecond, so that
/// some threads are switched during that time.
const ITERATIONS: u64 = 300_000;

/// Checks registers while other programs run.
pub fn check(tally: &mut Tally, beside: &str) {
    let changed = thread::scope(|scope| {
        let look = |id: u64| scope.spawn(move || changed(id << 32..(id << 32) + LOOKS));
        let threads: Vec<_> = (1..=THREADS).map(look).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum::<u64>()
    });
    tally.check(&format!("no register of a thread changes beside {beside}"), equal(changed, 0));
}

/// Returns how many of these values change.
fn changed(values: Range<u64>) -> u64 {
    values.map(|value| u64::from(kept(value) != [value; 2])).sum()
}

/// Returns a value after it was in two registers.
fn kept(value: u64) -> [u64; 2] {
    let (mut first, mut last): (u64, u64);
    // SAFETY: the instructions touch no memory, and write only to registers that are named here.
    unsafe {
        asm!(
            "movq xmm0, {value}",
            "movq xmm15, {value}",
            "2: dec {n}",
            "jnz 2b",
            "movq {first}, xmm0",
            "movq {last}, xmm15",
            value = in(reg) value,
            n = inout(reg) ITERATIONS => _,
            first = out(reg) first,
            last = out(reg) last,
            out("xmm0") _,
            out("xmm15") _,
            options(nomem, nostack),
        );
    }
    [first, last]
}
