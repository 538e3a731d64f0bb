// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A child process that waits for permission before it executes a program.
#![expect(unsafe_code, reason = "fork, and what a child may do before exec")]

use std::error::Error;
use std::ffi::{CString, OsString};
use std::fmt;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use perfctr_gate::text::harmless;

use super::limits;

/// The waiting child. If this is dropped before the child has permission, the child ends without
/// having executed anything.
#[derive(Debug)]
pub struct Child {
    pid: libc::pid_t,
    /// The program's name in messages.
    program: String,
    leave: PipeWriter,
    /// The pipe by which it reports why it could not execute the program.
    failure: PipeReader,
}

impl Child {
    /// Forks the child.
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
        // SAFETY: the child calls only async-signal-safe functions.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).context("cannot fork"),
            0 => {
                // SAFETY: the pointers are to strings that live, and the last one is null.
                unsafe { execute(&wait, &leave, &fail, &pointers) }
            }
            pid => {
                limits::raise();
                let program = command.first().map(|word| word.display().to_string());
                let program = harmless(&program.unwrap_or_default());
                Ok(Self { pid, program, leave, failure })
            }
        }
    }

    pub fn pid(&self) -> libc::pid_t {
        self.pid
    }

    /// Lets it execute the program.
    pub fn go(self) -> io::Result<Started> {
        let Self { program, mut leave, failure, .. } = self;
        // The program may have ended before this thread continues.
        let at = Instant::now();
        match leave.write_all(&[1]) {
            // The child was killed, which is reported as its end.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            result => result?,
        }
        Ok(Started { at, program, failure })
    }
}

/// The child after it got permission.
#[derive(Debug)]
pub struct Started {
    at: Instant,
    program: String,
    failure: PipeReader,
}

impl Started {
    /// Returns the time since then. It has to be called when the program has ended.
    ///
    /// # Errors
    ///
    /// [`NotExecuted`] if the program could not be executed.
    pub fn ended(mut self) -> Result<Duration> {
        let elapsed = self.at.elapsed();
        let mut errno = [0; 4];
        match self.failure.read_exact(&mut errno) {
            Ok(()) => {
                let error = io::Error::from_raw_os_error(i32::from_ne_bytes(errno));
                Err(NotExecuted { program: self.program, error }.into())
            }
            // The program's start has closed the other end.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(elapsed),
            Err(error) => Err(error.into()),
        }
    }
}

/// A program could not be executed.
#[derive(Debug)]
pub struct NotExecuted {
    program: String,
    error: io::Error,
}

impl NotExecuted {
    /// Returns the status with which shells and `env` report this: 127 if there is no such program,
    /// 126 if it is not a program or the caller may not execute it.
    pub fn status(&self) -> u8 {
        if self.error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
    }
}

impl fmt::Display for NotExecuted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot execute {}: {}", self.program, self.error)
    }
}

impl Error for NotExecuted {}

/// Waits for permission and executes the program. Without permission, or if that fails, the child
/// ends.
///
/// # Safety
///
/// `words` are pointers to strings, and the last one is null.
unsafe fn execute(
    wait: &PipeReader,
    leave: &PipeWriter,
    fail: &PipeWriter,
    words: &[*const libc::c_char],
) -> ! {
    let mut byte = 0_u8;
    // SAFETY: these are system calls with open descriptors and a writable byte. `words` are as the
    // caller promises.
    unsafe {
        // If this end stayed open, the end of the parent would not end the wait.
        libc::close(leave.as_raw_fd());
        if libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1) == 1 {
            // Rust's runtime ignores SIGPIPE in this program. Programs start with the default.
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::execvp(words[0], words.as_ptr());
            let errno = *libc::__errno_location();
            libc::write(fail.as_raw_fd(), (&raw const errno).cast(), size_of_val(&errno));
        }
        libc::_exit(127)
    }
}
