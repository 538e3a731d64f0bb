// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Translates perf's words for branches.

use shared_abi::Errno;
use shared_abi::hypercall::{
    BRANCH_MISPREDICTED, BRANCHES_CONDITIONAL, BRANCHES_INDIRECT_CALLS, BRANCHES_INDIRECT_JUMPS,
    BRANCHES_KERNEL, BRANCHES_KINDS, BRANCHES_MAX, BRANCHES_MODES, BRANCHES_RELATIVE_CALLS,
    BRANCHES_RETURNS, BRANCHES_USER, HvBranch, HvBranches,
};

/// `PERF_SAMPLE_BRANCH_*` of `linux/perf_event.h`, and the hypervisor's words for them.
///
/// perf's host is this Linux, and the branches of its hypervisor are never recorded, although perf
/// asks for them unless the user has excluded them. If an event asks for no flags or cycles,
/// samples may still have them.
const WORDS: [(u64, u32); 12] = [
    (1 << 0, BRANCHES_USER),
    (1 << 1, BRANCHES_KERNEL),
    // Hypervisor.
    (1 << 2, 0),
    // Any.
    (1 << 3, BRANCHES_KINDS),
    // Any call, and any return.
    (1 << 4, BRANCHES_RELATIVE_CALLS | BRANCHES_INDIRECT_CALLS),
    (1 << 5, BRANCHES_RETURNS),
    // Indirect calls.
    (1 << 6, BRANCHES_INDIRECT_CALLS),
    // Conditional ones.
    (1 << 10, BRANCHES_CONDITIONAL),
    // Indirect jumps, and direct calls.
    (1 << 12, BRANCHES_INDIRECT_JUMPS),
    (1 << 13, BRANCHES_RELATIVE_CALLS),
    // No flags, and no cycles.
    (1 << 14, 0),
    (1 << 15, 0),
];

/// Returns the hypervisor's filter for perf's `branch_sample_type`.
///
/// # Errors
///
/// `OPNOTSUPP` if a bit asks for records that the hypervisor does not make, such as call stacks, or
/// if there is no mode or no kind.
pub(crate) fn filter(branch_sample_type: u64) -> Result<u16, Errno> {
    let (mut left, mut filter) = (branch_sample_type, 0);
    for (theirs, ours) in WORDS {
        if branch_sample_type & theirs != 0 {
            left &= !theirs;
            filter |= ours;
        }
    }
    let modes = filter & BRANCHES_MODES;
    if left != 0 || modes == 0 || filter == modes {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(filter as u16)
}

const _: () = assert!(BRANCHES_MODES | BRANCHES_KINDS <= u16::MAX as u32);

/// [`BranchStack::entry`]: perf's bits of a branch that was mispredicted, and of one that was
/// predicted.
const MISPREDICTED: u64 = 1 << 0;
const PREDICTED: u64 = 1 << 1;

/// The branches of a sample, as `struct perf_branch_stack` of `linux/perf_event.h` has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BranchStack {
    /// The number of branches.
    pub number: u64,
    /// Which of the hardware's registers has the latest; not known.
    pub hardware_index: u64,
    /// The branches, the latest first, with perf's flags.
    pub entry: [HvBranch; 16],
}

// The header's generator needs a number.
const _: [(); BRANCHES_MAX] = [(); 16];

impl BranchStack {
    /// Converts the hypervisor's answer.
    pub(crate) fn fill(&mut self, answer: &HvBranches) {
        self.number = u64::from(answer.count).min(BRANCHES_MAX as u64);
        self.hardware_index = u64::MAX;
        for (entry, branch) in self.entry.iter_mut().zip(&answer.branch) {
            let wrong = branch.flags & BRANCH_MISPREDICTED != 0;
            *entry = HvBranch { flags: if wrong { MISPREDICTED } else { PREDICTED }, ..*branch };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perfs_words_mean_what_the_hypervisor_records() {
        let filter = |words| super::filter(words).map(u32::from);
        // User; user, kernel and hypervisor, as without a modifier.
        assert_eq!(filter(0x1 | 0x8), Ok(BRANCHES_USER | BRANCHES_KINDS));
        assert_eq!(filter(0x7 | 0x8), Ok(BRANCHES_MODES | BRANCHES_KINDS));
        let calls = BRANCHES_RELATIVE_CALLS | BRANCHES_INDIRECT_CALLS;
        for (kind, ours) in [
            (1 << 4, calls),
            (1 << 5, BRANCHES_RETURNS),
            (1 << 6, BRANCHES_INDIRECT_CALLS),
            (1 << 10, BRANCHES_CONDITIONAL),
            (1 << 12, BRANCHES_INDIRECT_JUMPS),
            (1 << 13, BRANCHES_RELATIVE_CALLS),
            (1 << 5 | 1 << 14 | 1 << 15, BRANCHES_RETURNS),
        ] {
            assert_eq!(filter(1 | kind), Ok(BRANCHES_USER | ours), "{kind:#x}");
            assert_eq!(filter(2 | kind), Ok(BRANCHES_KERNEL | ours), "{kind:#x}");
        }
    }

    #[test]
    fn what_is_not_recorded_is_refused() {
        // Transactions; call stacks; types, hardware indices, privileges; whatever comes later.
        for unknown in [7, 8, 9, 11, 16, 17, 18, 19, 63] {
            assert_eq!(filter(0x9 | 1 << unknown), Err(Errno::OPNOTSUPP), "{unknown}");
        }
        for (nothing, why) in [(0, "nothing"), (0x3, "no kind"), (0x8, "no mode"), (0xc, "no mode")]
        {
            assert_eq!(filter(nothing), Err(Errno::OPNOTSUPP), "{why}");
        }
    }
}
