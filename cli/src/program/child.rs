// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A process that waits for leave before it executes a program.
#![expect(unsafe_code, reason = "fork, and what a child may do before exec")]

use std::ffi::{CString, OsString};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The child.  Dropped before it has leave, it ends without having executed anything.
#[derive(Debug)]
pub struct Child {
    pid: libc::pid_t,
    leave: PipeWriter,
    /// Where it says why it could not execute the program.
    failure: PipeReader,
}

impl Child {
    /// Forks it.
    pub fn new(command: &[OsString]) -> Result<Self> {
        let words: Vec<CString> = command
            .iter()
            .map(|word| CString::new(word.as_bytes()))
            .collect::<Result<_, _>>()
            .context("a word of the command contains a zero byte")?;
        let mut pointers: Vec<*const libc::c_char> = words.iter().map(|w| w.as_ptr()).collect();
        pointers.push(ptr::null());
        let (wait, leave) = io::pipe()?;
        let (failure, fail) = io::pipe()?;
        // SAFETY: the child calls nothing but async-signal-safe functions.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).context("cannot fork"),
            0 => {
                // SAFETY: the pointers are to strings that live, and the last one is null.
                unsafe { execute(&wait, &leave, &fail, &pointers) }
            }
            pid => Ok(Self { pid, leave, failure }),
        }
    }

    pub fn pid(&self) -> libc::pid_t {
        self.pid
    }

    /// Lets it execute the program.
    pub fn go(mut self) -> io::Result<Started> {
        self.leave.write_all(&[1])?;
        Ok(Started { at: Instant::now(), failure: self.failure })
    }
}

/// The child has leave.
#[derive(Debug)]
pub struct Started {
    at: Instant,
    failure: PipeReader,
}

impl Started {
    /// The time since then, asked when the program has ended.
    ///
    /// # Errors
    ///
    /// Why it was not executed.
    pub fn ended(mut self) -> io::Result<Duration> {
        let elapsed = self.at.elapsed();
        let mut errno = [0; 4];
        match self.failure.read_exact(&mut errno) {
            Ok(()) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
            // The program's start has closed the other end.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(elapsed),
            Err(error) => Err(error),
        }
    }
}

/// Waits for leave, and executes the program; the child ends if it has none or cannot.
///
/// # Safety
///
/// `words` are pointers to strings, and null.
unsafe fn execute(
    wait: &PipeReader,
    leave: &PipeWriter,
    fail: &PipeWriter,
    words: &[*const libc::c_char],
) -> ! {
    let mut byte = 0_u8;
    // SAFETY: system calls with descriptors that are open and a byte that is writable; `words` are
    // as the caller says.
    unsafe {
        // Else the end of the parent would not end the wait.
        libc::close(leave.as_raw_fd());
        if libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1) == 1 {
            libc::execvp(words[0], words.as_ptr());
            let errno = *libc::__errno_location();
            libc::write(fail.as_raw_fd(), (&raw const errno).cast(), size_of_val(&errno));
        }
        libc::_exit(127)
    }
}
