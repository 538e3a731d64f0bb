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

/// Memory that another privilege level may write while there is a reference to it: atomics, and
/// arrays and structures of nothing else.
pub trait Shared: sealed::Shared {}

impl<T: sealed::Shared> Shared for T {}

pub(crate) mod sealed {
    pub trait Shared {}

    impl Shared for super::AtomicI32 {}
    impl Shared for super::AtomicU32 {}
    impl Shared for super::AtomicU64 {}
    impl<T: Shared, const N: usize> Shared for [T; N] {}
}
