// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Who may count what, at least as strict as perf events of the same kernel.

use shared_abi::Errno;
use shared_abi::arch::EVNTSEL_OS;
use shared_abi::ioctl::{CONTROL_CLOEXEC, Control};

/// From this level of the parameter `paranoid` on, users without `CAP_PERFMON` count nothing.
const PARANOID_ALL: i32 = 3;
/// From this level on, they do not count in kernel mode.
const PARANOID_KERNEL: i32 = 2;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Has `CAP_PERFMON`, and so may observe the whole system.
    pub perfmon: bool,
    /// The kernel is locked down and tells nobody about itself.
    pub locked_down: bool,
}

/// Whether the caller may count this in a thread.
///
/// # Errors
///
/// `ACCES` not at this level of `paranoid`, or in a kernel that is locked down.
pub fn may_count(paranoid: i32, caller: Caller, control: &Control) -> Result<(), Errno> {
    let used = control.counter.iter().take(control.counters as usize);
    let kernel = used.fold(0, |bits, counter| bits | counter.evntsel) & EVNTSEL_OS != 0;
    let level = if kernel { PARANOID_KERNEL } else { PARANOID_ALL };
    if kernel && caller.locked_down || paranoid >= level && !caller.perfmon {
        return Err(Errno::ACCES);
    }
    Ok(())
}

/// Whether the caller may count on whole CPUs.
///
/// # Errors
///
/// `PERM` without `CAP_PERFMON`; `ACCES` in a kernel that is locked down.
pub fn may_count_cpus(caller: Caller) -> Result<(), Errno> {
    match caller {
        Caller { perfmon: false, .. } => Err(Errno::PERM),
        Caller { locked_down: true, .. } => Err(Errno::ACCES),
        _ => Ok(()),
    }
}

/// Whether a thread's counters are unlinked when it executes another program: as it was asked, and
/// always if that program has or may read what the thread's observers must not see.
pub const fn ends_at_exec(control: &Control, guarded: bool) -> bool {
    guarded || control.flags & CONTROL_CLOEXEC != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{INSTRUCTIONS, control, counter};

    const NOBODY: Caller = Caller { perfmon: false, locked_down: false };
    const ADMIN: Caller = Caller { perfmon: true, locked_down: false };

    #[test]
    fn levels_are_those_of_perf_events() {
        let user = control(&[counter(0, INSTRUCTIONS)]);
        let kernel = control(&[counter(0, INSTRUCTIONS), counter(1, INSTRUCTIONS | EVNTSEL_OS)]);
        let twice = control(&[0, 1].map(|slot| counter(slot, EVNTSEL_OS)));
        for (paranoid, user_allowed, kernel_allowed) in
            [(-1, true, true), (1, true, true), (2, true, false), (3, false, false)]
        {
            assert_eq!(may_count(paranoid, NOBODY, &user).is_ok(), user_allowed, "{paranoid}");
            for control in [&kernel, &twice] {
                let asked = may_count(paranoid, NOBODY, control);
                assert_eq!(asked.is_ok(), kernel_allowed, "{paranoid}");
            }
            assert_eq!(may_count(paranoid, ADMIN, &kernel), Ok(()));
        }
    }

    #[test]
    fn counters_that_are_not_in_use_ask_for_nothing() {
        let mut unused = control(&[counter(0, INSTRUCTIONS)]);
        unused.counter[1].evntsel = EVNTSEL_OS;
        assert_eq!(may_count(2, NOBODY, &unused), Ok(()));
        unused.counters = u32::MAX;
        assert_eq!(may_count(2, NOBODY, &unused), Err(Errno::ACCES));
    }

    #[test]
    fn a_kernel_that_is_locked_down_is_counted_by_nobody() {
        let locked = Caller { locked_down: true, ..ADMIN };
        let user = control(&[counter(0, INSTRUCTIONS)]);
        let kernel = control(&[counter(0, INSTRUCTIONS | EVNTSEL_OS)]);
        assert_eq!(may_count(2, locked, &user), Ok(()));
        assert_eq!(may_count(-1, locked, &kernel), Err(Errno::ACCES));
        assert_eq!(may_count_cpus(locked), Err(Errno::ACCES));
        assert_eq!(may_count_cpus(NOBODY), Err(Errno::PERM));
        assert_eq!(may_count_cpus(ADMIN), Ok(()));
    }

    #[test]
    fn a_guarded_program_is_not_observed() {
        let mut control = control(&[counter(0, INSTRUCTIONS)]);
        assert!(!ends_at_exec(&control, false) && ends_at_exec(&control, true));
        control.flags |= CONTROL_CLOEXEC;
        assert!(ends_at_exec(&control, false));
    }
}
