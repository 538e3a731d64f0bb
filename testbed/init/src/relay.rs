// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Ports to the host on an emulator that has I/O ports in place of a virtio device.
//!
//! Each writer gets a pipe. One thread empties the pipes into the I/O ports. It empties `control`
//! only when the other pipes are empty, so that the last message follows everything that was
//! written before it. Only a write wakes the thread, since it would otherwise disturb measurements
//! on the machine.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe;

/// The kernel's file of all I/O ports, at the number of a port.
const PORTS: &str = "/dev/port";
/// The first port. The emulator appends what is written to it, or to any of the ports up to the
/// next file's, to the first file. The emulator's source says why it uses these ports.
const FIRST: u64 = 0x7000;
const PORTS_PER_FILE: u64 = 0x1000;

/// The pipes.
pub struct Relay {
    names: &'static [&'static str],
    writers: Vec<File>,
    thread: JoinHandle<Result<()>>,
}

impl Relay {
    /// Starts the thread, for ports of these names in the emulator's order.
    pub fn start(names: &'static [&'static str]) -> Result<Self> {
        let (mut readers, mut writers) = (Vec::new(), Vec::new());
        for _ in names {
            let (from, to): (OwnedFd, OwnedFd) = pipe()?;
            fcntl(&from, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
            readers.push(File::from(from));
            writers.push(File::from(to));
        }
        let ports = File::options().write(true).open(PORTS).context(PORTS)?;
        let thread = thread::spawn(move || relay(&ports, readers));
        Ok(Self { names, writers, thread })
    }

    /// Returns the pipe of a port.
    pub fn open(&self, name: &str) -> Result<File> {
        let n = self.names.iter().position(|known| *known == name).context("no such port")?;
        Ok(self.writers[n].try_clone()?)
    }

    /// Waits until all writers have closed their pipes and all was written.
    pub fn finish(self) -> Result<()> {
        drop(self.writers);
        self.thread.join().ok().context("the thread for the ports panicked")?
    }
}

/// Writes the content of the pipes to the ports, until all pipes have ended.
fn relay(ports: &File, readers: Vec<File>) -> Result<()> {
    let mut open: Vec<(usize, File)> = readers.into_iter().enumerate().rev().collect();
    let mut buffer = [0; PORTS_PER_FILE as usize];
    while !open.is_empty() {
        wait(&open)?;
        let mut wrote = false;
        let mut at = 0;
        // The pipe of the first name comes last.
        while at < open.len() && !wrote {
            let (n, reader) = &mut open[at];
            match reader.read(&mut buffer) {
                Ok(0) => {
                    open.remove(at);
                }
                Ok(size) => {
                    ports.write_all_at(&buffer[..size], FIRST + *n as u64 * PORTS_PER_FILE)?;
                    wrote = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => at += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Waits until one of the pipes has content, or has no writer any more.
fn wait(open: &[(usize, File)]) -> Result<()> {
    let mut pipes: Vec<PollFd<'_>> =
        open.iter().map(|pipe| PollFd::new(pipe.1.as_fd(), PollFlags::POLLIN)).collect();
    match poll(&mut pipes, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::NAMES;

    /// The emulator's source, which defines the ports.
    const EMULATOR: &str = include_str!("../../bochs/src/iodev/testbed.h");

    /// Returns a number that the emulator defines.
    fn defined(name: &str) -> u64 {
        let line = EMULATOR.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
        let number = line.unwrap_or_else(|| panic!("{name} is not defined"));
        match number.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => number.parse(),
        }
        .unwrap_or_else(|error| panic!("{name} is {number:?}: {error}"))
    }

    #[test]
    fn ports_are_the_emulators_and_no_other_devices() {
        assert_eq!(FIRST, defined("BX_TESTBED_PORTS"));
        assert_eq!(PORTS_PER_FILE, defined("BX_TESTBED_EACH"));
        assert_eq!(NAMES.len() as u64, defined("BX_TESTBED_FILES"));
        let names = NAMES.map(|name| format!("{name:?}")).join(", ");
        assert!(EMULATOR.contains(&format!("{{ {names} }}")), "the files are not {names}");
        assert!(FIRST + NAMES.len() as u64 * PORTS_PER_FILE <= defined("BX_TESTBED_END"));
    }
}
