// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Controls on which CPUs threads run.

use std::fs;
use std::io;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use nix::Result;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, gettid};

/// Stands for the calling thread.
pub const SELF: Pid = Pid::from_raw(0);
/// How long threads may take to come to rest.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the CPUs that the calling thread may run on.
///
/// # Errors
///
/// The kernel's error.
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

/// Makes the calling thread take turns with other such threads of its CPU, so that each yield is a
/// switch. Among ordinary threads a yield need not be one (from Linux 6.6 on, the thread to which
/// most time is owed is next).
///
/// # Errors
///
/// `chrt` is missing, or is not permitted to do this.
pub fn take_turns() -> anyhow::Result<()> {
    let thread = gettid().to_string();
    let output = Command::new("chrt").args(["--fifo", "--pid", "1", &thread]).output()?;
    ensure!(output.status.success(), "chrt: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Waits until all threads of a process sleep. Everything that they execute until then belongs to
/// their orders.
///
/// # Errors
///
/// They do not come to rest, or there is no such process.
pub fn wait_for_rest(pid: &str) -> anyhow::Result<()> {
    let start = Instant::now();
    while !all_sleep(pid)? {
        ensure!(start.elapsed() < PATIENCE, "process {pid} does not come to rest");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn all_sleep(pid: &str) -> anyhow::Result<bool> {
    let mut sleep = true;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended since.
        let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
        sleep &= status.lines().any(|line| line.starts_with("State:\tS"));
    }
    Ok(sleep)
}

/// Returns a thread's result. If the thread has failed, the program ends, since others would wait
/// for it.
pub fn or_exit<T>(thread: usize, result: anyhow::Result<T>) -> T {
    result.unwrap_or_else(|error| {
        eprintln!("thread {thread}: {error:#}");
        std::process::exit(1)
    })
}

/// Takes each CPU offline and brings it back, this many times.
///
/// # Errors
///
/// The kernel's error: a CPU cannot be taken offline, or does not exist.
pub fn take_away_and_give_back(cpus: &[usize], rounds: u32) -> io::Result<()> {
    for _ in 0..rounds {
        for cpu in cpus {
            let online = format!("/sys/devices/system/cpu/cpu{cpu}/online");
            fs::write(&online, "0")?;
            thread::sleep(Duration::from_millis(10));
            fs::write(&online, "1")?;
        }
    }
    Ok(())
}
