// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The hardware that the driver drives.

use shared_abi::read::Counters;

/// The performance monitoring unit of the physical CPU that executes this.
pub trait Pmu: Counters {
    /// RDMSR of a register named in [`pmu`](crate::pmu).
    fn rdmsr(&self, msr: u32) -> u64;
    /// WRMSR.
    fn wrmsr(&self, msr: u32, value: u64);
    /// Whenever the vCPU that executes this is entered from now on, the hardware loads `inside`
    /// into the register that enables counters, and whenever it is left, `outside`.
    ///
    /// Asked for of guests with [`Gate::Entry`](crate::guest::Gate::Entry) only.  What
    /// [`Vcpu::revoke`](crate::Vcpu::revoke) asks for may be ignored, since the hypervisor may have
    /// interrupted itself for it: it is asked for again when the vCPU is switched in.
    fn load_at_switch(&self, inside: u64, outside: u64);
}

/// The same PMU before it is known which of its registers are there.
pub trait Probe {
    /// RDMSR; `None` if it faults.
    fn try_rdmsr(&self, msr: u32) -> Option<u64>;
    /// WRMSR; whether it does not fault.
    fn try_wrmsr(&self, msr: u32, value: u64) -> bool;
}
