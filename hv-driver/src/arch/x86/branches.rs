// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The registers in which Intel's processors record branches (SDM volume 3, chapter "Debug, Branch
//! Profile, TSC", sections on the LBR stack and on filtering of last branch records).

use shared_abi::hypercall::{
    BRANCH_MISPREDICTED, BRANCHES_KERNEL, BRANCHES_KINDS, BRANCHES_MAX, BRANCHES_MODES,
    BRANCHES_USER, HvBranch, PLACE_KERNEL,
};

use super::{Bank, DEBUGCTL, Refusal, mode_at};
use crate::hal::{Pmu, Probe};

/// IA32_DEBUGCTL: branches are recorded.
const DEBUGCTL_LBR: u64 = 1 << 0;
/// MSR_LBR_SELECT: branches that end in ring 0 are not recorded.
const SELECT_NOT_RING_0: u64 = 1 << 0;
/// MSR_LBR_SELECT: far branches, interrupts and exceptions are not recorded.
const SELECT_NOT_FAR: u64 = 1 << 8;
/// The source of a branch: it was mispredicted. This is in place of the address's highest bit.
const FROM_MISPREDICTED: u64 = 1 << 63;

/// A number of pairs of registers that record branches in turns, and the registers that control
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchRegisters {
    /// IA32_DEBUGCTL.
    control: u32,
    /// MSR_LBR_SELECT.
    select: u32,
    /// MSR_LASTBRANCH_TOS: the number of the latest pair.
    latest: u32,
    from: Bank,
    to: Bank,
}

/// The number of pairs, which is a power of two.
const PAIRS: u32 = BRANCHES_MAX as u32;
const _: () = assert!(PAIRS.is_power_of_two());

/// The branches that a guest wants recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter(u32);

impl Filter {
    /// Records nothing.
    pub const NONE: Self = Self(0);

    /// Returns the filter with these `BRANCHES_*` bits, or `None` if there is an unknown bit, or
    /// only modes or only kinds.
    pub const fn new(bits: u32) -> Option<Self> {
        let (modes, kinds) = (bits & BRANCHES_MODES, bits & BRANCHES_KINDS);
        let unknown = bits & !(BRANCHES_MODES | BRANCHES_KINDS);
        if unknown != 0 || (modes == 0) != (kinds == 0) { None } else { Some(Self(bits)) }
    }

    /// Returns whether nothing is recorded.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns whether branches of the guest's kernel, or else of its user mode, are recorded.
    pub const fn records(self, kernel: bool) -> bool {
        self.0 & if kernel { BRANCHES_KERNEL } else { BRANCHES_USER } != 0
    }

    /// Returns whether branches of one mode only are recorded.
    pub const fn is_gated(self) -> bool {
        self.records(false) != self.records(true)
    }

    /// Returns what MSR_LBR_SELECT has to hold, whose bits leave branches out. Those of kinds are
    /// at the same places as in the guest's word.
    fn select(self) -> u64 {
        (BRANCHES_KINDS & !self.0) as u64 | SELECT_NOT_RING_0 | SELECT_NOT_FAR
    }

    /// Returns whether the guest may see the address.
    fn shows(self, address: u64) -> bool {
        mode_at(address).is_some_and(|mode| self.records(mode == PLACE_KERNEL))
    }
}

/// The contents of a pair of registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BranchRecord {
    from: u64,
    to: u64,
}

impl BranchRecord {
    pub(crate) const NONE: Self = Self { from: 0, to: 0 };

    /// Returns the branch that the pair has recorded.
    pub(crate) fn branch(self) -> HvBranch {
        let flags = if self.from & FROM_MISPREDICTED != 0 { BRANCH_MISPREDICTED } else { 0 };
        HvBranch { from: address(self.from), to: self.to, flags }
    }
}

impl BranchRegisters {
    /// The registers of Nehalem.
    pub(super) const NEHALEM: Self = Self {
        control: DEBUGCTL,
        select: 0x1c8,
        latest: 0x1c9,
        from: Bank { first: 0x680, stride: 1 },
        to: Bank { first: 0x6c0, stride: 1 },
    };

    /// Tries all of these registers on the CPU that executes this. Nothing is recorded afterwards.
    /// Returns what the control register holds then.
    ///
    /// # Errors
    ///
    /// Names the first register that is not as it should be.
    pub(crate) fn probe(&self, pmu: &impl Probe) -> Result<u64, Refusal> {
        let keeps = |msr, value| {
            let kept =
                pmu.try_write_register(msr, value) && pmu.try_read_register(msr) == Some(value);
            if kept { Ok(()) } else { Err(Refusal::Register(msr)) }
        };
        let found = pmu.try_read_register(self.control).ok_or(Refusal::Register(self.control))?;
        let off = found & !DEBUGCTL_LBR;
        keeps(self.select, SELECT_NOT_RING_0)?;
        keeps(self.control, off | DEBUGCTL_LBR)?;
        keeps(self.control, off)?;
        pmu.try_read_register(self.latest).ok_or(Refusal::Register(self.latest))?;
        for n in 0..PAIRS {
            for msr in [self.from.of(n), self.to.of(n)] {
                // An address of user mode.
                keeps(msr, 0x5a69_3c78)?;
                keeps(msr, 0)?;
            }
        }
        Ok(off)
    }

    /// Discards all records, and selects which branches to record.
    ///
    /// A pair without a source is not a record. So it is enough to clear the sources.
    pub(crate) fn begin(&self, pmu: &impl Pmu, filter: Filter) {
        for n in 0..PAIRS {
            pmu.write_register(self.from.of(n), 0);
        }
        pmu.write_register(self.select, filter.select());
    }

    /// Starts or stops the recording. `off` is what [`probe`](Self::probe) has returned.
    pub(crate) fn enable(&self, pmu: &impl Pmu, off: u64, on: bool) {
        pmu.write_register(self.control, off | if on { DEBUGCTL_LBR } else { 0 });
    }

    /// Reads the records that the guest may see, the latest first. Returns their number.
    ///
    /// The hardware leaves out branches that end in ring 0, and far branches. The driver checks the
    /// addresses as well: it must not show those of a guest's kernel if the guest asked for user
    /// mode alone, and it must never show those of the hypervisor.
    pub(crate) fn read(
        &self,
        pmu: &impl Pmu,
        filter: Filter,
        records: &mut [BranchRecord; BRANCHES_MAX],
    ) -> u32 {
        let latest = pmu.read_register(self.latest) as u32;
        let mut count = 0;
        let mut places = records.iter_mut();
        for age in 0..PAIRS {
            let n = latest.wrapping_sub(age) & (PAIRS - 1);
            let from = pmu.read_register(self.from.of(n));
            if from == 0 {
                continue;
            }
            let to = pmu.read_register(self.to.of(n));
            if filter.shows(address(from))
                && filter.shows(to)
                && let Some(place) = places.next()
            {
                *place = BranchRecord { from, to };
                count += 1;
            }
        }
        count
    }
}

/// Returns the address in the source of a branch, without the flag in its highest bit.
fn address(from: u64) -> u64 {
    let without_flag = from & !FROM_MISPREDICTED;
    without_flag | (without_flag << 1 & FROM_MISPREDICTED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_abi::hypercall::{BRANCHES_CONDITIONAL, BRANCHES_RETURNS};

    const USER: u64 = 0x40_1000;
    const KERNEL: u64 = 0xffff_ffff_8100_0000;
    const XEN: u64 = 0xffff_82d0_4020_0000;

    #[test]
    fn a_filter_has_modes_and_kinds_or_nothing() {
        let valid = |bits| Filter::new(bits).is_some();
        assert!(valid(0) && valid(BRANCHES_USER | BRANCHES_RETURNS));
        assert!(valid(BRANCHES_MODES | BRANCHES_KINDS));
        for bits in [BRANCHES_USER, BRANCHES_MODES, BRANCHES_KINDS, 1 << 8, 0xff | 1 << 31] {
            assert!(!valid(bits), "{bits:#x}");
        }
    }

    #[test]
    fn the_select_register_leaves_out_what_was_not_asked_for() {
        let filter = Filter::new(BRANCHES_USER | BRANCHES_CONDITIONAL | BRANCHES_RETURNS).unwrap();
        // SDM: JCC, NEAR_REL_CALL, NEAR_IND_CALL, NEAR_RET, NEAR_IND_JMP, NEAR_REL_JMP, FAR_BRANCH
        // are bits 2 to 8, and CPL_EQ_0 is bit 0.
        assert_eq!(filter.select(), 1 << 0 | 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 8);
        let all = Filter::new(BRANCHES_MODES | BRANCHES_KINDS).unwrap();
        assert_eq!(all.select(), 1 << 0 | 1 << 8, "never ring 0, never far");
    }

    #[test]
    fn each_half_is_shown_to_who_asked_for_it_and_the_hypervisor_to_nobody() {
        let filter = |modes| Filter::new(modes | BRANCHES_KINDS).unwrap();
        for (modes, user, kernel) in [
            (BRANCHES_USER, true, false),
            (BRANCHES_KERNEL, false, true),
            (BRANCHES_MODES, true, true),
        ] {
            let shows = |address| filter(modes).shows(address);
            assert_eq!((shows(USER), shows(KERNEL)), (user, kernel), "{modes:#x}");
            for address in [XEN, 0xffff_8000_0000_0000, 0xffff_87ff_ffff_ffff] {
                assert!(!shows(address), "{address:#x}");
            }
            assert_eq!(shows(0xffff_8800_0000_0000), kernel);
        }
    }

    #[test]
    fn a_source_has_its_address_whatever_its_flag_is() {
        for place in [USER, KERNEL] {
            for flag in [0, FROM_MISPREDICTED] {
                assert_eq!(address(place & !FROM_MISPREDICTED | flag), place);
            }
        }
    }
}
