// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts the calls that were made: requests of the device, or hypercalls, by any process.

use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use vm_tests::shared;

static CALLS: LazyLock<&AtomicU64> =
    LazyLock::new(|| &shared::words().expect("there is memory for a page")[0]);

/// Returns the number of calls so far. It has to be called once before the first fork.
pub fn made() -> u64 {
    CALLS.load(Relaxed)
}

/// Adds one call.
pub fn count() {
    CALLS.fetch_add(1, Relaxed);
}
