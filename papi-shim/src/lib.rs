// SPDX-License-Identifier: MIT OR GPL-2.0-only
#![doc = include_str!("../README.md")]
#![expect(unsafe_code, reason = "the boundary to C")]

mod abi;
mod control;
mod cpu;
mod errno;
mod events;
mod fd;
mod global;
mod handle;
mod print;
mod remote;
mod thread;

use std::io;

fn machine_info() -> io::Result<abi::Info> {
    fd::open_device().and_then(|device| fd::info(&device)).map_err(errno::to_io)
}

/// Describes the machine as `perfctr_info_print` prints it.
///
/// # Errors
///
/// The device's error.
pub fn machine() -> io::Result<String> {
    machine_info().map(|info| print::info_text(&info))
}

/// Lists the events that have names on this machine, with the numbers of their event selects.
///
/// # Errors
///
/// The device's error.
pub fn events() -> io::Result<String> {
    machine_info().map(|info| events::text(info.cpu_type))
}
