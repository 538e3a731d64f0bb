// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Which domains may count: what the host has said of each, or else what its option says of all.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::driver::Driver;

/// Nothing was said: memory of zeroes.
const DEFAULT: u32 = 0;
const ALLOWED: u32 = 1;
const FORBIDDEN: u32 = 2;

/// What the host has said of one domain, in the hypervisor's structure of that.
#[derive(Debug, Default)]
pub struct Policy(AtomicU32);

/// What the hypervisor has to do after the host has said something of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PolicyChange {
    /// Nothing: the domain could count already.
    Nothing = 0,
    /// To revoke it on every physical CPU, and to interrupt the domain's vCPUs.
    ///
    /// See [`Vcpu::revoke`](crate::Vcpu::revoke).  Their kernel looks what counts now.
    Revoke = 1,
    /// To interrupt the domain's vCPUs: their kernel asks again whether it may count.
    Tell = 2,
}

impl Policy {
    /// The host allows or forbids the domain to count; `controls`: it is the control domain.
    ///
    /// Who is forbidden is stopped each time that this is said: who says it for the second time may
    /// have come before the first one had reached every physical CPU.
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
    /// Whether the host lets a domain count.
    #[inline(always)]
    pub fn allows(&self, policy: &Policy, controls: bool) -> bool {
        match policy.0.load(Relaxed) {
            DEFAULT => self.all_domains || controls,
            said => said == ALLOWED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Identity;
    use crate::settings::{HostFacts, Options};

    fn driver(all_domains: bool) -> Driver {
        let nehalem = Identity {
            vendor: [0x756e_6547, 0x4965_6e69, 0x6c65_746e],
            signature: 0x106a3,
            perfmon: [0x0730_0403, 0, 0, 0x603],
            ..Identity::NONE
        };
        let options = Options { all_domains, ..Options::OFF };
        let host = HostFacts { ticks_per_ms: 1_000, owns_all: true };
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
