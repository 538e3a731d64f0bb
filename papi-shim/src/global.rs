// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The functions `gperfctr_*`: counters of each CPU, whatever thread executes on it.

use std::ffi::c_int;

use perfctr::raw::Device;
use shared_abi::Errno;
use shared_abi::ioctl::CpuState;

use crate::abi::{CpusInfo, GperfctrCpuControl, GperfctrCpuState, Info, SumCtrs};
use crate::errno::Out;
use crate::handle::{Handle, Held, Table};
use crate::{control, errno, fd};

/// `struct gperfctr *`.
pub type Gperfctr = Handle<Device>;

impl Held for Device {
    const TABLE: &Table<Self> = {
        static TABLE: Table<Device> = Table::new(0x6770);
        &TABLE
    };
}

/// The shortest interval of sampling. The interval is not needed, since sums are read at once and
/// are 64 bits wide.
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
pub extern "C" fn gperfctr_open() -> Gperfctr {
    errno::handle(fd::open_device())
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gperfctr_close(handle: Gperfctr) {
    handle.close();
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gperfctr_control(handle: Gperfctr, from: Option<&GperfctrCpuControl>) -> c_int {
    errno::number(handle.with(|device| set(device, &errno::take(from)?)))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gperfctr_start(handle: Gperfctr, interval_usec: u32) -> c_int {
    if (1..INTERVAL_USEC_MIN).contains(&interval_usec) {
        return errno::status(Err(Errno::INVAL));
    }
    errno::number(handle.with(|device| errno::from(device.cpu_start())))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gperfctr_read(handle: Gperfctr, state: Option<&mut GperfctrCpuState>) -> c_int {
    errno::status(handle.with(|device| {
        let state = state.ok_or(Errno::INVAL)?;
        let read = errno::from(device.cpu_read(state.cpu))?;
        state.cpu_control = control::from_device(&read.control);
        state.sum = SumCtrs { tsc: read.sums.tsc, pmc: read.sums.counter };
        Ok(())
    }))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gperfctr_stop(handle: Gperfctr) -> c_int {
    errno::status(handle.with(|device| errno::from(device.cpu_stop())))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gperfctr_info(handle: Gperfctr, to: Out<'_, Info>) -> c_int {
    errno::status(handle.with(|device| errno::give(to, fd::info(device))))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn gperfctr_cpus_info(handle: Gperfctr) -> *mut CpusInfo {
    errno::pointer(handle.with(fd::cpus_info))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io;
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn intervals_from_the_shortest_one_on_reach_the_kernel() {
        let file = File::open("/dev/null").unwrap();
        let handle = Handle::open(Device::from(OwnedFd::from(file))).unwrap();
        let refused = |usec| {
            assert_eq!(gperfctr_start(handle, usec), -1);
            io::Error::last_os_error().raw_os_error()
        };
        for usec in [1, 9_999] {
            assert_eq!(refused(usec), Some(libc::EINVAL), "{usec}");
        }
        // This file's driver knows no request.
        for usec in [0, 10_000, 10_001, u32::MAX] {
            assert_eq!(refused(usec), Some(libc::ENOTTY), "{usec}");
        }
        gperfctr_close(handle);
    }
}
