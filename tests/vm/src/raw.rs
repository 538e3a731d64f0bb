// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes requests in the form in which they cross the boundary, good and bad ones.
#![expect(unsafe_code, reason = "ioctl takes a pointer")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use shared_abi::ioctl::DEVICE_PATH;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The argument of a request.
#[derive(Debug)]
pub enum Argument<'a> {
    /// Memory of this process, for reading and for writing.
    Bytes(&'a mut [u8]),
    /// No memory: the address 0, for requests without an argument or to be refused.
    Null,
    /// An address in the range that Xen keeps for itself in every PV guest.
    Hypervisor,
    /// An address that no page table can translate.
    NonCanonical,
}

impl<'a> Argument<'a> {
    /// Makes an argument of a structure's bytes.
    pub fn of<T: IntoBytes + FromBytes + Immutable>(structure: &'a mut T) -> Self {
        Self::Bytes(structure.as_mut_bytes())
    }

    /// Returns the address: that of the bytes that `self` borrows, or one at which this process has
    /// no memory.
    pub(crate) fn address(&mut self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.as_mut_ptr() as u64,
            Self::Null => 0,
            Self::Hypervisor => 0xffff_82d0_4000_0000,
            Self::NonCanonical => 0x0080_0000_0000_0000,
        }
    }

    pub(crate) fn len(&self) -> Option<usize> {
        match self {
            Self::Bytes(bytes) => Some(bytes.len()),
            _ => None,
        }
    }
}

/// A positive error number, with its name.
pub type Refusal = nix::errno::Errno;

/// Opens `/dev/perfctr`.
///
/// # Errors
///
/// There is no such device.
pub fn open_device() -> io::Result<File> {
    File::options().read(true).write(true).open(DEVICE_PATH)
}

/// Makes an ioctl.
///
/// # Errors
///
/// The kernel's refusal.
///
/// # Panics
///
/// The argument is shorter than the request's number says.
pub fn ioctl(device: &impl AsFd, request: u32, mut argument: Argument<'_>) -> Result<(), Refusal> {
    let size = (request >> 16 & 0x3fff) as usize;
    assert!(argument.len().is_none_or(|length| length >= size), "the argument is too short");
    // SAFETY: the argument's memory is as large as the request's number says, or not memory at all.
    let result =
        unsafe { libc::ioctl(device.as_fd().as_raw_fd(), request.into(), argument.address()) };
    Refusal::result(result).map(drop)
}
