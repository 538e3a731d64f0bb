// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The registers in which processors record branches: Intel's (SDM volume 3, chapter "Debug, Branch
//! Profile, TSC", sections on the LBR stack and on filtering of last branch records), and AMD's
//! (APM volume 2, 13.1.1, "Last Branch Stack Registers").

use shared_abi::hypercall::{
    BRANCH_MISPREDICTED, BRANCHES_KERNEL, BRANCHES_KINDS, BRANCHES_MAX, BRANCHES_MODES,
    BRANCHES_USER, HvBranch, PLACE_KERNEL,
};

use super::{Bank, DEBUGCTL, Refusal, mode_at};
use crate::hal::{Pmu, Probe};

/// IA32_DEBUGCTL: branches are recorded.
const DEBUGCTL_LBR: u64 = 1 << 0;
/// DBG_EXTN_CFG: branches are recorded (LBRV2EN).
const EXTENSION_LBR: u64 = 1 << 6;
/// MSR_LBR_SELECT of either vendor: branches that end in ring 0 are not recorded.
const SELECT_NOT_RING_0: u64 = 1 << 0;
/// MSR_LBR_SELECT: far branches, interrupts and exceptions are not recorded.
const SELECT_NOT_FAR: u64 = 1 << 8;
/// The source of a branch: it was mispredicted. This is in place of the address's highest bit.
const FROM_MISPREDICTED: u64 = 1 << 63;
/// The end of a branch on AMD's processors: the branch was executed. Otherwise there is no branch,
/// or it was executed speculatively and then discarded.
const TO_VALID: u64 = 1 << 63;

/// A number of pairs of registers that record branches, and the registers that control them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchRegisters {
    control: u32,
    /// The bit of `control` that lets the processor record.
    enable: u64,
    select: u32,
    order: Order,
    from: Bank,
    to: Bank,
    /// The number of pairs.
    pairs: u32,
}

/// Which pair has the latest branch, and what shows that a pair has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Intel's: pairs are used in turns, and their number is a power of two. A pair without a
    /// source has no branch.
    InTurns {
        /// MSR_LASTBRANCH_TOS: the number of the latest pair.
        latest: u32,
    },
    /// AMD's: the first pair always has the latest branch. The end of a branch says whether it is
    /// valid.
    LatestFirst,
}

/// The number of Nehalem's pairs.
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

    /// Returns the modes of the guest (`BRANCHES_*`) whose branches are recorded.
    pub const fn modes(self) -> u32 {
        self.0 & BRANCHES_MODES
    }

    /// Returns whether branches of the guest's kernel, or else of its user mode, are recorded.
    pub const fn records(self, kernel: bool) -> bool {
        self.0 & if kernel { BRANCHES_KERNEL } else { BRANCHES_USER } != 0
    }

    /// Returns the same filter for both modes, if it records anything.
    pub const fn in_all_modes(self) -> Self {
        if self.is_none() { self } else { Self(self.0 | BRANCHES_MODES) }
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
        enable: DEBUGCTL_LBR,
        select: 0x1c8,
        order: Order::InTurns { latest: 0x1c9 },
        from: Bank { first: 0x680, stride: 1 },
        to: Bank { first: 0x6c0, stride: 1 },
        pairs: PAIRS,
    };

    /// The registers of AMD's LbrExtV2, of which CPUID has reported so many pairs.
    pub(super) const fn amd(pairs: u32) -> Self {
        Self {
            control: 0xc000_010f,
            enable: EXTENSION_LBR,
            select: 0xc000_010e,
            order: Order::LatestFirst,
            from: Bank { first: 0xc001_0300, stride: 2 },
            to: Bank { first: 0xc001_0301, stride: 2 },
            pairs,
        }
    }

    /// Returns whether the recording goes on when the processor enters a guest with rings of its
    /// own, and when it leaves the guest. VT-x clears IA32_DEBUGCTL when it leaves a guest.
    pub(crate) const fn last_through_exits(&self) -> bool {
        matches!(self.order, Order::LatestFirst)
    }

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
        let off = found & !self.enable;
        keeps(self.select, SELECT_NOT_RING_0)?;
        keeps(self.control, off | self.enable)?;
        keeps(self.control, off)?;
        if let Order::InTurns { latest } = self.order {
            pmu.try_read_register(latest).ok_or(Refusal::Register(latest))?;
        }
        for n in 0..self.pairs {
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
    /// It is enough to clear the registers that show whether a pair has a branch.
    pub(crate) fn begin(&self, pmu: &impl Pmu, filter: Filter) {
        let shows = match self.order {
            Order::InTurns { .. } => self.from,
            Order::LatestFirst => self.to,
        };
        for n in 0..self.pairs {
            pmu.write_register(shows.of(n), 0);
        }
        pmu.write_register(self.select, filter.select());
    }

    /// Starts or stops the recording. `off` is what [`probe`](Self::probe) has returned.
    pub(crate) fn enable(&self, pmu: &impl Pmu, off: u64, on: bool) {
        pmu.write_register(self.control, off | if on { self.enable } else { 0 });
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
        let latest = match self.order {
            Order::InTurns { latest } => pmu.read_register(latest) as u32,
            Order::LatestFirst => 0,
        };
        let mut count = 0;
        let mut places = records.iter_mut();
        for age in 0..self.pairs {
            if let Some(record) = self.pair(pmu, latest, age)
                && filter.shows(address(record.from))
                && filter.shows(record.to)
                && let Some(place) = places.next()
            {
                *place = record;
                count += 1;
            }
        }
        count
    }

    /// Reads the pair that is the `age`th before the latest one, if it has a branch.
    fn pair(&self, pmu: &impl Pmu, latest: u32, age: u32) -> Option<BranchRecord> {
        match self.order {
            Order::InTurns { .. } => {
                let n = latest.wrapping_sub(age) & (self.pairs - 1);
                let from = pmu.read_register(self.from.of(n));
                (from != 0).then(|| BranchRecord { from, to: pmu.read_register(self.to.of(n)) })
            }
            Order::LatestFirst => {
                let to = pmu.read_register(self.to.of(age));
                let is_valid = to & TO_VALID != 0;
                is_valid.then(|| {
                    let from = pmu.read_register(self.from.of(age));
                    let flag = from & FROM_MISPREDICTED;
                    let from = extended(from) & !FROM_MISPREDICTED | flag;
                    BranchRecord { from, to: extended(to) }
                })
            }
        }
    }
}

/// Returns an address of AMD's records, without the flags in the bits above it.
///
/// The processors that have these records may have addresses of 57 bits, but Xen uses 48 of them,
/// for itself and for its guests.
fn extended(register: u64) -> u64 {
    const ABOVE: u32 = u64::BITS - 48;
    ((register << ABOVE) as i64 >> ABOVE) as u64
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
    fn an_address_of_amds_records_has_no_flags() {
        for place in [USER, KERNEL] {
            for flags in [0, TO_VALID, 1 << 62, 7 << 61, 0x7f << 57] {
                assert_eq!(extended(place & !(0x7f << 57) | flags), place, "{flags:#x}");
            }
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
