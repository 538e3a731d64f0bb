// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Keeps the branches that a vCPU has taken before its counters overflowed.
//!
//! The processor records them while the vCPU executes, and never records the hypervisor's own
//! branches. The driver clears the records whenever the vCPU is switched in, so that the vCPU never
//! sees another one's records.

use shared_abi::PhysSlot;
use shared_abi::hypercall::{BRANCHES_MAX, HvBranches};

use crate::arch::{BranchRecord, Filter};
use crate::guest::Rings;
use crate::hal::Pmu;
use crate::pcpu::ThisCpu;

/// The branches that a vCPU has recorded, and the filter of those that it records.
#[derive(Debug)]
pub(crate) struct Branches {
    filter: Filter,
    /// The modes of the guest in which the processor has to record.
    ///
    /// These are all modes of a guest with rings of its own: the processor itself knows which of
    /// its branches are of user mode, and the driver does not see when the mode changes.
    during: Filter,
    /// Counters that have overflowed where the branches were read, and whose branches the guest has
    /// not asked for.
    slots: u32,
    count: u32,
    record: [BranchRecord; BRANCHES_MAX],
}

impl Branches {
    pub(crate) const NONE: Self = Self {
        filter: Filter::NONE,
        during: Filter::NONE,
        slots: 0,
        count: 0,
        record: [BranchRecord::NONE; BRANCHES_MAX],
    };

    /// Sets which branches to record from now on, and discards the earlier records.
    pub(crate) fn select(&mut self, filter: Filter, rings: Rings) {
        self.during = match rings {
            Rings::Folded => filter,
            Rings::Hardware => filter.in_all_modes(),
        };
        (self.filter, self.slots) = (filter, 0);
    }

    /// Forgets which counters have overflowed, since they are loaded anew.
    pub(crate) const fn forget_overflows(&mut self) {
        self.slots = 0;
    }

    /// Returns whether nothing is recorded.
    pub(crate) const fn is_none(&self) -> bool {
        self.filter.is_none()
    }

    /// Returns whether a change of the guest's mode starts or stops recording.
    #[inline(always)]
    pub(crate) const fn is_gated(&self) -> bool {
        self.during.is_gated()
    }

    /// Begins to record, in the guest's kernel or in its user mode, on a CPU that may have another
    /// vCPU's records.
    pub(crate) fn begin<P: Pmu>(&self, cpu: &mut ThisCpu<'_, P>, in_kernel: bool) {
        if !self.is_none() {
            cpu.begin_records(self.filter);
        }
        cpu.record(self.during.records(in_kernel));
    }

    /// Handles the guest's change to its kernel or to its user mode.
    #[inline(always)]
    pub(crate) fn change_mode<P: Pmu>(&self, cpu: &mut ThisCpu<'_, P>, in_kernel: bool) {
        cpu.record(self.during.records(in_kernel));
    }

    /// Reads the records for the counters `slots`, which were just seen to have overflowed.
    pub(crate) fn read<P: Pmu>(&mut self, cpu: &ThisCpu<'_, P>, slots: u32) {
        if slots == 0 || self.is_none() {
            return;
        }
        if let Some(branches) = &cpu.driver.registers.branches {
            self.slots = slots;
            self.count = branches.read(cpu.pmu, self.filter, &mut self.record);
        }
    }

    /// Returns the branches before the overflow of this counter. A second call returns none.
    pub(crate) fn take(&mut self, slot: PhysSlot) -> HvBranches {
        let mut answer = HvBranches { slot: slot.index() as u32, ..HvBranches::default() };
        if self.slots & slot.bit() != 0 {
            self.slots &= !slot.bit();
            answer.count = self.count;
            let known = self.record.iter().take(self.count as usize);
            for (place, record) in answer.branch.iter_mut().zip(known) {
                *place = record.branch();
            }
        }
        answer
    }
}
