// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The parts of `ptrace(2)` and `waitpid(2)` that a tracer needs to follow a program everywhere.
#![expect(unsafe_code, reason = "system calls")]

use std::io;
use std::mem;
use std::ptr;
use std::time::Duration;

use libc::{c_int, c_uint, c_void, pid_t};

/// The change of a tracee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has ended with this exit status, or with 128 and the signal if one ended it.
    Ended(u8),
    /// It has executed a program. Before that, its number was this one.
    Executed(pid_t),
    /// It is new, has been interrupted, or was continued after a stop.
    Began,
    /// It has started another tracee, whose own changes are reported separately.
    Started,
    /// It is stopped, and stays so until SIGCONT.
    Stopped,
    /// It is about to get this signal.
    Signal(c_int),
}

/// How a tracee depends on its tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bond {
    /// The tracer has started it, and it ends with the tracer.
    Own,
    /// It continues when the tracer ends.
    Foreign,
}

/// Traces this thread and all threads and processes that it starts.
///
/// # Errors
///
/// The kernel's error: `EPERM` if the caller may not trace it or it has a tracer, `ESRCH` if there
/// is no such thread.
pub fn seize(pid: pid_t, bond: Bond) -> io::Result<()> {
    let mut options = libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACEEXEC;
    if bond == Bond::Own {
        options |= libc::PTRACE_O_EXITKILL;
    }
    let nothing = ptr::null_mut::<c_void>();
    // SAFETY: the address is not used, and the data is a number.
    check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, nothing, options as usize) })
}

/// Stops a tracee that runs; this is reported as [`Change::Began`].
pub fn interrupt(pid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, pid, 0)
}

/// Ends tracing a stopped tracee, which continues with this signal or with none (0).
pub fn detach(pid: pid_t, signal: c_int) -> io::Result<()> {
    request(libc::PTRACE_DETACH, pid, signal as usize)
}

/// Continues a tracee, with this signal or with none (0).
pub fn go_on(pid: pid_t, signal: c_int) -> io::Result<()> {
    request(libc::PTRACE_CONT, pid, signal as usize)
}

/// Leaves a tracee stopped. Its continuation is reported.
pub fn leave_stopped(pid: pid_t) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, pid, 0)
}

/// The event for which [`wait`] has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// This tracee or child has changed in this way.
    Changed(pid_t, Change),
    /// A signal has been handled.
    Interrupted,
    /// There is neither tracee nor child left.
    Nobody,
}

/// Waits for the next change of any tracee or child, or for a signal.
pub fn wait() -> io::Result<Waited> {
    let mut status = 0;
    // SAFETY: `status` is writable.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
    if pid >= 0 {
        return Ok(Waited::Changed(pid, change(pid, status)?));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ECHILD) => Ok(Waited::Nobody),
        Some(libc::EINTR) => Ok(Waited::Interrupted),
        _ => Err(error),
    }
}

/// Makes SIGALRM, which has a handler, interrupt [`wait`] at such intervals.
pub fn alarm_every(interval: Duration) -> io::Result<()> {
    let part = libc::timeval {
        tv_sec: interval.as_secs() as libc::time_t,
        tv_usec: interval.subsec_micros().into(),
    };
    let timer = libc::itimerval { it_interval: part, it_value: part };
    end_waits(libc::SIGALRM)?;
    // SAFETY: the timer is readable, and the pointer for the old timer is null.
    check(unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) }.into())
}

/// Makes this signal, which has a handler, interrupt [`wait`]. Otherwise the kernel would restart
/// the wait.
pub fn end_waits(signal: c_int) -> io::Result<()> {
    // SAFETY: all-zero is a valid `sigaction`. Each pointer is readable or writable as it has to
    // be, and the one for the old action is null.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        check(libc::sigaction(signal, ptr::null(), &raw mut action).into())?;
        action.sa_flags &= !libc::SA_RESTART;
        check(libc::sigaction(signal, &raw const action, ptr::null_mut()).into())
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

/// Returns the kernel's message about an event.
fn message(pid: pid_t) -> io::Result<pid_t> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the kernel writes a long, for which there is room.
    unsafe { fetch(libc::PTRACE_GETEVENTMSG, pid, &raw mut message)? };
    Ok(message as pid_t)
}

/// Returns the information of the signal that a tracee is about to get.
pub fn signal_information(pid: pid_t) -> io::Result<libc::siginfo_t> {
    // SAFETY: all-zero is a valid `siginfo_t`, and the kernel writes one.
    unsafe {
        let mut information = mem::zeroed();
        fetch(libc::PTRACE_GETSIGINFO, pid, &raw mut information)?;
        Ok(information)
    }
}

/// Returns the descriptor that a signal reports, as `sigaction(2)` has it. For a signal that
/// reports none, the result may be any number.
pub fn descriptor(information: &libc::siginfo_t) -> c_int {
    /// The beginning of a `siginfo_t` that reports a descriptor.
    #[repr(C)]
    struct OfDescriptor {
        _signal: [c_int; 3],
        _band: libc::c_long,
        descriptor: c_int,
    }
    // SAFETY: both types consist of numbers only. A `siginfo_t` is longer, and aligned for its
    // longs.
    unsafe { (&raw const *information).cast::<OfDescriptor>().read().descriptor }
}

/// Returns a stopped tracee's registers.
pub fn registers(pid: pid_t) -> io::Result<libc::user_regs_struct> {
    // SAFETY: all-zero is a valid `user_regs_struct`, and the kernel writes one.
    unsafe {
        let mut registers = mem::zeroed();
        fetch(libc::PTRACE_GETREGS, pid, &raw mut registers)?;
        Ok(registers)
    }
}

/// The number of addresses that [`break_at`] can take, as the CPU has so many debug registers.
pub const BREAKPOINTS: usize = 4;

/// Makes a stopped tracee get SIGTRAP before it executes the instruction at one of these addresses,
/// and at no others. A new thread has none, and a program that is executed has none.
pub fn break_at(pid: pid_t, addresses: &[Option<u64>]) -> io::Result<()> {
    /// The register that says which others are in use: bit 2n for register n (SDM volume 3, DR7).
    /// With no other bit, they are the addresses of instructions.
    const CONTROL: usize = 7;
    let set = |register: usize, value: u64| {
        let at = mem::offset_of!(libc::user, u_debugreg) + register * size_of::<u64>();
        // SAFETY: this request uses both as numbers.
        check(unsafe { libc::ptrace(libc::PTRACE_POKEUSER, pid, at, value) })
    };
    set(CONTROL, 0)?;
    let mut used = 0;
    for (n, address) in addresses.iter().take(BREAKPOINTS).enumerate() {
        if let &Some(address) = address {
            set(n, address)?;
            used |= 1 << (2 * n);
        }
    }
    set(CONTROL, used)
}

/// Returns `None` if the tracee was killed. That is no error, since its end is reported separately.
pub fn unless_killed<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a request that writes a `T`.
///
/// # Safety
///
/// This request writes a `T`.
unsafe fn fetch<T>(request: c_uint, pid: pid_t, data: *mut T) -> io::Result<()> {
    let nothing = ptr::null_mut::<c_void>();
    // SAFETY: the caller promises that the kernel writes a `T`, for which there is room. These
    // requests do not use the address.
    check(unsafe { libc::ptrace(request, pid, nothing, data) })
}

/// Makes a request whose data is a number. It is no error if the tracee has been killed meanwhile,
/// since its end is reported separately.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracee_that_is_stopped_is_told_from_one_that_begins() {
        let event = |signal: c_int, event: c_int| signal << 8 | 0x7f | event << 16;
        let stop = |signal| event(signal, libc::PTRACE_EVENT_STOP);
        for signal in [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
            assert_eq!(change(7, stop(signal)).unwrap(), Change::Stopped, "signal {signal}");
            assert_eq!(change(7, event(signal, 0)).unwrap(), Change::Signal(signal));
        }
        assert_eq!(change(7, stop(libc::SIGTRAP)).unwrap(), Change::Began);
        let started = event(libc::SIGTRAP, libc::PTRACE_EVENT_CLONE);
        assert_eq!(change(7, started).unwrap(), Change::Started);
        assert_eq!(change(7, 42 << 8).unwrap(), Change::Ended(42));
        assert_eq!(change(7, libc::SIGKILL).unwrap(), Change::Ended(128 + 9));
    }
}
