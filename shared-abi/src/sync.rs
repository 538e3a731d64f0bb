// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The atomics of the shared pages: `core`'s, or loom's when its model checker runs the protocol.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
