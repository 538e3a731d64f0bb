// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Where threads run.

use nix::Result;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread.
pub const SELF: Pid = Pid::from_raw(0);

/// The CPUs that the calling thread may run on.
///
/// # Errors
///
/// The kernel's.
pub fn cpus() -> Result<Vec<usize>> {
    let set = sched_getaffinity(SELF)?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu) == Ok(true)).collect())
}

/// Lets a thread run on these CPUs only.
///
/// # Errors
///
/// There is no such thread, or none of the CPUs is online.
pub fn run_on(thread: Pid, cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu)?;
    }
    sched_setaffinity(thread, &set)
}
