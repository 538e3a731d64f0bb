// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Functions on descriptors, and what all handles do with their descriptors.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use perfctr::raw::{Device, online};
use shared_abi::Errno;
use shared_abi::ioctl;

use crate::abi::{ABI_MAJORS, ABI_VERSION, CpuMask, CpusInfo, Info, SumCtrs, VperfctrControl};
use crate::errno::Out;
use crate::{control, cpu, errno};

const WORD_BITS: u32 = u32::BITS;

/// Borrows a descriptor that C owns: dropping the result does not close it.
fn borrow(fd: c_int) -> Result<ManuallyDrop<Device>, Errno> {
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: nothing closes the descriptor, since the result is not dropped; a number that is none
    // any more makes the kernel refuse each request.
    Ok(ManuallyDrop::new(Device::from(unsafe { OwnedFd::from_raw_fd(fd) })))
}

pub(crate) fn open_device() -> Result<Device, Errno> {
    errno::from(Device::open())
}

pub(crate) fn info(device: &Device) -> Result<Info, Errno> {
    Ok(cpu::info(&errno::from(device.info())?))
}

/// Sets the counters. If that is refused they are stopped, as with perfctr.
pub(crate) fn set(
    device: &Device,
    info: &ioctl::Info,
    from: &VperfctrControl,
) -> Result<(), Errno> {
    set_by(|control| errno::from(device.control(control)), info, from)
}

fn set_by(
    mut set: impl FnMut(&ioctl::Control) -> Result<(), Errno>,
    info: &ioctl::Info,
    from: &VperfctrControl,
) -> Result<(), Errno> {
    let result = control::of_thread(info, from)
        .and_then(|control| set(&control))
        .map_err(|error| if error == Errno::OPNOTSUPP { Errno::PERM } else { error });
    if result.is_err() {
        // The error that is reported is that of setting the counters.
        let _ = set(&ioctl::Control::default());
    }
    result
}

pub(crate) fn sums(device: &Device) -> Result<SumCtrs, Errno> {
    let sums = errno::from(device.sums())?;
    Ok(SumCtrs { tsc: sums.tsc, pmc: sums.counter })
}

pub(crate) fn read_control(device: &Device) -> Result<VperfctrControl, Errno> {
    Ok(control::thread_from_device(&errno::from(device.read_control())?))
}

/// Returns the words of a mask of these CPUs, without those that the module does not count: there
/// are `vcpus` that it counts.
fn mask_of(cpus: &[u32], vcpus: u32) -> Vec<u32> {
    let mut words = vec![0; vcpus.div_ceil(WORD_BITS).max(1) as usize];
    for cpu in cpus.iter().filter(|cpu| **cpu < vcpus) {
        words[(cpu / WORD_BITS) as usize] |= 1 << (cpu % WORD_BITS);
    }
    words
}

/// Returns one block of the C library's memory, which its receiver frees at once.
pub(crate) fn cpus_info(device: &Device) -> Result<*mut CpusInfo, Errno> {
    let vcpus = errno::from(device.info())?.vcpus;
    let online = online().map_err(|error| errno::of(&error))?;
    let words = mask_of(&online, vcpus);
    let mask_bytes =
        (size_of::<u32>() * (1 + words.len())).next_multiple_of(align_of::<CpusInfo>());
    // SAFETY: the size is not 0.
    let block = unsafe { libc::calloc(1, size_of::<CpusInfo>() + 2 * mask_bytes) };
    if block.is_null() {
        return Err(Errno::NOMEM);
    }
    let info = block.cast::<CpusInfo>();
    // SAFETY: the block holds the structure and, behind it, two masks of these words; all of it is
    // zeroed and calloc aligns it for any type.
    unsafe {
        let cpus = info.add(1).cast::<CpuMask>();
        let forbidden = cpus.byte_add(mask_bytes);
        (*cpus).nrwords = words.len() as u32;
        (*forbidden).nrwords = words.len() as u32;
        let mask = (&raw mut (*cpus).mask).cast::<u32>();
        mask.copy_from_nonoverlapping(words.as_ptr(), words.len());
        info.write(CpusInfo { cpus, cpus_forbidden: forbidden });
    }
    Ok(info)
}

fn open_descriptor(creat: bool) -> Result<c_int, Errno> {
    let device = open_device()?;
    let bound = if creat { device.create_for(0) } else { device.open_for(0) };
    match errno::from(bound) {
        // The thread has no counters. The descriptor still gives information.
        Err(Errno::SRCH) if !creat => {}
        other => other?,
    }
    Ok(OwnedFd::from(device).into_raw_fd())
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn _vperfctr_open(creat: c_int) -> c_int {
    errno::number(open_descriptor(creat != 0))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn _vperfctr_control(fd: c_int, from: Option<&VperfctrControl>) -> c_int {
    errno::status(borrow(fd).and_then(|device| {
        let info = errno::from(device.info())?;
        set(&device, &info, &errno::take(from)?)
    }))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn _vperfctr_read_control(fd: c_int, to: Out<'_, VperfctrControl>) -> c_int {
    errno::status(errno::give(to, borrow(fd).and_then(|device| read_control(&device))))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn _vperfctr_read_sum(fd: c_int, to: Out<'_, SumCtrs>) -> c_int {
    errno::status(errno::give(to, borrow(fd).and_then(|device| sums(&device))))
}

/// Returns whether a program that was built for one ABI is compatible with a library of the other.
const fn understands(library: u32, program: u32) -> bool {
    (library ^ program) & ABI_MAJORS == 0
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn _perfctr_abi_check_fd(fd: c_int, user_abi: u32) -> c_int {
    let asked = borrow(fd).and_then(|device| info(&device));
    errno::status(asked.and_then(|info| {
        if understands(info.abi_version, user_abi) {
            return Ok(());
        }
        eprintln!(
            "perfctr: the library's ABI is {ABI_VERSION:#010x}, the program's {user_abi:#010x}"
        );
        Err(Errno::PROTO)
    }))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_info(fd: c_int, to: Out<'_, Info>) -> c_int {
    errno::status(errno::give(to, borrow(fd).and_then(|device| info(&device))))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_get_info(to: Out<'_, Info>) -> c_int {
    errno::status(errno::give(to, open_device().and_then(|device| info(&device))))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn perfctr_cpus_info(fd: c_int) -> *mut CpusInfo {
    errno::pointer(borrow(fd).and_then(|device| cpus_info(&device)))
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn both_major_versions_have_to_agree_and_no_minor_one() {
        assert_eq!(ABI_VERSION, 0x0502_0501);
        for program in [0x0502_0501, 0x0501_0501, 0x0502_0500, 0x05ff_0500] {
            assert!(understands(ABI_VERSION, program), "{program:#x}");
        }
        for program in [0x0402_0501, 0x0502_0401, 0x0602_0601, 0] {
            assert!(!understands(ABI_VERSION, program), "{program:#x}");
        }
    }

    #[test]
    fn what_is_refused_leaves_nothing_that_counts() {
        let mut info = ioctl::Info::default();
        info.caps.vendor = shared_abi::caps::VENDOR_INTEL;
        let set = |from: &VperfctrControl, answer: Result<(), Errno>| {
            let mut asked = Vec::new();
            let result = set_by(
                |control| {
                    asked.push((control.flags, control.counters));
                    if asked.len() == 1 { answer } else { Err(Errno(libc::EIO)) }
                },
                &info,
                from,
            );
            (result, asked)
        };
        let mut counts = VperfctrControl::new_zeroed();
        counts.cpu_control.tsc_on = 1;
        let nothing = (0, 0);
        let wanted = (ioctl::CONTROL_TSC | ioctl::CONTROL_KEEP_TSC, 0);
        assert_eq!(set(&counts, Ok(())), (Ok(()), vec![wanted]));
        for (answer, reported) in [(Errno::INVAL, Errno::INVAL), (Errno::OPNOTSUPP, Errno::PERM)] {
            assert_eq!(set(&counts, Err(answer)), (Err(reported), vec![wanted, nothing]));
        }
        counts.cpu_control.nractrs = u32::MAX;
        let (result, asked) = set(&counts, Ok(()));
        assert_eq!((result, asked), (Err(Errno::INVAL), vec![nothing]), "the device is not asked");
    }

    #[test]
    fn a_mask_has_each_cpu_that_the_module_counts_and_no_other() {
        for (cpus, vcpus, words) in [
            (&[0, 2, 3, 4, 31][..], 4, &[0b1101][..]),
            (&[0, 31, 32, 33, 63, 64], 33, &[1 | 1 << 31, 1]),
            (&[1, 40, 63, 64, 200], 64, &[0b10, 1 << 8 | 1 << 31]),
            (&[], 65, &[0, 0, 0]),
            (&[0], 0, &[0]),
        ] {
            assert_eq!(mask_of(cpus, vcpus), words, "{cpus:?} of {vcpus}");
        }
    }

    #[test]
    fn a_descriptor_that_is_none_is_refused() {
        assert_eq!(_perfctr_abi_check_fd(-1, ABI_VERSION), -1);
        assert_eq!(perfctr_info(0, None), -1);
        assert_eq!(_vperfctr_control(-1, None), -1);
        assert!(perfctr_cpus_info(-1).is_null());
    }
}
