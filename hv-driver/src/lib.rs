// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The hypervisor's side of perfctr: what it does when a virtual CPU is switched in or out, goes
//! between guest user and guest kernel mode, or asks for a configuration.
//!
//! * [`Vcpu`] holds a virtual CPU's sums and configuration, and is the state machine.
//! * [`Pcpu`] knows what a physical CPU's selectors hold, and whose events its counters.
//! * [`Driver`] is what all CPUs share: the capabilities.
//! * [`hypercall`] decodes and validates what a guest asks for.
//! * `publish` is the only writer of a vCPU's page; nothing here ever reads that page.
//! * [`hal::Pmu`] is the hardware; [`msr`] names its registers; [`caps`] reads CPUID.
//!
//! The crate is `no_std`, free of unsafe code and does not know its hypervisor: `ffi/` binds it to
//! C, `glue/` to Xen.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod caps;
pub mod driver;
pub mod hal;
pub mod hypercall;
pub mod msr;
pub mod pcpu;
pub(crate) mod publish;
pub mod stats;
pub mod vcpu;

pub use caps::{Cpuid, Refusal};
pub use driver::{Driver, Rate};
pub use hal::Pmu;
pub use pcpu::Pcpu;
pub use stats::Stats;
pub use vcpu::Vcpu;
