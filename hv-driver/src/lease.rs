// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Implements the lease of samples and accounts, which ends by itself unless it is renewed.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// A lease of samples or accounts. All times are the host's time-stamp counter.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    /// The TSC at which it ends, or 0 if there is none.
    until_tsc: AtomicU64,
}

impl Lease {
    /// Makes the lease end after this many ticks from now.
    pub(crate) fn renew(&self, now: u64, ticks: u64) {
        // 0 has a meaning of its own.
        self.until_tsc.store(now.wrapping_add(ticks).max(1), Relaxed);
    }

    /// Ends the lease. Returns whether there was one; it may have ended by itself.
    pub(crate) fn end(&self) -> bool {
        self.until_tsc.swap(0, Relaxed) != 0
    }

    /// Returns whether there is a lease that has not ended.
    pub(crate) fn lasts(&self, now: u64) -> bool {
        let until = self.until_tsc.load(Relaxed);
        until != 0 && until.wrapping_sub(now) as i64 > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_until_it_ends() {
        for start in [0, 5, u64::MAX - 3] {
            let lease = Lease::default();
            assert!(!lease.lasts(start) && !lease.end(), "there is none");
            lease.renew(start, 10);
            let after = |ticks| lease.lasts(start.wrapping_add(ticks));
            assert_eq!([0, 9, 10, 11].map(after), [true, true, false, false], "from {start}");
            lease.renew(start.wrapping_add(9), 10);
            assert!(after(18) && !after(19));
            assert!(lease.end() && !lease.end());
            assert!(!after(0));
        }
    }

    #[test]
    fn one_that_ends_at_0_is_there() {
        let lease = Lease::default();
        lease.renew(u64::MAX, 1);
        assert!(lease.lasts(u64::MAX) && lease.end());
    }
}
