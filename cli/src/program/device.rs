// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gives other threads counters, through `/dev/perfctr`.

use anyhow::{Context, Result};
use libc::pid_t;
use perfctr::raw::Device;
use shared_abi::ioctl::Control;

/// Gives a stopped thread counters. Returns `None` if the thread has been killed meanwhile, or has
/// privileges that the caller does not have.
pub fn give(pid: pid_t, control: &Control) -> Result<Option<Device>> {
    let device = Device::open()?;
    match device.create_for(pid.cast_unsigned()).and_then(|()| device.control(control)) {
        Ok(()) => Ok(Some(device)),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(error) => Err(error).context("cannot give a thread counters"),
    }
}

/// Returns whether the thread still has counters.
pub fn has_counters(pid: pid_t) -> Result<bool> {
    match Device::open()?.open_for(pid.cast_unsigned()) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        Err(error) => Err(error).context("cannot find a thread's counters"),
    }
}
