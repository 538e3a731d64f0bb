// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides which domains may count: by the host's decision about each, or else by the host's
//! option.

use core::mem::swap;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use shared_abi::hypercall::{DOMAINS_MAX, HvDomain, HvDomains};
use shared_abi::slot::ALL_SLOTS;

use crate::driver::Driver;
use crate::settings::number;

/// The bit that says that the host has decided about the domain. In memory that is all zeros it is
/// clear.
const DECIDED: u64 = 1 << 30;
const ALLOWED: u64 = 1 << 31;
/// Where the limit of overflows begins.
const RATE_SHIFT: u32 = 32;

/// What the host has decided about one domain. The hypervisor's structure of the domain holds it.
///
/// The decision is one word, so that nobody sees half of it: the slots that the domain may use, the
/// two bits above, and the limit of overflows in a millisecond, which is 0 if there is none.
#[derive(Debug, Default)]
pub struct Policy(AtomicU64);

const _: () = assert!(ALL_SLOTS as u64 & (DECIDED | ALLOWED) == 0);

/// What a domain that may count may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// One bit for each slot that the domain may use.
    pub slots: u32,
    /// How many overflows of a vCPU may interrupt in a window of [`Rate`](crate::Rate).
    pub overflows_max: u64,
}

impl Limits {
    /// The limits of a domain that has none of its own.
    pub const NONE: Self = Self { slots: ALL_SLOTS, overflows_max: u64::MAX };
}

/// What the hypervisor has to do after the host has decided about a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PolicyChange {
    /// It has nothing to do: the domain could already count.
    Nothing = 0,
    /// It revokes the domain's vCPUs on every physical CPU, and interrupts them.
    ///
    /// See [`Vcpu::revoke`](crate::Vcpu::revoke). The guest's kernel then sees that nothing
    /// counts.
    Revoke = 1,
    /// It interrupts the domain's vCPUs. The guest's kernel then asks again whether it may count.
    Tell = 2,
}

/// Parses a domain's number, and its own limits of counters and of overflows in a millisecond, if
/// it has any. Both are decimal numbers, and 0 stands for none.
pub fn parse(text: &[u8], enabled: bool) -> Option<HvDomain> {
    let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let domid = number(words.next()?)?;
    let (counters_max, overflows_per_ms) = match words.next() {
        Some(counters) => (number(counters)?, number(words.next()?)?),
        None => (0, 0),
    };
    let wanted = HvDomain { domid, enabled: enabled.into(), counters_max, overflows_per_ms };
    (words.next().is_none() && is_valid(&wanted)).then_some(wanted)
}

/// Returns whether a decision is valid.
pub const fn is_valid(wanted: &HvDomain) -> bool {
    match wanted.enabled {
        0 => wanted.counters_max == 0 && wanted.overflows_per_ms == 0,
        enabled => enabled == 1,
    }
}

impl Policy {
    /// Allows or forbids the domain to count. `controls` says whether it is the control domain.
    ///
    /// The result says to revoke the domain each time that it is forbidden: a second caller may
    /// come before the first one has reached every physical CPU, and must not return before that.
    /// It also says so when the domain's limits change, since the domain may have loaded more than
    /// it may use now.
    pub fn set(&self, driver: &Driver, controls: bool, wanted: &HvDomain) -> PolicyChange {
        let before = driver.limits(self, controls);
        let slots = match wanted.counters_max {
            0 => ALL_SLOTS,
            counters => driver.caps.first(counters),
        };
        let word = match wanted.enabled {
            0 => DECIDED,
            _ => {
                let rate = u64::from(wanted.overflows_per_ms) << RATE_SHIFT;
                DECIDED | ALLOWED | u64::from(slots) | rate
            }
        };
        self.0.store(word, Relaxed);
        match (before, driver.limits(self, controls)) {
            (_, None) => PolicyChange::Revoke,
            (None, Some(_)) => PolicyChange::Tell,
            (Some(before), Some(now)) if before == now => PolicyChange::Nothing,
            _ => PolicyChange::Revoke,
        }
    }
}

impl Driver {
    /// Returns whether the host lets the domain count.
    #[inline(always)]
    pub fn allows(&self, policy: &Policy, controls: bool) -> bool {
        self.limits(policy, controls).is_some()
    }

    /// Returns whether the host lets the domain count with these slots.
    #[inline(always)]
    pub fn admits(&self, policy: &Policy, controls: bool, slots: u32) -> bool {
        self.limits(policy, controls).is_some_and(|limits| slots & !limits.slots == 0)
    }

    /// Returns the domain's limits, or `None` if the host does not let it count.
    #[inline(always)]
    pub fn limits(&self, policy: &Policy, controls: bool) -> Option<Limits> {
        let word = policy.0.load(Relaxed);
        if word == 0 {
            return (self.all_domains || controls).then_some(Limits::NONE);
        }
        if word & ALLOWED == 0 {
            return None;
        }
        let overflows_max = match word >> RATE_SHIFT {
            0 => u64::MAX,
            rate => rate,
        };
        Some(Limits { slots: word as u32 & ALL_SLOTS, overflows_max })
    }

    /// Adds a domain to the answer, if its number is among the lowest of the requested ones for
    /// which the answer has room. The hypervisor may list its domains in any order.
    ///
    /// If it lists a number several times, the answer has it once, and it may count if all of its
    /// domains may: one process of a KVM host can have made several machines.
    pub fn add_domain(&self, answer: &mut HvDomains, policy: &Policy, domid: u32, controls: bool) {
        if domid < answer.first {
            return;
        }
        let limits = self.limits(policy, controls);
        let enabled = limits.is_some().into();
        let Limits { slots, overflows_max } = limits.unwrap_or(Limits::NONE);
        let counters_max = if slots == ALL_SLOTS { 0 } else { slots.count_ones() };
        let overflows_per_ms = u32::try_from(overflows_max).unwrap_or(0);
        let count = answer.count.min(DOMAINS_MAX as u32);
        let mut listed = answer.domain.iter_mut().take(count as usize);
        let place = match listed.position(|other| other.domid >= domid) {
            Some(place) => place,
            None => count as usize,
        };
        let mut later = answer.domain.iter_mut().skip(place);
        let mut moved = HvDomain { domid, enabled, counters_max, overflows_per_ms };
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
            perfmon: [0x0730_0403, 0, 0, 3 | 40 << 5],
            ..Identity::NONE
        };
        let options = Options { all_domains, ..Options::OFF };
        let host =
            HostFacts { ticks_per_ms: 1_000, owns_all: true, can_profile: true, can_record: false };
        Driver::new(&nehalem, &options.settings(&host)).unwrap()
    }

    /// Allows a domain without limits of its own, or forbids it.
    pub(crate) fn decision(allowed: bool) -> HvDomain {
        HvDomain { enabled: allowed.into(), ..HvDomain::default() }
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
        assert_eq!(policy.set(&few, false, &decision(true)), PolicyChange::Tell);
        assert!(few.allows(&policy, false));
        assert_eq!(policy.set(&few, false, &decision(true)), PolicyChange::Nothing);
        assert_eq!(policy.set(&few, false, &decision(false)), PolicyChange::Revoke);
        assert!(!few.allows(&policy, true) && !all.allows(&policy, true));
        assert_eq!(policy.set(&few, false, &decision(false)), PolicyChange::Revoke, "again");
        assert_eq!(Policy::default().set(&all, false, &decision(true)), PolicyChange::Nothing);
        assert_eq!(policy.set(&all, false, &decision(true)), PolicyChange::Tell);
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
        yes.set(&few, false, &decision(true));
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
        yes.set(&few, false, &decision(true));
        assert_eq!(listed(0, &[(7, &yes), (7, &yes), (8, &no)]), [(7, 1), (8, 0)]);
        assert_eq!(listed(0, &[(7, &yes), (8, &yes), (7, &no), (7, &yes)]), [(7, 0), (8, 1)]);
    }

    #[test]
    fn a_domain_gets_the_first_counters_and_its_own_rate() {
        let (few, policy) = (driver(false), Policy::default());
        let within = |counters_max, overflows_per_ms| HvDomain {
            counters_max,
            overflows_per_ms,
            ..decision(true)
        };
        let limits = || few.limits(&policy, false);
        assert_eq!(limits(), None);
        // Nehalem has four general counters and three fixed ones, from slot 16 on.
        for (counters, slots) in [
            (1, 0b1),
            (4, 0b1111),
            (6, 0x3_000f),
            (7, 0x7_000f),
            (9, 0x7_000f),
            (u32::MAX, 0x7_000f),
        ] {
            policy.set(&few, false, &within(counters, 0));
            assert_eq!(limits(), Some(Limits { slots, overflows_max: u64::MAX }));
            assert!(few.admits(&policy, false, slots) && few.allows(&policy, false));
            for beyond in [slots + 1, 1 << 20, 1 << 23] {
                assert!(!few.admits(&policy, false, beyond), "{beyond:#x} of {slots:#x}");
            }
        }
        policy.set(&few, false, &within(0, u32::MAX));
        assert_eq!(limits(), Some(Limits { overflows_max: u32::MAX.into(), ..Limits::NONE }));
        policy.set(&few, false, &decision(true));
        assert_eq!(limits(), Some(Limits::NONE));
        assert!(few.admits(&policy, false, ALL_SLOTS));
        policy.set(&few, false, &decision(false));
        assert_eq!((limits(), few.admits(&policy, false, 0)), (None, false));
    }

    #[test]
    fn a_domain_whose_limits_change_is_looked_at_everywhere() {
        let (all, policy) = (driver(true), Policy::default());
        let set = |counters_max, overflows_per_ms| {
            let wanted = HvDomain { counters_max, overflows_per_ms, ..decision(true) };
            policy.set(&all, false, &wanted)
        };
        assert_eq!(set(0, 0), PolicyChange::Nothing);
        for (counters, rate) in [(2, 0), (3, 0), (3, 5), (0, 0)] {
            assert_eq!(set(counters, rate), PolicyChange::Revoke);
            assert_eq!(set(counters, rate), PolicyChange::Nothing, "again");
        }
        policy.set(&all, false, &decision(false));
        assert_eq!(set(2, 7), PolicyChange::Tell);
    }

    #[test]
    fn the_control_domain_loses_what_its_first_decision_takes_from_it() {
        let few = driver(false);
        let without_limits = decision(true);
        let two_counters = HvDomain { counters_max: 2, ..without_limits };
        let five_per_ms = HvDomain { overflows_per_ms: 5, ..without_limits };
        // Only the control domain counts before anything was decided about it.
        for (wanted, of_control_domain) in [
            (without_limits, PolicyChange::Nothing),
            (two_counters, PolicyChange::Revoke),
            (five_per_ms, PolicyChange::Revoke),
        ] {
            for (controls, expected) in [(true, of_control_domain), (false, PolicyChange::Tell)] {
                let change = Policy::default().set(&few, controls, &wanted);
                assert_eq!(change, expected, "controls: {controls}, {wanted:?}");
            }
        }
    }

    #[test]
    fn a_list_says_what_the_limits_are() {
        let (few, policy) = (driver(false), Policy::default());
        let listed = || {
            let mut answer = HvDomains::new_zeroed();
            few.add_domain(&mut answer, &policy, 7, false);
            let HvDomain { enabled, counters_max, overflows_per_ms, .. } = answer.domain[0];
            [enabled, counters_max, overflows_per_ms]
        };
        assert_eq!(listed(), [0, 0, 0]);
        for limits in [[1, 2, 9], [1, 0, 9], [1, 7, 0], [1, 0, 0]] {
            let [enabled, counters_max, overflows_per_ms] = limits;
            let wanted = HvDomain { domid: 7, enabled, counters_max, overflows_per_ms };
            policy.set(&few, false, &wanted);
            assert_eq!(listed(), limits);
        }
    }

    #[test]
    fn a_decision_is_a_number_or_three() {
        let parsed = |text: &str, enabled| {
            let wanted = parse(text.as_bytes(), enabled)?;
            let HvDomain { domid, enabled, counters_max, overflows_per_ms } = wanted;
            Some([domid, enabled, counters_max, overflows_per_ms])
        };
        assert_eq!(parsed("1234\n", true), Some([1234, 1, 0, 0]));
        assert_eq!(parsed("1234", false), Some([1234, 0, 0, 0]));
        assert_eq!(parsed(" 1234 2\t70\n", true), Some([1234, 1, 2, 70]));
        assert_eq!(parsed("1234 0 0", false), Some([1234, 0, 0, 0]));
        assert_eq!(parsed("1234 2 0", false), None, "limits of who is forbidden");
        for text in ["", " ", "x", "12x", "-1", "1234 2", "1234 2 x", "1234 2 70 1", "4294967296"] {
            assert_eq!(parsed(text, true), None, "{text}");
        }
    }
}
