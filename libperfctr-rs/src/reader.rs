// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The reader of a thread's counters from pages that the caller has mapped. It needs neither the
//! standard library nor a system call.
//!
//! With `default-features = false` the crate has only this module and [`rdpmc`](crate::rdpmc),
//! which need no operating system. They are meant for runtimes, tracers and signal handlers that
//! map the device themselves. [`Session`](https://docs.rs/libperfctr-rs) reads by the same
//! functions.
#![expect(unsafe_code, reason = "an address becomes pages of a type")]

use core::marker::PhantomData;

use shared_abi::limits::PAGE_BYTES;
pub use shared_abi::read::{ReadError, Snapshot};
use shared_abi::read::{read_counts, read_thread, try_read_thread};
use shared_abi::{ThreadPage, VcpuPage};

use crate::rdpmc::Hardware;

/// The pages of a descriptor of `/dev/perfctr`: the thread's page, then one page for each vCPU.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    first: *const u8,
    vcpus: u32,
    mapping: PhantomData<&'a ThreadPage>,
}

impl<'a> Reader<'a> {
    /// Makes a reader of the mapping that begins at `first`.
    ///
    /// # Safety
    ///
    /// `1 + vcpus` pages of a descriptor that is bound to a thread must be mapped at `first`, for
    /// reading, as long as `'a`.
    #[inline(always)]
    pub const unsafe fn new(first: *const u8, vcpus: u32) -> Self {
        Self { first, vcpus, mapping: PhantomData }
    }

    /// Reads the TSC and the first `counts.len()` counters. The descriptor must be bound to the
    /// calling thread; otherwise the values have no meaning.
    ///
    /// # Errors
    ///
    /// The errors of [`read_thread`].
    #[inline(always)]
    pub fn read(self, counts: &mut [u64]) -> Result<Snapshot, ReadError> {
        read_thread(self.thread(), move |n| self.vcpu(n), &Hardware, counts)
    }

    /// Makes one attempt of [`read`](Self::read). Returns the TSC, or `None` if the thread was
    /// disturbed or may not read directly.
    #[inline(always)]
    pub fn try_read(self, counts: &mut [u64]) -> Option<u64> {
        try_read_thread(self.thread(), move |n| self.vcpu(n), &Hardware, counts)
    }

    /// Reads the first `counts.len()` counters like [`read`](Self::read), without the TSC. The
    /// snapshot's TSC has no meaning.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    #[inline(always)]
    pub fn counts(self, counts: &mut [u64]) -> Result<Snapshot, ReadError> {
        read_counts(self.thread(), move |n| self.vcpu(n), &Hardware, counts)
    }

    /// Returns the thread's page.
    #[inline(always)]
    pub fn thread(self) -> &'a ThreadPage {
        // SAFETY: the mapping starts with a thread page, as `new` was promised; the page consists
        // of atomics, so others may write it at any time.
        unsafe { &*self.first.cast() }
    }

    /// Returns the page of vCPU `n`, if there is one.
    #[inline(always)]
    pub fn vcpu(self, n: u32) -> Option<&'a VcpuPage> {
        if n >= self.vcpus {
            return None;
        }
        // SAFETY: `new` was promised a mapping of `1 + vcpus` pages, and `n` is less than `vcpus`.
        // The page consists of atomics, so others may write it at any time.
        Some(unsafe { &*self.first.add((1 + n as usize) * PAGE_BYTES).cast() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;

    /// Pages as the kernel aligns them.
    #[repr(align(4096))]
    struct Mapping([u8; 3 * PAGE_BYTES]);

    #[test]
    fn a_stopped_thread_and_its_machine_are_found_in_the_pages() {
        let mut mapping = Mapping([0; 3 * PAGE_BYTES]);
        // SAFETY: three pages, of which all bytes are valid, live as long as this function, and
        // nobody else has a reference to them.
        let reader = unsafe { Reader::new(mapping.0.as_mut_ptr(), 2) };
        assert!(reader.vcpu(1).is_some() && reader.vcpu(2).is_none());
        let mut counts = [7];
        assert_eq!(reader.read(&mut counts), Err(ReadError::Malformed), "it has no counter");
        assert_eq!(reader.read(&mut []), Ok(Snapshot { tsc: 0, retries: 0 }));
        assert_eq!(reader.thread().counters.load(Relaxed), 0);
        // Each vCPU has a page of its own, behind the thread's.
        let place = |page: *const u8| page.addr() - mapping.0.as_ptr().addr();
        let vcpus = [0, 1].map(|n| place(core::ptr::from_ref(reader.vcpu(n).unwrap()).cast()));
        assert_eq!(place(core::ptr::from_ref(reader.thread()).cast()), 0);
        assert_eq!(vcpus, [PAGE_BYTES, 2 * PAGE_BYTES]);
    }
}
