// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Overflows of sampling counters, and what tells of them: records or signals.
//!
//! [`Records`] are noted by the guest's kernel, the counters go on by themselves, and any thread
//! takes them out later.  That is what a profiler wants, and costs least.  All else is for who must
//! be told at once.
//!
//! With [`start_sampling`](crate::Session::start_sampling) a thread that counts an
//! [`Event`](crate::Event) [`every`](crate::Event::every) so often gets a signal at each overflow.
//! Its counters are paused by then and stay paused until the thread lets them go on, so that
//! neither the handler nor anything else done about the sample is counted.
//! There are four ways to receive it:
//!
//! - [`Ring`] notes each [`Sample`] where it happens, and the thread takes them out later.
//! - [`Queue`] holds overflows back until the program looks for them, as from a channel, by a
//!   descriptor that can be polled.
//! - [`set_handler`] gives a function that is called with each [`Sample`], in a signal handler, and
//!   is therefore unsafe.
//! - A signal handler of one's own decodes the signal with [`Overflow::from_siginfo`] and calls
//!   [`go_on`]; both may be used there.
//!
//! The `n`th signal or record of a counter means that its count has reached `n` times its period.
//! The count may be past that by the instructions that the processor retires between the overflow
//! and its interrupt (the skid); what is past counts for the next period, so periods do not drift.
#![expect(unsafe_code, reason = "signals carry a C union, and resuming is a system call")]

#[cfg(target_arch = "x86_64")]
mod handler;
mod queue;
mod records;
#[cfg(target_arch = "x86_64")]
mod ring;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use shared_abi::ioctl::{IOC_RESUME, SIGNAL_CODE};

#[cfg(target_arch = "x86_64")]
pub use self::handler::{Handler, set_handler};
pub use self::queue::Queue;
pub use self::records::{Record, Records, Waited};
#[cfg(target_arch = "x86_64")]
pub use self::ring::Ring;
use crate::sys::Device;

/// Which counters have overflowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overflow {
    /// One bit per counter, in the order in which they were given at the start.
    counters: u32,
}

impl Overflow {
    /// Decodes a signal's information; `None` if it is not one of an overflow.
    ///
    /// May be called in signal handlers.
    pub fn from_siginfo(info: &libc::siginfo_t) -> Option<Self> {
        // SAFETY: with this code the kernel has put the counters where others have a process id,
        // which is part of every signal's information that a handler gets.
        (info.si_code == SIGNAL_CODE).then(|| Self { counters: unsafe { info.si_pid() } as u32 })
    }

    fn from_signalfd(info: &libc::signalfd_siginfo) -> Option<Self> {
        (info.ssi_code == SIGNAL_CODE).then_some(Self { counters: info.ssi_pid })
    }

    /// Whether counter `n`, in the order in which they were given at the start, has overflowed.
    pub const fn contains(self, n: usize) -> bool {
        n < u32::BITS as usize && self.counters >> n & 1 != 0
    }

    /// The counters that have overflowed.
    pub fn counters(self) -> impl Iterator<Item = usize> {
        (0..u32::BITS as usize).filter(move |&n| self.contains(n))
    }
}

/// One overflow, where it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// The counters.
    pub overflow: Overflow,
    /// The instruction that the thread was about to execute.
    pub ip: usize,
}

/// Lets a thread's counters go on after an overflow.
///
/// It borrows the session that it comes from.  In a signal handler, where there is nothing to
/// borrow from, [`go_on`] does the same.
#[derive(Clone, Copy, Debug)]
pub struct Resumer<'session>(BorrowedFd<'session>);

impl<'session> Resumer<'session> {
    pub(crate) fn new(device: &'session Device) -> Self {
        Self(device.as_fd())
    }

    /// Lets the counters go on.
    ///
    /// # Errors
    ///
    /// The kernel's: `EPERM` they are not paused, `ESRCH` another thread's.
    pub fn resume(self) -> io::Result<()> {
        resume(self.0.as_raw_fd())
    }
}

thread_local! {
    /// Of this thread's session, while it samples.
    static DEVICE: Cell<RawFd> = const { Cell::new(-1) };
}

/// The calling thread's session samples by this descriptor, or is gone.
pub(crate) fn go_on_by(device: Option<RawFd>) {
    DEVICE.set(device.unwrap_or(-1));
}

/// Lets the counters of the calling thread's session go on after an overflow.
///
/// May be called in signal handlers: it does nothing but a system call, and leaves `errno` as it
/// was.
///
/// # Errors
///
/// The kernel's: `EPERM` they are not paused, `EBADF` the thread has no session that samples.
pub fn go_on() -> io::Result<()> {
    resume(DEVICE.get())
}

fn resume(device: RawFd) -> io::Result<()> {
    // SAFETY: the calling thread's `errno` always exists; this request has no argument.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let result = if libc::ioctl(device, IOC_RESUME.into(), 0) == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        };
        *errno = before;
        result
    }
}

#[cfg(test)]
mod tests;
