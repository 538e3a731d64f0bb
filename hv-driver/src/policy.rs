// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides which domains may count: by what the host has set for each, or else by its option.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::driver::Driver;

/// The host has not decided about the domain.  Memory of zeroes has this value.
const DEFAULT: u32 = 0;
const ALLOWED: u32 = 1;
const FORBIDDEN: u32 = 2;

/// What the host has decided about one domain.  The hypervisor's structure of the domain holds it.
#[derive(Debug, Default)]
pub struct Policy(AtomicU32);

/// What the hypervisor has to do after the host has decided about a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PolicyChange {
    /// It has nothing to do: the domain could already count.
    Nothing = 0,
    /// It revokes the domain's vCPUs on every physical CPU, and interrupts them.
    ///
    /// See [`Vcpu::revoke`](crate::Vcpu::revoke).  The guest's kernel then sees that nothing
    /// counts.
    Revoke = 1,
    /// It interrupts the domain's vCPUs.  The guest's kernel then asks again whether it may count.
    Tell = 2,
}

impl Policy {
    /// Allows or forbids the domain to count.  `controls` says whether it is the control domain.
    ///
    /// A domain is revoked each time that it is forbidden.  A second caller may come before the
    /// first one has reached every physical CPU, and must not return before that.
    pub fn set(&self, driver: &Driver, controls: bool, allowed: bool) -> PolicyChange {
        let before = driver.allows(self, controls);
        self.0.store(if allowed { ALLOWED } else { FORBIDDEN }, Relaxed);
        match (before, allowed) {
            (_, false) => PolicyChange::Revoke,
            (false, true) => PolicyChange::Tell,
            (true, true) => PolicyChange::Nothing,
        }
    }
}

impl Driver {
    /// Returns whether the host lets the domain count.
    #[inline(always)]
    pub fn allows(&self, policy: &Policy, controls: bool) -> bool {
        match policy.0.load(Relaxed) {
            DEFAULT => self.all_domains || controls,
            setting => setting == ALLOWED,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::arch::Identity;
    use crate::settings::{HostFacts, Options};

    pub(crate) fn driver(all_domains: bool) -> Driver {
        let nehalem = Identity {
            vendor: [0x756e_6547, 0x4965_6e69, 0x6c65_746e],
            signature: 0x106a3,
            perfmon: [0x0730_0403, 0, 0, 0x603],
            ..Identity::NONE
        };
        let options = Options { all_domains, ..Options::OFF };
        let host =
            HostFacts { ticks_per_ms: 1_000, owns_all: true, can_profile: true, can_record: false };
        Driver::new(&nehalem, &options.settings(&host)).unwrap()
    }

    #[test]
    fn who_is_not_spoken_of_counts_if_it_controls_the_host_or_all_may() {
        let nothing = Policy::default();
        for (all, controls, allowed) in
            [(false, false, false), (false, true, true), (true, false, true), (true, true, true)]
        {
            assert_eq!(driver(all).allows(&nothing, controls), allowed, "{all} {controls}");
        }
    }

    #[test]
    fn what_is_said_of_a_domain_counts_more_than_what_is_said_of_all() {
        let (few, all) = (driver(false), driver(true));
        let policy = Policy::default();
        assert_eq!(policy.set(&few, false, true), PolicyChange::Tell);
        assert!(few.allows(&policy, false));
        assert_eq!(policy.set(&few, false, true), PolicyChange::Nothing);
        assert_eq!(policy.set(&few, false, false), PolicyChange::Revoke);
        assert!(!few.allows(&policy, true) && !all.allows(&policy, true));
        assert_eq!(policy.set(&few, false, false), PolicyChange::Revoke, "again");
        assert_eq!(Policy::default().set(&all, false, true), PolicyChange::Nothing);
        assert_eq!(policy.set(&all, false, true), PolicyChange::Tell);
    }
}
