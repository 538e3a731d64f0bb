// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Replaces the instructions that read counters on machines that do not have them.
//!
//! Nobody calls these functions: providers that need the instructions refuse with
//! [`Cause::NotX86`](crate::Cause::NotX86), and perf events are not read through their pages.

use shared_abi::read::Counters;

/// Stands for the CPU's counters, of which there are none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hardware;

impl Counters for Hardware {
    fn counter(&self, _: u32) -> u64 {
        unreachable!("only x86 has RDPMC")
    }

    fn clock(&self) -> u64 {
        unreachable!("only x86 has RDTSC")
    }
}

/// Returns how often RDPMC has faulted: never.
pub(crate) const fn survived() -> u64 {
    0
}

/// Does nothing: an instruction that is never executed cannot fault.
pub(crate) const fn survive_by_default() {}
