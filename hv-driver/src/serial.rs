// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Numbers of domains, of which none is ever given twice.
//!
//! Whose events a counter holds is remembered by such a number, and not by the host's own, which a
//! later domain may get: it would inherit what the earlier one has left in the counters.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// A domain's number; 0 stands for every domain without pages.
pub type DomainSerial = u64;

/// The last number that was given, of all domains of the host.
#[derive(Debug, Default)]
pub struct Serials(AtomicU64);

impl Serials {
    /// None was given yet.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// A number that no domain has.
    fn next(&self) -> DomainSerial {
        self.0.fetch_add(1, Relaxed) + 1
    }
}

/// The number of one domain, in the hypervisor's structure of that; all zeroes until it has one.
#[derive(Debug, Default)]
pub struct Serial(AtomicU64);

impl Serial {
    /// The domain's number, which it gets now if it has none.
    ///
    /// Several of its vCPUs may ask at once, and no lock is taken for it: what matters is that they
    /// agree.  A number that one of them has taken in vain stays unused.
    pub fn of(&self, serials: &Serials) -> DomainSerial {
        match self.0.load(Relaxed) {
            0 => {
                let new = serials.next();
                self.0.compare_exchange(0, new, Relaxed, Relaxed).map_or_else(|is| is, |_| new)
            }
            serial => serial,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn a_domain_keeps_its_number_and_shares_it_with_nobody() {
        let (serials, domains) = (Serials::new(), [const { Serial(AtomicU64::new(0)) }; 3]);
        let first = domains.each_ref().map(|domain| domain.of(&serials));
        assert_eq!(first, [1, 2, 3]);
        assert_eq!(domains.each_ref().map(|domain| domain.of(&serials)), first);
        assert_eq!(Serial::default().of(&serials), 4, "of a domain that comes later");
    }

    #[test]
    fn vcpus_that_ask_at_once_agree() {
        let (serials, domain) = (Serials::new(), Serial::default());
        let ask = || domain.of(&serials);
        let told = std::thread::scope(|scope| {
            let threads = [0; 4].map(|_| scope.spawn(ask));
            threads.map(|thread| thread.join().expect("does not panic"))
        });
        assert!(told[0] != 0 && told.iter().all(|&number| number == told[0]), "{told:?}");
    }
}
