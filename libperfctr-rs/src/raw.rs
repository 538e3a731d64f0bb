// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Direct access to the device and its pages, for other interfaces than
//! [`Session`](crate::Session).
//!
//! [`Device`] is a descriptor with a method for each ioctl, and [`Pages`] is a bound descriptor's
//! mapping. Dropping them does not stop a thread's counters.

pub use crate::cpus::online;
pub use crate::map::Pages;
pub use crate::provider::native::{of_thread, perf_numbers};
pub use crate::provider::paravirt::{counting, sampling};
pub use crate::provider::refusal::Surroundings;
pub use crate::sys::{Device, Generation, PerfEvent};
