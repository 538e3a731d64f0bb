// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gives each thread of a guest counters of its own, in the guest's kernel.
//!
//! A thread's counters live in a [`ThreadPmu`]. When the thread is switched in, its configuration
//! is loaded on the [`Vcpu`] unless it is loaded already, and `Start*` is sampled; when it is
//! switched out, the counts since then are added to its sums. [`publish`] publishes both in the
//! thread page, where the thread itself reads them.
//!
//! This crate makes the decisions; [`hal::Kernel`] has all accesses to the kernel.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod cost;
pub mod cpu_wide;
pub mod hal;
pub mod ioctl;
pub mod loaded;
pub mod local;
pub mod mapping;
pub mod numbers;
pub mod overflow;
pub mod perf;
pub mod policy;
pub mod report;
pub mod requests;
pub mod restore;
pub mod ring;
pub mod shown;
pub mod stats;
pub mod surplus;
#[cfg(test)]
mod testing;
pub mod thread;
pub mod users;
pub mod watch;

pub use cpu_wide::Admission;
pub(crate) use loaded::hypercall;
pub use loaded::{handshake, publish, vcpu};
pub use local::LocalVcpu;
pub use report::Reporter;
pub use ring::Ring;
pub use stats::Stats;
pub use thread::ThreadPmu;
pub use vcpu::{Counting, ThisVcpu, Vcpu};
