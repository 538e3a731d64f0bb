// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What the core needs of the kernel it runs in.

use shared_abi::Errno;
use shared_abi::read::Counters;

/// The kernel, on the vCPU that executes this, with interrupts disabled.
///
/// RDPMC may be asked for while it is not allowed, for a moment before the vCPU page says so; it
/// then gives any number, which the page's sequence word makes the caller throw away.
pub trait Kernel: Counters {
    /// The hypercall `perfctr_op`.
    ///
    /// # Errors
    ///
    /// See the table in [`shared_abi::hypercall`].
    fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno>;
}
