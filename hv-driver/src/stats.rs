// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts the driver's work on one physical CPU, and its cost.

use core::cell::Cell;

use shared_abi::hypercall::{HOOK_TOGGLE, HOOKS, HvHookStats, HvStats};
use shared_abi::read::Counters;

use crate::arch::RecordArea;
use crate::hal::Pmu;

/// The statistics of one physical CPU.
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    sum: HvStats,
}

impl Stats {
    /// Makes the statistics of a CPU on which the driver has done nothing.
    pub const fn new() -> Self {
        const NONE: HvHookStats =
            HvHookStats { calls: 0, instructions: 0, pmc_reads: 0, msr_reads: 0, msr_writes: 0 };
        Self {
            sum: HvStats {
                hook: [NONE; HOOKS],
                hypercalls: 0,
                residue_clears: 0,
                reserved: [0; 5],
            },
        }
    }

    pub(crate) fn residue_cleared(&mut self) {
        self.sum.residue_clears += 1;
    }

    /// Counts a hypercall.
    pub fn hypercall(&mut self) {
        self.sum.hypercalls += 1;
    }

    /// Counts an entry of kind `hook` (`HOOK_*`), with its instructions and its accesses to the
    /// PMU.
    pub(crate) fn entered<P>(&mut self, hook: usize, instructions: u64, accesses: &Metered<'_, P>) {
        if let Some(stats) = self.sum.hook.get_mut(hook) {
            stats.calls += 1;
            stats.instructions += instructions;
            stats.pmc_reads += accesses.pmc_reads.get();
            stats.msr_reads += accesses.msr_reads.get();
            stats.msr_writes += accesses.msr_writes.get();
        }
    }

    /// Counts a change of the guest's mode, in which `pmc_reads` counters were read, without
    /// measuring its instructions.
    #[inline(always)]
    pub(crate) fn toggled(&mut self, pmc_reads: u64) {
        if let Some(stats) = self.sum.hook.get_mut(HOOK_TOGGLE) {
            stats.calls += 1;
            stats.pmc_reads += pmc_reads;
        }
    }

    /// Adds this CPU's counts to `total`.
    pub fn add_to(&self, total: &mut HvStats) {
        for (total, own) in total.hook.iter_mut().zip(&self.sum.hook) {
            total.calls += own.calls;
            total.instructions += own.instructions;
            total.pmc_reads += own.pmc_reads;
            total.msr_reads += own.msr_reads;
            total.msr_writes += own.msr_writes;
        }
        total.hypercalls += self.sum.hypercalls;
        total.residue_clears += self.sum.residue_clears;
    }
}

impl Default for Stats {
    fn default() -> Self {
        Self::new()
    }
}

/// A PMU that counts the accesses to itself.
#[derive(Debug)]
pub struct Metered<'a, P> {
    pmu: &'a P,
    pmc_reads: Cell<u64>,
    msr_reads: Cell<u64>,
    msr_writes: Cell<u64>,
}

impl<'a, P: Pmu> Metered<'a, P> {
    /// Makes a PMU whose accesses are counted from 0.
    pub const fn new(pmu: &'a P) -> Self {
        Self { pmu, pmc_reads: Cell::new(0), msr_reads: Cell::new(0), msr_writes: Cell::new(0) }
    }
}

impl<P: Pmu> Counters for Metered<'_, P> {
    fn counter(&self, index: u32) -> u64 {
        self.pmc_reads.set(self.pmc_reads.get() + 1);
        self.pmu.counter(index)
    }

    fn clock(&self) -> u64 {
        self.pmu.clock()
    }
}

impl<P: Pmu> Pmu for Metered<'_, P> {
    fn read_register(&self, register: u32) -> u64 {
        self.msr_reads.set(self.msr_reads.get() + 1);
        self.pmu.read_register(register)
    }

    fn write_register(&self, register: u32, value: u64) {
        self.msr_writes.set(self.msr_writes.get() + 1);
        self.pmu.write_register(register, value);
    }

    fn load_at_switch(&self, inside: u64, outside: u64) {
        self.pmu.load_at_switch(inside, outside);
    }

    fn expect_interrupts(&self, slots: u32, seen: bool) {
        self.pmu.expect_interrupts(slots, seen);
    }

    fn record_area(&self) -> Option<&RecordArea> {
        self.pmu.record_area()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Counters for Nothing {
        fn counter(&self, index: u32) -> u64 {
            u64::from(index) + 1
        }
        fn clock(&self) -> u64 {
            7
        }
    }

    impl Pmu for Nothing {
        fn read_register(&self, register: u32) -> u64 {
            u64::from(register) + 2
        }
        fn write_register(&self, _: u32, _: u64) {}
        fn load_at_switch(&self, _: u64, _: u64) {}
    }

    #[test]
    fn everything_is_counted_and_added_up() {
        let mut stats = Stats::default();
        for round in 1..3 {
            let metered = Metered::new(&Nothing);
            assert_eq!((metered.counter(4), metered.clock(), metered.read_register(5)), (5, 7, 7));
            (0..2).for_each(|_| _ = metered.read_register(5));
            (0..5).for_each(|_| metered.write_register(6, 0));
            stats.entered(1, 100 * round, &metered);
            stats.hypercall();
            stats.residue_cleared();
        }
        stats.entered(HOOKS, 1, &Metered::new(&Nothing));
        let mut total = HvStats::default();
        (0..3).for_each(|_| stats.add_to(&mut total));
        let hook = total.hook[1];
        let accesses = [hook.pmc_reads, hook.msr_reads, hook.msr_writes];
        assert_eq!((hook.calls, hook.instructions, accesses), (6, 900, [6, 18, 30]));
        assert_eq!((total.hypercalls, total.residue_clears), (6, 6));
        assert_eq!(total.hook[0].calls, 0);
    }
}
