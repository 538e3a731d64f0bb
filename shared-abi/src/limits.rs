// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Every bound of the interface, in one place.

use crate::arch;

/// Size of each shared page in bytes: one page frame.
pub const PAGE_BYTES: usize = 4096;

/// Virtual counters of one thread.  18 is what perfctr's C structures hold.
pub const MAX_COUNTERS: usize = 18;

/// General-purpose counters that a page has room for.  The book's decision record 27 says how the
/// ABI's next major number makes room for more.
pub const MAX_GENERAL: usize = 16;

/// Fixed-function counters that a page has room for.
pub const MAX_FIXED: usize = 8;

/// Physical counters that a page has room for: general ones first, fixed ones behind them.
pub const MAX_SLOTS: usize = MAX_GENERAL + MAX_FIXED;

/// Virtual CPUs of one guest that the guest's module accepts.
pub const MAX_VCPUS: usize = 512;

/// Longest distance to an overflow, unit: events.
pub const PERIOD_EVENTS_MAX: u64 = arch::PRESET_EVENTS_MAX;

/// Pages of one thread's ring for samples.
pub const RING_PAGES_MAX: u32 = 64;

/// Callers that a record has room for: it takes a quarter of a page then.
pub const RING_CALLERS_MAX: u32 = 124;

/// Attempts of one direct read before it gives up with an error.
///
/// An attempt is some tens of instructions, so even a vCPU that is preempted every millisecond
/// completes one of two attempts; a hundred failures in a row mean a broken page.
pub const READ_ATTEMPTS_MAX: u32 = 100;
