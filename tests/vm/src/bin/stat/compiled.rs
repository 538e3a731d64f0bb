// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs a program that compiles a function of a known length at run time.

use std::fs;

use anyhow::{Context, Result};
use memmap2::MmapMut;

/// The function that is compiled at run time, and the number of its iterations.
pub const NAME: &str = "js::hot at /srv/app.js:7";
pub const ITERATIONS: u64 = 2_600_000;

/// Runs a program that writes a function into its memory, lists it as compilers do, executes it,
/// and removes the list.
#[expect(unsafe_code, reason = "code that this program has written")]
pub fn run() -> Result<()> {
    let mut code = MmapMut::map_anon(4096)?;
    // movabs $ITERATIONS, %rcx; dec %rcx; jnz to the dec; ret.
    code[..2].copy_from_slice(&[0x48, 0xb9]);
    code[2..10].copy_from_slice(&ITERATIONS.to_le_bytes());
    code[10..16].copy_from_slice(&[0x48, 0xff, 0xc9, 0x75, 0xfb, 0xc3]);
    let code = code.make_exec()?;
    let list = format!("/tmp/perf-{}.map", std::process::id());
    fs::write(&list, format!("{:x} 10 {NAME}\n", code.as_ptr() as u64))?;
    // SAFETY: the memory begins with a function of the C ABI, which changes only RCX and flags.
    unsafe {
        let function: extern "C" fn() = std::mem::transmute(code.as_ptr());
        function();
    }
    fs::remove_file(list).context("cannot remove the list")
}
