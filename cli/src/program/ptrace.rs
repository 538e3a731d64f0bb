// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `ptrace(2)` and `waitpid(2)`, as far as a tracer needs them that follows a program everywhere.
#![expect(unsafe_code, reason = "system calls")]

use std::io;
use std::mem;
use std::ptr;

use libc::{c_int, c_uint, c_void, pid_t};

/// What has become of a tracee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has ended: its exit status, 128 and the signal if one ended it.
    Ended(u8),
    /// It has executed a program; this is what its number was before.
    Executed(pid_t),
    /// It is new, or has been let go on after a stop.
    Began,
    /// It has started another one, which will be told of for itself.
    Started,
    /// It is stopped, and stays so until SIGCONT.
    Stopped,
    /// It is about to get this signal.
    Signal(c_int),
}

/// Follows this process and all threads and processes that it starts.  They end with the tracer.
pub fn seize(pid: pid_t) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SEIZE, pid, options as usize)
}

/// Lets a tracee go on, with this signal or with none (0).
pub fn go_on(pid: pid_t, signal: c_int) -> io::Result<()> {
    request(libc::PTRACE_CONT, pid, signal as usize)
}

/// Leaves a tracee stopped, to be told of when it is continued.
pub fn leave_stopped(pid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, pid, 0)
}

/// Waits for the next change of any tracee; `None` if there is none left.
pub fn wait() -> io::Result<Option<(pid_t, Change)>> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is writable.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
        if pid >= 0 {
            return Ok(Some((pid, change(pid, status)?)));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ECHILD) => return Ok(None),
            Some(libc::EINTR) => {}
            _ => return Err(error),
        }
    }
}

fn change(pid: pid_t, status: c_int) -> io::Result<Change> {
    Ok(if libc::WIFEXITED(status) {
        Change::Ended(libc::WEXITSTATUS(status) as u8)
    } else if libc::WIFSIGNALED(status) {
        Change::Ended(128 + libc::WTERMSIG(status) as u8)
    } else {
        let signal = libc::WSTOPSIG(status);
        match status >> 16 {
            0 => Change::Signal(signal),
            libc::PTRACE_EVENT_EXEC => Change::Executed(message(pid)?),
            libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Change::Began,
            libc::PTRACE_EVENT_STOP => Change::Stopped,
            _ => Change::Started,
        }
    })
}

/// What the kernel says beside an event.
fn message(pid: pid_t) -> io::Result<pid_t> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the kernel writes a long.
    unsafe { fetch(libc::PTRACE_GETEVENTMSG, pid, &raw mut message)? };
    Ok(message as pid_t)
}

/// The information of the signal that a tracee is about to get.
pub fn signal_information(pid: pid_t) -> io::Result<libc::siginfo_t> {
    // SAFETY: all-zero is a valid `siginfo_t`, and the kernel writes one.
    unsafe {
        let mut information = mem::zeroed();
        fetch(libc::PTRACE_GETSIGINFO, pid, &raw mut information)?;
        Ok(information)
    }
}

/// A stopped tracee's registers.
pub fn registers(pid: pid_t) -> io::Result<libc::user_regs_struct> {
    // SAFETY: all-zero is a valid `user_regs_struct`, and the kernel writes one.
    unsafe {
        let mut registers = mem::zeroed();
        fetch(libc::PTRACE_GETREGS, pid, &raw mut registers)?;
        Ok(registers)
    }
}

/// A request that writes a `T`.
///
/// # Safety
///
/// `T` is what this request writes.
unsafe fn fetch<T>(request: c_uint, pid: pid_t, data: *mut T) -> io::Result<()> {
    let nothing = ptr::null_mut::<c_void>();
    // SAFETY: as the caller says; the address is not used.
    check(unsafe { libc::ptrace(request, pid, nothing, data) })
}

/// A request whose data is a number.  That the tracee has been killed meanwhile is no error: its
/// end will be told.
fn request(request: c_uint, pid: pid_t, data: usize) -> io::Result<()> {
    let nothing = ptr::null_mut::<c_void>();
    // SAFETY: for these requests the address is not used, and the data is a number.
    match check(unsafe { libc::ptrace(request, pid, nothing, data) }) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        result => result,
    }
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
