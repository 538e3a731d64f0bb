// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The device and its pages by themselves, for other interfaces than [`Session`](crate::Session).
//!
//! Nothing here decides when a thread's counters end: [`Device`] is a descriptor with a method per
//! ioctl, [`Pages`] a bound descriptor's mapping.

pub use crate::cpus::cpus_in;
pub use crate::map::Pages;
pub use crate::provider::native::{of_cpu, of_program, of_running, of_single, of_thread};
pub use crate::provider::paravirt::{counting, sampling};
pub use crate::provider::refusal::Surroundings;
pub use crate::sys::{Device, Generation, PerfCount, PerfEvent};
