// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What the driver did on one physical CPU, and what it cost.

use core::cell::Cell;

use shared_abi::hypercall::{HOOKS, HvHookStats, HvStats};
use shared_abi::read::Counters;

use crate::hal::Pmu;

/// Counts of one physical CPU.
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    sum: HvStats,
}

impl Stats {
    /// Nothing done.
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

    /// A hypercall was made.
    pub fn hypercall(&mut self) {
        self.sum.hypercalls += 1;
    }

    /// An entry of kind `hook` (`HOOK_*`) has executed `instructions`, and accessed the PMU.
    pub(crate) fn entered<P>(&mut self, hook: usize, instructions: u64, accesses: &Metered<'_, P>) {
        if let Some(stats) = self.sum.hook.get_mut(hook) {
            stats.calls += 1;
            stats.instructions += instructions;
            stats.pmc_reads += accesses.pmc_reads.get();
            stats.msr_reads += accesses.msr_reads.get();
            stats.msr_writes += accesses.msr_writes.get();
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

/// A PMU that counts accesses to it.
#[derive(Debug)]
pub struct Metered<'a, P> {
    pmu: &'a P,
    pmc_reads: Cell<u64>,
    msr_reads: Cell<u64>,
    msr_writes: Cell<u64>,
}

impl<'a, P: Pmu> Metered<'a, P> {
    /// No access yet.
    pub const fn new(pmu: &'a P) -> Self {
        Self { pmu, pmc_reads: Cell::new(0), msr_reads: Cell::new(0), msr_writes: Cell::new(0) }
    }
}

impl<P: Pmu> Counters for Metered<'_, P> {
    fn rdpmc(&self, index: u32) -> u64 {
        self.pmc_reads.set(self.pmc_reads.get() + 1);
        self.pmu.rdpmc(index)
    }

    fn rdtsc(&self) -> u64 {
        self.pmu.rdtsc()
    }
}

impl<P: Pmu> Pmu for Metered<'_, P> {
    fn rdmsr(&self, msr: u32) -> u64 {
        self.msr_reads.set(self.msr_reads.get() + 1);
        self.pmu.rdmsr(msr)
    }

    fn wrmsr(&self, msr: u32, value: u64) {
        self.msr_writes.set(self.msr_writes.get() + 1);
        self.pmu.wrmsr(msr, value);
    }
}
