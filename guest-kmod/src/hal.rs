// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What the core needs of the kernel it runs in.

use shared_abi::Errno;
use shared_abi::read::Counters;

/// The hypervisor, as the vCPU that executes this calls it.
pub trait Hypervisor {
    /// The hypercall `perfctr_op`.
    ///
    /// # Errors
    ///
    /// See the table in [`shared_abi::hypercall`].
    fn hypercall(&self, op: u32, argument: &mut [u8]) -> Result<(), Errno>;
}

/// The kernel, on the vCPU that executes this, with interrupts disabled.
///
/// The core may ask for a counter that may not be read any more, for a moment before the vCPU page
/// says so.  Any number will do then: the page's sequence word makes the core throw it away.
pub trait Kernel: Counters + Hypervisor {}

impl<K: Counters + Hypervisor> Kernel for K {}
