// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The device's pages as the kernel maps them: the thread's, then each vCPU's.
#![expect(unsafe_code, reason = "a mapping is a pointer; this gives it a type")]

use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;

use memmap2::{MmapOptions, MmapRaw};
use shared_abi::limits::{MAX_VCPUS, PAGE_BYTES};
use shared_abi::{ThreadPage, VcpuPage};

use crate::error::Error;
use crate::sys::Generation;

/// A read-only mapping of `1 + vcpus` pages.
#[derive(Debug)]
pub(crate) struct Pages {
    /// Unmapped by `drop` in the process that made it, and in no other.
    map: ManuallyDrop<MmapRaw>,
    vcpus: u32,
    generation: Generation,
}

impl Pages {
    pub(crate) fn new(device: &impl AsRawFd, vcpus: u32) -> Result<Self, Error> {
        if vcpus == 0 || vcpus as usize > MAX_VCPUS {
            return Err(Error::Malformed("number of vCPUs"));
        }
        let map = MmapOptions::new()
            .len((1 + vcpus as usize) * PAGE_BYTES)
            .map_raw_read_only(device)
            .map_err(|source| Error::Kernel { operation: "map the counter pages", source })?;
        Ok(Self { map: ManuallyDrop::new(map), vcpus, generation: Generation::current() })
    }

    /// Whether this process inherited the session but not the mapping.
    #[inline(always)]
    pub(crate) fn forked(&self) -> bool {
        self.generation != Generation::current()
    }

    /// The calling thread's page.  Not for forked processes, which have no mapping.
    #[inline(always)]
    pub(crate) fn thread(&self) -> &ThreadPage {
        // SAFETY: the mapping is page-aligned, starts with a thread page and lives as long as
        // `self`; the page consists of atomics, so others may write it at any time.
        unsafe { &*self.map.as_ptr().cast::<ThreadPage>() }
    }

    /// The page of vCPU `n`, if there is one.  Not for forked processes.
    #[inline(always)]
    pub(crate) fn vcpu(&self, n: u32) -> Option<&VcpuPage> {
        if n >= self.vcpus {
            return None;
        }
        // SAFETY: as above; `1 + vcpus` pages are mapped and `n` is less than `vcpus`.
        Some(unsafe { &*self.map.as_ptr().add((1 + n as usize) * PAGE_BYTES).cast::<VcpuPage>() })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // The kernel does not copy the mapping to a forked child, where something else may lie at
        // this address by now.
        if !self.forked() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}
