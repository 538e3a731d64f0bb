// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gives each domain its serial, and gives no serial twice.
//!
//! The driver remembers by a serial which domain's events a counter holds. The host's own number of
//! a domain would not do, since a later domain may get it, and could then read what the earlier one
//! has left in the counters.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// The serial of a domain. 0 stands for every domain without pages.
pub type DomainSerial = u64;

/// The last serial that was given to any domain of the host.
#[derive(Debug, Default)]
pub struct Serials(AtomicU64);

impl Serials {
    /// Makes the state in which no serial was given yet.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns a serial that no domain has had.
    fn next(&self) -> DomainSerial {
        self.0.fetch_add(1, Relaxed) + 1
    }
}

/// The serial of one domain. The hypervisor's structure of the domain holds it; it is all zeroes
/// until the domain has a serial.
#[derive(Debug, Default)]
pub struct Serial(AtomicU64);

impl Serial {
    /// Returns the domain's serial. A domain without one gets one now.
    ///
    /// Several of its vCPUs may ask at the same time without a lock, and all get the same serial.
    /// A serial that lost this race stays unused.
    pub fn of(&self, serials: &Serials) -> DomainSerial {
        match self.0.load(Relaxed) {
            0 => self.agree(serials.next()),
            serial => serial,
        }
    }

    /// Gives the domain this serial, unless another vCPU of the domain was first. Returns the
    /// domain's serial.
    fn agree(&self, new: DomainSerial) -> DomainSerial {
        self.0.compare_exchange(0, new, Relaxed, Relaxed).map_or_else(|is| is, |_| new)
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
        // Each has found that the domain has no serial, and has got a new one for it.
        let serial = Serial::default();
        assert_eq!([7, 8, 9].map(|new| serial.agree(new)), [7; 3]);
        assert_eq!(serial.of(&Serials::new()), 7);
    }
}
