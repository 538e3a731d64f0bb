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

/// What the machine has, as `perfctr_info_print` prints it.
///
/// # Errors
///
/// What the device says.
pub fn machine() -> io::Result<String> {
    machine_info().map(|info| print::info_text(&info))
}

/// The events that are known by name on this machine, with the numbers of their event selects.
///
/// # Errors
///
/// What the device says.
pub fn events() -> io::Result<String> {
    machine_info().map(|info| events::text(info.cpu_type))
}
