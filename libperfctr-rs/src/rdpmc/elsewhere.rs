// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! In place of the instructions that read counters, on machines that do not have them.
//!
//! Nobody gets here: providers that need them refuse by
//! [`Cause::NotX86`](crate::Cause::NotX86), and pages of perf events are not asked for counters.

use shared_abi::read::Counters;

/// The counters of the CPU that executes this, of which there are none.
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

/// Faults of RDPMC.
pub(crate) const fn survived() -> u64 {
    0
}
