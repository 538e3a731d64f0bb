// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! System calls, and the detection of forks.
#![expect(unsafe_code, reason = "ioctl and pthread_atfork take pointers")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use shared_abi::ioctl::{
    Control, Create, DEVICE_PATH, IOC_CONTROL, IOC_CREATE, IOC_INFO, IOC_READ, IOC_UNLINK, Info,
    Sums,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// How often this process's ancestors have forked since the library was first used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_fork() {
    // ATOMICS: a forked child has a single thread, so there is nothing to be ordered with.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

impl Generation {
    /// Makes forks count from now on.
    ///
    /// A child made by a bare `clone` or `vfork` is not seen; it faults when it reads, because the
    /// kernel does not copy the mapping to it either.
    pub(crate) fn watch() -> io::Result<()> {
        static WATCH: Once = Once::new();
        let mut error = 0;
        WATCH.call_once(|| {
            // SAFETY: the handler is async-signal-safe, as a child of a threaded process needs.
            error = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    }

    #[inline(always)]
    pub(crate) fn current() -> Self {
        // ATOMICS: see `count_fork`.
        Self(FORKS.load(Ordering::Relaxed))
    }
}

/// An open `/dev/perfctr`; see [`shared_abi::ioctl`].
#[derive(Debug)]
pub(crate) struct Device(File);

impl Device {
    pub(crate) const PATH: &str = DEVICE_PATH;

    pub(crate) fn open() -> io::Result<Self> {
        File::open(Self::PATH).map(Self)
    }

    pub(crate) fn info(&self) -> io::Result<Info> {
        self.ask(IOC_INFO)
    }

    pub(crate) fn create(&self, argument: &Create) -> io::Result<()> {
        self.tell(IOC_CREATE, argument)
    }

    pub(crate) fn control(&self, argument: &Control) -> io::Result<()> {
        self.tell(IOC_CONTROL, argument)
    }

    pub(crate) fn sums(&self) -> io::Result<Sums> {
        self.ask(IOC_READ)
    }

    pub(crate) fn unlink(&self) -> io::Result<()> {
        self.ioctl(IOC_UNLINK, std::ptr::null_mut())
    }

    fn ask<T: FromBytes + Default>(&self, request: u32) -> io::Result<T> {
        let mut answer = T::default();
        self.ioctl(request, (&raw mut answer).cast())?;
        Ok(answer)
    }

    fn tell<T: IntoBytes + Immutable>(&self, request: u32, argument: &T) -> io::Result<()> {
        self.ioctl(request, (&raw const *argument).cast_mut().cast())
    }

    fn ioctl(&self, request: u32, argument: *mut libc::c_void) -> io::Result<()> {
        // SAFETY: the request's number holds the argument's size, which is that of the type that
        // `ask` or `tell` was given; the device only writes arguments of `ask`, all of whose bit
        // patterns are valid.
        let result = unsafe { libc::ioctl(self.as_raw_fd(), request.into(), argument) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_is_seen_in_the_child_only() {
        Generation::watch().unwrap();
        let before = Generation::current();
        // SAFETY: the child calls nothing but async-signal-safe functions.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let seen = Generation::current() != before;
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(seen)) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1);
        assert_eq!(Generation::current(), before);
    }
}
