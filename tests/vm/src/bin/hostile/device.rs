// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes the device's requests as a program without the library does.

use std::fs::File;
use std::io;

use shared_abi::CounterConfig;
use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_OS, EVNTSEL_USR};
use shared_abi::config::MODE_SAMPLING;
use shared_abi::ioctl::{
    CONTROL_TSC, Control, Create, DEVICE_PATH, IOC_CONTROL, IOC_CREATE, IOC_INFO, IOC_READ,
    IOC_RESUME, IOC_UNLINK, Info, Sums,
};
use shared_abi::version::{ABI_MAJOR, ABI_MINOR};
use vm_tests::raw::{Argument, Refusal, ioctl};

/// A counter of retired instructions in user mode.
pub const USER: CounterConfig = CounterConfig {
    slot: 0,
    mode: 0,
    evntsel: 0xc0 | EVNTSEL_USR | EVNTSEL_EN,
    period: 0,
    reserved: 0,
};

/// A counter of retired instructions in kernel mode.
pub const KERNEL: CounterConfig = CounterConfig { evntsel: 0xc0 | EVNTSEL_OS | EVNTSEL_EN, ..USER };

/// Returns a control by which these counters and the TSC count, also after exec.
pub fn counting(counters: &[CounterConfig]) -> Control {
    let mut control =
        Control { flags: CONTROL_TSC, counters: counters.len() as u32, ..Control::default() };
    control.counter[..counters.len()].copy_from_slice(counters);
    control
}

/// Returns a control that samples instructions in user mode.
pub fn sampling(period: u64, signal: i32) -> Control {
    let counter = CounterConfig { mode: MODE_SAMPLING, period, ..USER };
    Control { signal: signal as u32, ..counting(&[counter]) }
}

/// Opens the device for reading only.
pub fn open_read_only() -> io::Result<File> {
    File::open(DEVICE_PATH)
}

fn named(tid: u32) -> Create {
    Create { abi_major: ABI_MAJOR.into(), abi_minor: ABI_MINOR.into(), tid, ..Create::default() }
}

/// Makes the request `IOC_CREATE`. A `tid` of 0 is the calling thread.
pub fn create(device: &File, tid: u32) -> Result<(), Refusal> {
    ioctl(device, IOC_CREATE, Argument::of(&mut named(tid)))
}

/// Makes the request `IOC_CONTROL`.
pub fn control(device: &File, mut control: Control) -> Result<(), Refusal> {
    ioctl(device, IOC_CONTROL, Argument::of(&mut control))
}

/// Makes the request `IOC_READ`.
pub fn read(device: &File) -> Result<Sums, Refusal> {
    let mut sums = Sums::default();
    ioctl(device, IOC_READ, Argument::of(&mut sums))?;
    Ok(sums)
}

/// Returns the number of pages of a whole mapping.
pub fn pages(device: &File) -> Result<usize, Refusal> {
    let mut info = Info::default();
    ioctl(device, IOC_INFO, Argument::of(&mut info))?;
    Ok(1 + info.vcpus as usize)
}

/// Makes the request `IOC_RESUME`.
pub fn resume(device: &File) -> Result<(), Refusal> {
    ioctl(device, IOC_RESUME, Argument::Null)
}

/// Makes the request `IOC_UNLINK`.
pub fn unlink(device: &File) -> Result<(), Refusal> {
    ioctl(device, IOC_UNLINK, Argument::Null)
}
