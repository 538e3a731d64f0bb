// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Overflows of sampling counters, and the records or signals by which a program learns of them.
//!
//! With [`Records`] the guest's kernel writes a record of each overflow. The counters do not
//! pause, and any thread takes the records later. This costs least, and is what a profiler needs.
//! The other ways are for programs that must react to an overflow at once.
//!
//! With [`start_sampling`](crate::Session::start_sampling) a thread gets a signal at each overflow
//! of an [`Event`](crate::Event) that has a [period](crate::Event::every). An overflow pauses the
//! thread's counters until the thread lets them go on. So neither the signal handler nor other
//! work for the sample is counted. There are four ways to receive the signal:
//!
//! - [`Ring`] stores each [`Sample`] when it happens, and the thread takes the samples later.
//! - [`Queue`] keeps overflows until the program takes them, like a channel. It has a descriptor
//!   that can be polled.
//! - [`set_handler`] sets a function that is called with each [`Sample`]. It is unsafe, because
//!   the function runs in a signal handler.
//! - The program has a signal handler of its own. It decodes the signal with
//!   [`Overflow::from_siginfo`] and calls [`go_on`]; both may be called in signal handlers.
//!
//! The `n`th signal or record of a counter means that its count has reached `n` times its period.
//! The processor may retire some more instructions between the overflow and its interrupt (the
//! skid). What they count belongs to the next period, so periods do not drift.
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

/// The set of counters that have overflowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overflow {
    /// One bit for each counter, in the order in which they were given at the start.
    counters: u32,
}

impl Overflow {
    /// Decodes a signal's information. Returns `None` if the signal does not report an overflow.
    ///
    /// It may be called in signal handlers.
    pub fn from_siginfo(info: &libc::siginfo_t) -> Option<Self> {
        // SAFETY: every signal's information has the word of the process id. With this code, the
        // kernel has stored the set of counters in that word.
        (info.si_code == SIGNAL_CODE).then(|| Self { counters: unsafe { info.si_pid() } as u32 })
    }

    fn from_signalfd(info: &libc::signalfd_siginfo) -> Option<Self> {
        (info.ssi_code == SIGNAL_CODE).then_some(Self { counters: info.ssi_pid })
    }

    /// Returns whether counter `n` has overflowed. Counters are numbered from 0 in the order in
    /// which they were given at the start.
    pub const fn contains(self, n: usize) -> bool {
        n < u32::BITS as usize && self.counters >> n & 1 != 0
    }

    /// Iterates over the numbers of the counters that have overflowed.
    pub fn counters(self) -> impl Iterator<Item = usize> {
        (0..u32::BITS as usize).filter(move |&n| self.contains(n))
    }
}

/// An overflow and where it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// The counters that have overflowed.
    pub overflow: Overflow,
    /// The address of the instruction that the thread was about to execute.
    pub ip: usize,
}

/// Lets a thread's counters go on after an overflow.
///
/// It borrows the session that it comes from. In a signal handler, where there is nothing to
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
    /// The kernel's error: `EPERM` if the counters are not paused, `ESRCH` if they belong to
    /// another thread.
    pub fn resume(self) -> io::Result<()> {
        resume(self.0.as_raw_fd())
    }
}

thread_local! {
    /// The descriptor of this thread's session while it samples, or -1.
    static DEVICE: Cell<RawFd> = const { Cell::new(-1) };
}

/// Notes the descriptor by which the calling thread's session samples, or that the session is gone.
pub(crate) fn go_on_by(device: Option<RawFd>) {
    DEVICE.set(device.unwrap_or(-1));
}

/// Lets the counters of the calling thread's session go on after an overflow.
///
/// It may be called in signal handlers: it only makes a system call, and leaves `errno` unchanged.
///
/// # Errors
///
/// The kernel's error: `EPERM` if the counters are not paused, `EBADF` if the thread has no session
/// that samples.
pub fn go_on() -> io::Result<()> {
    resume(DEVICE.get())
}

#[cfg(test)]
thread_local! {
    /// How often this thread has asked the module to let its counters go on.
    static RESUMED: Cell<u32> = const { Cell::new(0) };
}

fn resume(device: RawFd) -> io::Result<()> {
    #[cfg(test)]
    RESUMED.set(RESUMED.get() + 1);
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
