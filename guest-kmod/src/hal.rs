// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Declares the functions of the kernel that the core needs.

use shared_abi::read::Counters;
use shared_abi::{Errno, VcpuPage};

/// The hypervisor of the vCPU that executes this.
pub trait Hypervisor {
    /// Makes the hypercall `perfctr_op`.
    ///
    /// # Errors
    ///
    /// See the table in [`shared_abi::hypercall`].
    fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno>;
}

/// The kernel, on the vCPU that executes this, with interrupts disabled.
///
/// The core may ask for a counter that may not be read any more. The kernel then makes the stamp
/// of [`Counters::counter_under`] invalid, and [`Counters::counter`] returns any number.
pub trait Kernel: Counters + Hypervisor {
    /// Returns the guest frame number that a page has now. If a guest's frame numbers are those of
    /// the machine, they change when the guest is restored, so the core may not keep any frame
    /// number.
    fn frame_of(&self, page: &VcpuPage) -> u64;
}
