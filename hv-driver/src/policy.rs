// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides which domains may count: by what the host has set for each, or else by its option.

use core::mem::swap;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use shared_abi::hypercall::{DOMAINS_MAX, HvDomain, HvDomains};

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

    /// Adds a domain to the answer, if its number is among the lowest that are wanted and have room
    /// there.  The hypervisor may list its domains in any order.
    ///
    /// If it lists a number several times, the answer has it once, and it may count if all of its
    /// domains may: one process of a KVM host can have made several machines.
    pub fn add_domain(&self, answer: &mut HvDomains, policy: &Policy, domid: u32, controls: bool) {
        if domid < answer.first {
            return;
        }
        let enabled = self.allows(policy, controls).into();
        let count = answer.count.min(DOMAINS_MAX as u32);
        let mut listed = answer.domain.iter_mut().take(count as usize);
        let place = match listed.position(|other| other.domid >= domid) {
            Some(place) => place,
            None => count as usize,
        };
        let mut later = answer.domain.iter_mut().skip(place);
        let mut moved = HvDomain { domid, enabled, reserved: 0 };
        if place < count as usize
            && let Some(same) = later.next()
        {
            if same.domid == domid {
                same.enabled &= enabled;
                return;
            }
            swap(same, &mut moved);
        }
        later.for_each(|next| swap(next, &mut moved));
        answer.count = (count + 1).min(DOMAINS_MAX as u32);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    extern crate std;
    use std::vec::Vec;

    use zerocopy::FromZeros;

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

    /// The numbers from this one on, of domains in this order, and whether each may count.
    fn listed(first: u32, domains: &[(u32, &Policy)]) -> Vec<(u32, u32)> {
        let mut answer = HvDomains { first, ..HvDomains::new_zeroed() };
        for (domid, policy) in domains {
            driver(false).add_domain(&mut answer, policy, *domid, false);
        }
        answer.domain.iter().take(answer.count as usize).map(|d| (d.domid, d.enabled)).collect()
    }

    #[test]
    fn domains_are_listed_in_the_order_of_their_numbers() {
        let (few, no, yes) = (driver(false), Policy::default(), Policy::default());
        yes.set(&few, false, true);
        let domains = [(9, &no), (3, &yes), (u32::MAX, &yes), (5, &no), (4, &no)];
        assert_eq!(listed(0, &domains), [(3, 1), (4, 0), (5, 0), (9, 0), (u32::MAX, 1)]);
        assert_eq!(listed(5, &domains), [(5, 0), (9, 0), (u32::MAX, 1)]);
        assert_eq!(listed(10, &domains[..2]), []);
    }

    #[test]
    fn an_answer_that_is_full_has_the_lowest_numbers() {
        let no = Policy::default();
        let most = DOMAINS_MAX as u32;
        for order in [1, 7, 2 * most - 1] {
            // All numbers below twice as many, in different orders.
            let domains = (0..2 * most).map(|n| (n * order % (2 * most), &no));
            let domains: Vec<_> = domains.collect();
            assert_eq!(listed(0, &domains), (0..most).map(|n| (n, 0)).collect::<Vec<_>>());
            let rest = (most..2 * most).map(|n| (n, 0)).collect::<Vec<_>>();
            assert_eq!(listed(most, &domains), rest);
        }
    }

    #[test]
    fn a_process_with_several_machines_is_listed_once() {
        let (few, no, yes) = (driver(false), Policy::default(), Policy::default());
        yes.set(&few, false, true);
        assert_eq!(listed(0, &[(7, &yes), (7, &yes), (8, &no)]), [(7, 1), (8, 0)]);
        assert_eq!(listed(0, &[(7, &yes), (8, &yes), (7, &no), (7, &yes)]), [(7, 0), (8, 1)]);
    }
}
