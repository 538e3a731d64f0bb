// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes mappings of the device, allowed and forbidden ones.
#![expect(unsafe_code, reason = "mappings are pointers")]

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mprotect, munmap};
use shared_abi::limits::PAGE_BYTES;

/// A request for a mapping, which is shared and read-only unless it says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct MapRequest {
    /// The number of pages to map.
    pub pages: usize,
    /// The first page.
    pub offset: usize,
    /// Whether it is writable.
    pub writable: bool,
    /// Whether it is executable.
    pub executable: bool,
    /// Whether it is private.
    pub private: bool,
}

impl MapRequest {
    /// Returns a request that the device allows, if the number of pages is right.
    pub const fn pages(pages: usize) -> Self {
        Self { pages, offset: 0, writable: false, executable: false, private: false }
    }
}

/// A mapping whose contents are not read.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
}

/// Maps the device.
///
/// # Errors
///
/// The kernel's refusal.
pub fn map(device: &impl AsFd, request: &MapRequest) -> Result<Mapping, Errno> {
    let bytes = NonZeroUsize::new(request.pages * PAGE_BYTES).ok_or(Errno::EINVAL)?;
    let mut access = ProtFlags::PROT_READ;
    access.set(ProtFlags::PROT_WRITE, request.writable);
    access.set(ProtFlags::PROT_EXEC, request.executable);
    let kind = if request.private { MapFlags::MAP_PRIVATE } else { MapFlags::MAP_SHARED };
    let offset = (request.offset * PAGE_BYTES) as i64;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let start = unsafe { mmap(None, bytes, access, kind, device, offset)? };
    Ok(Mapping { start, bytes: bytes.get() })
}

impl Mapping {
    /// Asks the kernel for other access rights.
    ///
    /// # Errors
    ///
    /// The kernel's refusal.
    pub fn protect(&self, access: ProtFlags) -> Result<(), Errno> {
        // SAFETY: the mapping is ours, and there are no references into it.
        unsafe { mprotect(self.start, self.bytes, access) }
    }

    /// Makes a pipe refer to one of its pages.
    ///
    /// # Errors
    ///
    /// The kernel's refusal.
    pub fn splice(&self, page: usize, pipe: &impl AsFd) -> Result<(), Errno> {
        let at = self.start.as_ptr().wrapping_byte_add(page * PAGE_BYTES);
        let part = libc::iovec { iov_base: at, iov_len: PAGE_BYTES };
        // SAFETY: the kernel refers to mapped memory, and nobody here reads it.
        let spliced = unsafe { libc::vmsplice(pipe.as_fd().as_raw_fd(), &raw const part, 1, 0) };
        Errno::result(spliced).map(drop)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and there are no references into it.
        let result = unsafe { munmap(self.start, self.bytes) };
        debug_assert!(result.is_ok());
    }
}
