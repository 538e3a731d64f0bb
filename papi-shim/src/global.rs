// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `gperfctr_*`: what each CPU counts, whatever thread executes on it.

use std::ffi::c_int;

use perfctr::raw::Device;
use shared_abi::Errno;
use shared_abi::ioctl::CpuState;

use crate::abi::{CpusInfo, GperfctrCpuControl, GperfctrCpuState, Info, SumCtrs};
use crate::handle::{Handle, Pool};
use crate::{control, errno, fd};

/// `struct gperfctr`.
pub type Gperfctr = Handle<Device>;

static POOL: Pool<Device> = Pool::new(Vec::new());

/// The shortest interval of sampling, which there is no need for: sums are read at once and are
/// 64 bits wide.
const INTERVAL_USEC_MIN: u32 = 10_000;

fn set(device: &Device, from: &GperfctrCpuControl) -> Result<c_int, Errno> {
    if from.cpu_control.nrictrs != 0 {
        return Err(Errno::PERM);
    }
    let vendor = errno::from(device.info())?.caps.vendor;
    let control = control::to_device(vendor, &from.cpu_control, 0, 0)?;
    errno::from(device.cpu_control(&CpuState { cpu: from.cpu, control, ..CpuState::default() }))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gperfctr_open() -> *mut Gperfctr {
    errno::pointer(fd::open_device().map(|device| Handle::open(&POOL, device)))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle, which nobody else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gperfctr_close(handle: *mut Gperfctr) {
    // SAFETY: as the caller says.
    unsafe { Handle::close(&POOL, handle) };
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle; `from` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gperfctr_control(
    handle: *const Gperfctr,
    from: *mut GperfctrCpuControl,
) -> c_int {
    // SAFETY: as the caller says.
    let (device, from) = unsafe { (Handle::get(handle), errno::take(from)) };
    errno::number(device.and_then(|device| set(device, &from?)))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gperfctr_start(handle: *const Gperfctr, interval_usec: u32) -> c_int {
    if (1..INTERVAL_USEC_MIN).contains(&interval_usec) {
        return errno::status(Err(Errno::INVAL));
    }
    // SAFETY: as the caller says.
    let device = unsafe { Handle::get(handle) };
    errno::number(device.and_then(|device| errno::from(device.cpu_start())))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle; `state` is null or valid and can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gperfctr_read(
    handle: *const Gperfctr,
    state: *mut GperfctrCpuState,
) -> c_int {
    // SAFETY: as the caller says.
    let (device, state) = unsafe { (Handle::get(handle), state.as_mut()) };
    errno::status(device.and_then(|device| {
        let state = state.ok_or(Errno::INVAL)?;
        let read = errno::from(device.cpu_read(state.cpu))?;
        state.cpu_control = control::from_device(&read.control);
        state.sum = SumCtrs { tsc: read.sums.tsc, pmc: read.sums.counter };
        Ok(())
    }))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gperfctr_stop(handle: *const Gperfctr) -> c_int {
    // SAFETY: as the caller says.
    let device = unsafe { Handle::get(handle) };
    errno::status(device.and_then(|device| errno::from(device.cpu_stop())))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle; `to` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gperfctr_info(handle: *const Gperfctr, to: *mut Info) -> c_int {
    // SAFETY: as the caller says.
    let device = unsafe { Handle::get(handle) };
    // SAFETY: as the caller says.
    errno::status(device.and_then(|device| unsafe { errno::give(to, fd::info(device)) }))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gperfctr_cpus_info(handle: *const Gperfctr) -> *mut CpusInfo {
    // SAFETY: as the caller says.
    errno::pointer(unsafe { Handle::get(handle) }.and_then(fd::cpus_info))
}
