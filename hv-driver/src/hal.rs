// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The hardware that the driver drives.

use shared_abi::read::Counters;

/// The performance monitoring unit of the physical CPU that executes this.
pub trait Pmu: Counters {
    /// Reads a register whose number is from [`arch`](crate::arch).
    fn read_register(&self, register: u32) -> u64;
    /// Writes such a register.
    fn write_register(&self, register: u32, value: u64);
    /// Whenever the vCPU that executes this is entered from now on, the hardware loads `inside`
    /// into the register that enables counters, and whenever it is left, `outside`.
    ///
    /// Asked for of guests with [`Gate::Entry`](crate::guest::Gate::Entry) only.  What
    /// [`Vcpu::revoke`](crate::Vcpu::revoke) asks for may be ignored, since the hypervisor may have
    /// interrupted itself for it: it is asked for again when the vCPU is switched in.
    fn load_at_switch(&self, inside: u64, outside: u64);
    /// From now on these slots interrupt when they overflow, and no others; if `seen`, one has
    /// overflowed whose interrupt may still come.
    ///
    /// Hosts need not know whose PMU interrupts by a vector that nobody else uses.
    fn expect_interrupts(&self, _slots: u32, _seen: bool) {}
}

/// The same PMU before it is known which of its registers are there.
pub trait Probe {
    /// Reads a register; `None` if there is no such register.
    fn try_read_register(&self, register: u32) -> Option<u64>;
    /// Writes a register, and gives whether it has taken the value.
    fn try_write_register(&self, register: u32, value: u64) -> bool;
}
