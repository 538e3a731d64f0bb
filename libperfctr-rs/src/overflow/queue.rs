// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A queue of overflows that wait until the program takes them.
#![expect(unsafe_code, reason = "signal sets and descriptors are C's")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::Overflow;

/// A queue from which the calling thread takes its overflows when it wants to.
///
/// The signal is blocked and waits in the kernel. The counters stay paused until the thread has
/// [taken](Self::take) the overflow and [resumed](super::Resumer::resume) the counters.
#[derive(Debug)]
pub struct Queue(OwnedFd);

impl Queue {
    /// Blocks `signal` in the calling thread and receives it by a descriptor.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn new(signal: libc::c_int) -> io::Result<Self> {
        // SAFETY: the set is writable, and is initialised before it is used.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            if libc::sigaddset(&mut set, signal) < 0 {
                return Err(io::Error::last_os_error());
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let descriptor = libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(OwnedFd::from_raw_fd(descriptor)))
        }
    }

    /// Takes the next overflow, if there has been one. If the signal arrived for another reason,
    /// it is dropped.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn take(&self) -> io::Result<Option<Overflow>> {
        loop {
            let mut info = [0_u64; size_of::<libc::signalfd_siginfo>() / size_of::<u64>()];
            let bytes = size_of_val(&info);
            // SAFETY: `info` has this number of bytes, which are writable.
            let read = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), bytes) };
            if read < 0 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(None),
                    _ => Err(error),
                };
            }
            // SAFETY: every bit pattern is a `signalfd_siginfo`, which is as large and aligned.
            let info = unsafe { &*info.as_ptr().cast::<libc::signalfd_siginfo>() };
            if let Some(overflow) = Overflow::from_signalfd(info) {
                return Ok(Some(overflow));
            }
        }
    }
}

impl AsFd for Queue {
    /// Returns the descriptor, which is readable while an overflow waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
