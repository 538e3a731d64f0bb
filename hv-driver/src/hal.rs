// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Declares the interface between the driver and the hardware.

use shared_abi::read::Counters;

use crate::arch::RecordArea;

/// The performance monitoring unit of the physical CPU that executes this.
pub trait Pmu: Counters {
    /// Reads a register whose number is from [`arch`](crate::arch).
    fn read_register(&self, register: u32) -> u64;
    /// Writes a register whose number is from [`arch`](crate::arch).
    fn write_register(&self, register: u32, value: u64);
    /// Sets what the hardware loads into the register that enables counters from now on: `inside`
    /// whenever the current vCPU is entered, and `outside` whenever it exits.
    ///
    /// The core calls this only for guests with [`Gate::Entry`](crate::guest::Gate::Entry). A call
    /// from [`Vcpu::revoke`](crate::Vcpu::revoke) may be ignored, since `revoke` may execute in an
    /// interrupt of the hypervisor's own work: the core repeats the call when the vCPU is switched
    /// in.
    fn load_at_switch(&self, inside: u64, outside: u64);
    /// Tells the host that from now on exactly these slots interrupt when they overflow.
    ///
    /// If `seen`, the driver has noticed an overflow whose interrupt may still come. Hosts whose
    /// PMU interrupts by a vector that nobody else uses can ignore this.
    fn expect_interrupts(&self, _slots: u32, _seen: bool) {}
    /// Returns the memory in which this CPU stores precise records, if the host has any for that.
    fn record_area(&self) -> Option<&RecordArea> {
        None
    }
}

/// The same PMU before the driver knows which of its registers exist.
pub trait Probe {
    /// Reads a register; it returns `None` if there is no such register.
    fn try_read_register(&self, register: u32) -> Option<u64>;
    /// Writes a register, and returns whether the register has taken the value.
    fn try_write_register(&self, register: u32, value: u64) -> bool;
}
