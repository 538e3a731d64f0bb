// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The atomics of the shared pages: `core`'s; loom's when its model checker runs the protocol;
//! `simulated` ones, whose every access is a point of preemption, in the simulator.

#[cfg(sim)]
pub mod simulated;

#[cfg(not(any(loom, sim)))]
pub use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(sim)]
pub use core::sync::atomic::{Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(sim)]
pub use simulated::{AtomicI32, AtomicU32, AtomicU64};
