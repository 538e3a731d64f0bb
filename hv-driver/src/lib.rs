// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The hypervisor's side of perfctr: its work when a virtual CPU is switched in or out, changes
//! between guest user and guest kernel mode, or asks for a configuration.
//!
//! * [`Vcpu`] holds a virtual CPU's sums and configuration, and is the state machine; `sampling`
//!   has its sampling counters, and [`guest`] the kind of its guest.
//! * [`ThisCpu`] is the physical CPU that executes; [`Pcpu`] knows what its selectors hold, and
//!   whose events its counters hold.
//! * [`Driver`] is what all CPUs share: capabilities, registers, and settings as [`settings`] reads
//!   them.
//! * [`policy`] decides which domains may count, [`demand`] knows which need the counters, and
//!   [`serial`] gives each domain its serial.
//! * [`reserve`] takes the counters from the host's own perf, and gives them back.
//! * [`hypercall`] decides which requests of a guest it serves.
//! * `publish` is the only writer of a vCPU's page; apart from one read after a restoration,
//!   nothing here reads that page.
//! * [`nmi`] distinguishes the PMU's interrupts from others, where all are non-maskable ones.
//! * [`profile`] samples the host itself, for its administrator, as long as a `lease` lasts.
//! * `branches` has the branches that a vCPU has taken before its counters overflowed.
//! * [`accounting`] counts what each vCPU executes, and what the hypervisor executes meanwhile, in
//!   each vCPU's [`Account`].
//! * [`hal::Pmu`] is the hardware; [`arch`] knows which PMU it is, its registers, and what they
//!   hold.
//!
//! The crate is `no_std`, free of unsafe code and does not know its hypervisor: `ffi/` binds it to
//! C, `glue/` to Xen and to KVM.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod account;
pub mod accounting;
pub mod arch;
pub(crate) mod branches;
pub mod demand;
pub mod driver;
pub mod guest;
pub mod hal;
pub mod hypercall;
pub(crate) mod lease;
pub mod nmi;
pub mod pcpu;
pub mod policy;
pub mod profile;
pub(crate) mod publish;
pub mod reserve;
pub(crate) mod sampling;
pub mod serial;
pub mod settings;
pub(crate) mod shares;
pub mod stats;
pub mod vcpu;

pub use account::Account;
pub use arch::{Identity, RecordArea, Refusal};
pub use demand::{Demand, VcpuDemand};
pub use driver::Driver;
pub use guest::Guest;
pub use hal::{Pmu, Probe};
pub use nmi::{ExpectedInterrupts, Nmi};
pub use pcpu::{Pcpu, ThisCpu};
pub use policy::{Limits, Policy, PolicyChange};
pub use profile::SampleRing;
pub use publish::Left;
pub use reserve::Reservation;
pub use sampling::Window;
pub use serial::{Serial, Serials};
pub use settings::{HostFacts, Options, Rate, Settings};
pub use stats::Stats;
pub use vcpu::{Registration, Vcpu};
