// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Programs that are observed from their first instruction on, with all that they start.

pub mod child;
pub mod device;
pub mod ptrace;
pub mod tracer;

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use libc::pid_t;
use signal_hook::consts::{SIGINT, SIGQUIT};

/// What interrupts the program must not keep its observer from telling of it.
pub fn outlive_interrupts() -> io::Result<()> {
    // Handlers, unlike ignored signals, are not handed down to the program.
    for signal in [SIGINT, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}

/// The thread's name; empty if it has been killed.
pub fn name(pid: pid_t) -> String {
    let text: io::Result<String> = fs::read_to_string(format!("/proc/{pid}/comm"));
    text.unwrap_or_default().trim_end().to_owned()
}
