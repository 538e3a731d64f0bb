// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! This file defines every bound of the interface.

use crate::arch;

/// Size of each shared page in bytes: one page frame.
pub const PAGE_BYTES: usize = 4096;

/// Maximal number of virtual counters of one thread. perfctr's C structures hold 18, too.
pub const MAX_COUNTERS: usize = 18;

/// Number of general-purpose counters that a page has room for. The book's decision record 27 says
/// how the ABI's next major number makes room for more.
pub const MAX_GENERAL: usize = 16;

/// Number of fixed-function counters that a page has room for.
pub const MAX_FIXED: usize = 8;

/// Number of physical counters that a page has room for: the general ones come first, then the
/// fixed ones.
pub const MAX_SLOTS: usize = MAX_GENERAL + MAX_FIXED;

/// Maximal number of virtual CPUs of a guest with which the module works.
pub const MAX_VCPUS: usize = 512;

/// The longest distance to an overflow, unit: events.
pub const PERIOD_EVENTS_MAX: u64 = arch::PRESET_EVENTS_MAX;

/// Maximal number of pages of one thread's ring for samples.
pub const RING_PAGES_MAX: u32 = 64;

/// Maximal number of callers that a record can have room for. A record then takes a quarter of a
/// page.
pub const RING_CALLERS_MAX: u32 = 124;

/// Number of attempts after which a direct read gives up with an error.
///
/// An attempt takes some tens of instructions. Even on a vCPU that is preempted every millisecond,
/// at least one of two attempts completes. A hundred failures in a row mean a broken page.
pub const READ_ATTEMPTS_MAX: u32 = 100;
