// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests a machine whose process is gone, also after another process has got the process' number.
#![expect(unsafe_code, reason = "fork, and requests of the kernel that have no safe interface")]

use std::fs;
use std::io::{Read, Write, pipe};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};

/// The kernel gives the next process the number after this one.
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
/// `KVM_CREATE_VM` of `linux/kvm.h`.
const KVM_CREATE_VM: libc::c_ulong = 0xae01;
/// How often the test asks for a number, because another process may be created meanwhile.
const ATTEMPTS: u32 = 100;

/// Allows a machine by its process: one that exists, one that is gone, and one whose number another
/// process has got. Then forbids it by that number. Returns the four errors, 0 for none.
pub fn allow() -> Result<Vec<u64>> {
    let number = |outcome: Result<(), Errno>| outcome.err().map_or(0, |errno| errno as u64);
    let errno = |process| number(crate::allow(process));
    let creator = Waiting::new(|| {
        // SAFETY: both calls take only numbers and a string.
        unsafe {
            let kvm = libc::open(c"/dev/kvm".as_ptr(), libc::O_RDWR);
            libc::ioctl(kvm, KVM_CREATE_VM, 0)
        }
    })?;
    // The machine exists as long as this descriptor of it.
    let machine = creator.descriptor().context("a descriptor of the machine")?;
    let process = creator.process;
    let there = errno(process);
    drop(creator);
    let gone = errno(process);
    for _ in 0..ATTEMPTS {
        fs::write(LAST_PID, (process.as_raw() - 1).to_string()).context(LAST_PID)?;
        let other = Waiting::new(|| 0)?;
        if other.process == process {
            let reused = errno(process);
            let forbidden = number(crate::write(crate::FORBID, &process.to_string()));
            drop(machine);
            return Ok(vec![there, gone, reused, forbidden]);
        }
    }
    bail!("no other process gets the number {process}")
}

/// A process that waits until it is ended.
struct Waiting {
    process: Pid,
    /// The result of its action before it waits.
    done: i32,
}

impl Waiting {
    /// Forks a process that does this, which must be async-signal-safe, and then waits.
    fn new(act: impl FnOnce() -> i32) -> Result<Self> {
        let (mut from, mut to) = pipe()?;
        // SAFETY: the child calls only async-signal-safe functions, and never returns.
        let process = match unsafe { fork()? } {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let written = to.write_all(&act().to_ne_bytes());
                while written.is_ok() {
                    // SAFETY: the call takes no argument.
                    unsafe { libc::pause() };
                }
                // SAFETY: this ends the child without running any code of the parent's.
                unsafe { libc::_exit(1) }
            }
        };
        drop(to);
        let mut done = [0; 4];
        from.read_exact(&mut done)?;
        let done = i32::from_ne_bytes(done);
        let waiting = Self { process, done };
        ensure!(done >= 0, "the process has failed");
        Ok(waiting)
    }

    /// Returns another descriptor of what the process has opened.
    fn descriptor(&self) -> Result<OwnedFd, Errno> {
        // SAFETY: the calls take numbers only, and return new descriptors, which nobody else owns.
        unsafe {
            let opened = libc::syscall(libc::SYS_pidfd_open, self.process.as_raw(), 0);
            let process = OwnedFd::from_raw_fd(Errno::result(opened)? as i32);
            let copied = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), self.done, 0);
            Ok(OwnedFd::from_raw_fd(Errno::result(copied)? as i32))
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        kill(self.process, Signal::SIGKILL).ok();
        waitpid(self.process, None).ok();
    }
}
