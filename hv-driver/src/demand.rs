// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts the vCPUs that need the counters, on hosts whose own perf uses the counters as well.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::driver::Driver;
use crate::policy::Policy;

/// The number of a domain's vCPUs that have loaded a configuration, and have a page or are about to
/// register the next one. The hypervisor's structure of the domain holds it; memory that is all
/// zeros stands for none.
#[derive(Debug, Default)]
pub struct Demand(AtomicU32);

impl Demand {
    /// Notes that one more vCPU needs the counters.
    pub fn begin(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Notes that one of these vCPUs has given its page back. Returns whether it was the last one.
    pub fn end(&self) -> bool {
        self.0.fetch_sub(1, Relaxed) == 1
    }
}

impl Driver {
    /// Returns whether the domain needs the counters. A domain that is forbidden to count does not
    /// need them, whatever its vCPUs have loaded.
    pub fn is_needed(&self, demand: &Demand, policy: &Policy) -> bool {
        demand.0.load(Relaxed) != 0 && self.allows(policy, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::{decision, driver};

    #[test]
    fn a_domain_needs_the_counters_from_its_first_vcpu_to_its_last() {
        let (few, policy, demand) = (driver(false), Policy::default(), Demand::default());
        policy.set(&few, false, &decision(true));
        for _ in 0..2 {
            assert!(!few.is_needed(&demand, &policy));
            demand.begin();
            demand.begin();
            assert!(few.is_needed(&demand, &policy));
            assert!(!demand.end() && few.is_needed(&demand, &policy));
            assert!(demand.end() && !few.is_needed(&demand, &policy));
        }
    }

    #[test]
    fn a_domain_that_is_forbidden_needs_no_counters() {
        let (few, all) = (driver(false), driver(true));
        let (policy, demand) = (Policy::default(), Demand::default());
        demand.begin();
        assert!(!few.is_needed(&demand, &policy) && all.is_needed(&demand, &policy));
        policy.set(&all, false, &decision(false));
        assert!(!all.is_needed(&demand, &policy));
        policy.set(&all, false, &decision(true));
        assert!(few.is_needed(&demand, &policy) && all.is_needed(&demand, &policy));
    }
}
