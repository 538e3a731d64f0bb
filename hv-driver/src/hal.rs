// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The hardware that the driver drives.

use shared_abi::read::Counters;

/// The performance monitoring unit of the physical CPU that executes this.
pub trait Pmu: Counters {
    /// RDMSR of a register named in [`pmu`](crate::pmu).
    fn rdmsr(&self, msr: u32) -> u64;
    /// WRMSR.
    fn wrmsr(&self, msr: u32, value: u64);
}
