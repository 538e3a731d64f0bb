// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts holders, as the kernel's `refcount_t` does.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;

/// Adds one to a count unless it is 0, and returns whether it did. A new holder joins others
/// without a lock. The first holder needs the lock, since the object may be about to end.
pub(crate) fn increment_unless_zero(holders: &AtomicU32) -> bool {
    let more = |holders: u32| if holders > 0 { holders.checked_add(1) } else { None };
    holders.fetch_update(SeqCst, SeqCst, more).is_ok()
}
