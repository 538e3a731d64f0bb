// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! How many calls were made: requests of the device, or hypercalls, by whichever process.

use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use vm_tests::shared;

static CALLS: LazyLock<&AtomicU64> =
    LazyLock::new(|| &shared::words().expect("there is memory for a page")[0]);

/// So far.  To be asked once before the first fork.
pub fn made() -> u64 {
    CALLS.load(Relaxed)
}

/// One more.
pub fn count() {
    CALLS.fetch_add(1, Relaxed);
}
