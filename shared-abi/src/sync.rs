// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The atomics of the shared pages.
//!
//! They are those of `core`, with two exceptions. Loom's model checker uses its own atomics, and
//! the simulator uses `simulated` ones, by which it can preempt the code at each access.

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

/// The types of memory that another privilege level may write while there is a reference to it.
/// They are atomics, and arrays and structures of them.
pub trait Shared: sealed::Shared {}

impl<T: sealed::Shared> Shared for T {}

pub(crate) mod sealed {
    pub trait Shared {}

    impl Shared for super::AtomicI32 {}
    impl Shared for super::AtomicU32 {}
    impl Shared for super::AtomicU64 {}
    impl<T: Shared, const N: usize> Shared for [T; N] {}
}
