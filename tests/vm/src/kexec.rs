// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Starts another kernel from this one, without the machine's firmware.
#![expect(unsafe_code, reason = "no crate has these system calls")]

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;

/// Starts this kernel with these first contents of its memory and these arguments. It returns only
/// if it cannot.
///
/// # Errors
///
/// A file cannot be read, or the kernel's refusal.
pub fn start(image: &str, initramfs: &str, arguments: &str) -> Result<Infallible> {
    let open = |path: &str| File::open(path).with_context(|| path.to_owned());
    let (kernel, initrd) = (open(image)?, open(initramfs)?);
    let arguments = CString::new(arguments)?;
    let length = arguments.as_bytes_with_nul().len();
    let flags = 0_usize;
    // SAFETY: the arguments are that long, and the kernel only reads them.
    let loaded = unsafe {
        libc::syscall(
            libc::SYS_kexec_file_load,
            kernel.as_raw_fd(),
            initrd.as_raw_fd(),
            length,
            arguments.as_ptr(),
            flags,
        )
    };
    Errno::result(loaded).context("kexec_file_load")?;
    // SAFETY: no argument is an address.
    unsafe { libc::reboot(libc::LINUX_REBOOT_CMD_KEXEC) };
    bail!("reboot: {}", Errno::last())
}
