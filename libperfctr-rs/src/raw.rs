// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The device and its pages by themselves, for other interfaces than [`Session`](crate::Session).
//!
//! Nothing here decides when a thread's counters end: [`Device`] is a descriptor with a method per
//! ioctl, [`Pages`] a bound descriptor's mapping.

pub use crate::cpus::online;
pub use crate::map::Pages;
pub use crate::provider::native::of_thread;
pub use crate::provider::paravirt::{counting, sampling};
pub use crate::provider::refusal::Surroundings;
pub use crate::sys::{Device, Generation, PerfEvent};
