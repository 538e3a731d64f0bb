// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides which callers may count what.
//!
//! For counts of the kernel and of CPUs the module also asks perf, where a module can: see
//! `docs/soundness.md` for the kernels where it cannot.

use shared_abi::Errno;
use shared_abi::arch::EVNTSEL_OS;
use shared_abi::ioctl::{CONTROL_CLOEXEC, Control};

/// The level of the parameter `paranoid` from which on users without `CAP_PERFMON` count nothing.
const PARANOID_ALL: i32 = 3;
/// The level from which on they do not count in kernel mode.
const PARANOID_KERNEL: i32 = 2;

/// The kernel's knowledge of the caller's rights. The core asks a question only if its answer
/// matters, since the kernel logs each refusal.
pub trait Rights {
    /// Returns whether the caller may observe the whole system (`CAP_PERFMON`).
    fn has_perfmon(&self) -> bool;
    /// Returns whether the kernel is locked down, so that nobody may read anything of it.
    fn is_locked_down(&self) -> bool;
    /// Returns whether the caller may keep any amount of memory from being swapped
    /// (`CAP_IPC_LOCK`).
    fn has_ipc_lock(&self) -> bool;
    /// Returns whether the caller may look into the programs of other users (`CAP_SYS_PTRACE`).
    fn has_ptrace(&self) -> bool;
    /// Checks that perf would let the caller count in kernel mode, where a module can ask it.
    ///
    /// # Errors
    ///
    /// perf's error.
    fn perf_allows_kernel(&self) -> Result<(), Errno>;
}

/// Checks that the caller may count this in a thread.
///
/// # Errors
///
/// `ACCES` if this level of `paranoid` forbids it, or if the kernel is locked down; perf's.
pub fn may_count(paranoid: i32, rights: &impl Rights, control: &Control) -> Result<(), Errno> {
    let used = control.counter.iter().take(control.counters as usize);
    let kernel = used.fold(0, |bits, counter| bits | counter.evntsel) & EVNTSEL_OS != 0;
    let level = if kernel { PARANOID_KERNEL } else { PARANOID_ALL };
    if paranoid >= level && !rights.has_perfmon() || kernel && rights.is_locked_down() {
        return Err(Errno::ACCES);
    }
    if kernel { rights.perf_allows_kernel() } else { Ok(()) }
}

/// Checks that the caller may count CPUs as a whole.
///
/// # Errors
///
/// `PERM` if the caller lacks `CAP_PERFMON`; `ACCES` if the kernel is locked down; perf's.
#[cold]
#[inline(never)]
pub fn may_count_cpus(rights: &impl Rights) -> Result<(), Errno> {
    if !rights.has_perfmon() {
        Err(Errno::PERM)
    } else if rights.is_locked_down() {
        Err(Errno::ACCES)
    } else {
        rights.perf_allows_kernel()
    }
}

/// Checks that a user may have `locked` pages that cannot be swapped.
///
/// # Errors
///
/// `NOSPC` if these are more than the `limit`, which is `RLIMIT_MEMLOCK`.
pub fn may_lock(locked: u64, limit: u64, rights: &impl Rights) -> Result<(), Errno> {
    if locked <= limit || rights.has_ipc_lock() { Ok(()) } else { Err(Errno::NOSPC) }
}

/// Returns whether exec unlinks a thread's counters: if the control asked for it, or if the new
/// program is guarded.
pub const fn ends_at_exec(control: &Control, guarded: bool) -> bool {
    guarded || control.flags & CONTROL_CLOEXEC != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{INSTRUCTIONS, Person, control, counter};

    const NOBODY: fn() -> Person = || Person::new(false);
    const ADMIN: fn() -> Person = || Person::new(true);

    #[test]
    fn levels_are_those_of_perf_events() {
        let user = control(&[counter(0, INSTRUCTIONS)]);
        let kernel = control(&[counter(0, INSTRUCTIONS), counter(1, INSTRUCTIONS | EVNTSEL_OS)]);
        let twice = control(&[0, 1].map(|slot| counter(slot, EVNTSEL_OS)));
        for (paranoid, user_allowed, kernel_allowed) in
            [(-1, true, true), (1, true, true), (2, true, false), (3, false, false)]
        {
            assert_eq!(may_count(paranoid, &NOBODY(), &user).is_ok(), user_allowed, "{paranoid}");
            for control in [&kernel, &twice] {
                let asked = may_count(paranoid, &NOBODY(), control);
                assert_eq!(asked.is_ok(), kernel_allowed, "{paranoid}");
            }
            assert_eq!(may_count(paranoid, &ADMIN(), &kernel), Ok(()));
        }
    }

    #[test]
    fn counters_that_are_not_in_use_ask_for_nothing() {
        let mut unused = control(&[counter(0, INSTRUCTIONS)]);
        unused.counter[1].evntsel = EVNTSEL_OS;
        assert_eq!(may_count(2, &NOBODY(), &unused), Ok(()));
        unused.counters = u32::MAX;
        assert_eq!(may_count(2, &NOBODY(), &unused), Err(Errno::ACCES));
    }

    #[test]
    fn a_kernel_that_is_locked_down_is_counted_by_nobody() {
        let locked = Person { locked_down: true, ..ADMIN() };
        let user = control(&[counter(0, INSTRUCTIONS)]);
        let kernel = control(&[counter(0, INSTRUCTIONS | EVNTSEL_OS)]);
        assert_eq!(may_count(2, &locked, &user), Ok(()));
        assert_eq!(may_count(-1, &locked, &kernel), Err(Errno::ACCES));
        assert_eq!(may_count_cpus(&locked), Err(Errno::ACCES));
        assert_eq!(may_count_cpus(&NOBODY()), Err(Errno::PERM));
        assert_eq!(may_count_cpus(&ADMIN()), Ok(()));
    }

    #[test]
    fn the_kernel_is_not_asked_about_counts_of_user_mode() {
        let (nobody, admin) = (Person::new(false), Person::new(true));
        let user = control(&[counter(0, INSTRUCTIONS)]);
        for paranoid in [-1, 2] {
            assert_eq!(may_count(paranoid, &nobody, &user), Ok(()));
            assert_eq!(may_count(paranoid, &admin, &user), Ok(()));
        }
        assert_eq!((nobody.questions(), admin.questions()), (0, 0), "each would be in a log");
        assert_eq!(may_count(3, &nobody, &user), Err(Errno::ACCES));
        assert_eq!(nobody.questions(), 1, "whether it is privileged, and nothing after that");
        assert_eq!(may_lock(16, 16, &nobody), Ok(()));
        assert_eq!(nobody.questions(), 1, "within its limit it needs no right");
    }

    #[test]
    fn what_perf_refuses_is_refused() {
        let refused = Person { perf: Err(Errno(1)), ..Person::new(true) };
        let kernel = control(&[counter(0, INSTRUCTIONS | EVNTSEL_OS)]);
        let user = control(&[counter(0, INSTRUCTIONS)]);
        assert_eq!(may_count(-1, &refused, &kernel), Err(Errno(1)));
        assert_eq!(may_count_cpus(&refused), Err(Errno(1)));
        assert_eq!(may_count(-1, &refused, &user), Ok(()), "perf's answer is about the kernel");
    }

    #[test]
    fn memory_is_locked_within_the_users_limit() {
        let somebody = Person::new(false);
        let trusted = Person { ipc_lock: true, ..Person::new(false) };
        assert_eq!(may_lock(15, 16, &somebody), Ok(()));
        assert_eq!(may_lock(17, 16, &somebody), Err(Errno::NOSPC));
        assert_eq!(may_lock(17, 16, &trusted), Ok(()));
        assert_eq!(may_lock(1, 0, &Person::new(true)), Err(Errno::NOSPC), "another capability");
    }

    #[test]
    fn a_guarded_program_is_not_observed() {
        let mut control = control(&[counter(0, INSTRUCTIONS)]);
        assert!(!ends_at_exec(&control, false) && ends_at_exec(&control, true));
        control.flags |= CONTROL_CLOEXEC;
        assert!(ends_at_exec(&control, false));
    }
}
