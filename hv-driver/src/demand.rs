// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts the vCPUs that need the counters, on hosts whose own perf uses the counters as well.

use core::mem;
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
    fn begin(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Notes that one of these vCPUs has given its page back. Returns whether it was the last one.
    fn end(&self) -> bool {
        self.0.fetch_sub(1, Relaxed) == 1
    }
}

/// One vCPU's part of a [`Demand`]. The vCPU keeps it when it gives its page back.
///
/// The driver numbers the occasions on which it takes the counters from the host's perf, from 1 on.
/// Memory that is all zeros stands for a vCPU that needs no counters.
#[derive(Debug, Default)]
pub struct VcpuDemand {
    /// On which occasion the vCPU got the counters; 0 if it does not have them.
    taken: u64,
    /// Whether the domain's [`Demand`] has this vCPU.
    is_counted: bool,
}

impl VcpuDemand {
    /// Notes that the vCPU needs the counters. `taken` is the last occasion on which the driver has
    /// taken them, or 0 if perf has them now.
    pub fn begin(&mut self, demand: &Demand, taken: u64) {
        if !mem::replace(&mut self.is_counted, true) {
            demand.begin();
        }
        self.taken = taken;
    }

    /// Notes that the vCPU no longer needs them. Returns whether it was the last vCPU of its domain
    /// that did.
    pub fn end(&mut self, demand: &Demand) -> bool {
        mem::take(self).is_counted && demand.end()
    }

    /// Returns whether the driver has kept the counters since the vCPU got them.
    /// `taken` is as for [`begin`](Self::begin).
    pub const fn has_counters(&self, taken: u64) -> bool {
        taken != 0 && self.taken == taken
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
    fn a_vcpu_that_asks_again_is_one_and_ends_once() {
        let (mut first, mut second) = (VcpuDemand::default(), VcpuDemand::default());
        let demand = Demand::default();
        for _ in 0..2 {
            assert!(!first.end(&demand), "it needs nothing");
            first.begin(&demand, 0);
            first.begin(&demand, 7);
            second.begin(&demand, 7);
            assert!(!first.end(&demand), "the second vCPU needs them");
            assert!(!first.end(&demand), "it has ended before");
            assert!(second.end(&demand));
        }
    }

    #[test]
    fn a_vcpu_has_the_counters_until_the_driver_gives_them_back() {
        let (mut vcpu, demand) = (VcpuDemand::default(), Demand::default());
        assert!(!vcpu.has_counters(0) && !vcpu.has_counters(7));
        vcpu.begin(&demand, 0);
        assert!(!vcpu.has_counters(0) && !vcpu.has_counters(7), "perf has them");
        vcpu.begin(&demand, 7);
        assert!(
            vcpu.has_counters(7) && !vcpu.has_counters(0) && !vcpu.has_counters(8),
            "until they are taken anew"
        );
        vcpu.end(&demand);
        assert!(!vcpu.has_counters(7));
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
