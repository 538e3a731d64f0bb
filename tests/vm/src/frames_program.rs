// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The program `frames.S`, whose functions have known lengths.

/// Where the testbed puts it.
pub const PROGRAM: &str = "/work/frames";

/// The instructions of its function `inner`: the frame, the loop's counter, the loop, and the end.
pub const INNER: u64 = 2 + 1 + 2 * LOOPS as u64 + 2;

/// The instructions of its function `outer`, which calls `inner`.
pub const OUTER: u64 = 2 + 1 + INNER + 2;

/// The instructions of the whole program, of which five are outside of `outer`.
pub const ALL: u64 = OUTER + 5;

/// How often the loop of `inner` is executed.
const LOOPS: u32 = 1_000_000;

/// Returns the program's file, changed so that the loop is executed once more, which is two
/// instructions more. Returns `None` if the file has no such loop.
pub fn with_one_loop_more(program: &[u8]) -> Option<Vec<u8>> {
    /// The operation code of `mov`, which sets the loop's counter (register ECX).
    const MOV_ECX: u8 = 0xb9;
    let begins = |loops: u32| {
        let [a, b, c, d] = loops.to_le_bytes();
        [MOV_ECX, a, b, c, d]
    };
    let (before, after) = (begins(LOOPS), begins(LOOPS + 1));
    let at = program.windows(before.len()).position(|bytes| *bytes == before)?;
    let mut changed = program.to_owned();
    changed[at..at + after.len()].copy_from_slice(&after);
    Some(changed)
}
