// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Code with a known number of instructions, between two readings.
#![expect(unsafe_code, reason = "only assembly has a known number of instructions")]

use std::arch::asm;

use perfctr::{Error, Reading, Session};

use crate::rng::Rng;

/// Two loops with one store between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Iterations of the first loop, at least 1.
    pub first: u64,
    /// Iterations of the second loop, at least 1.
    pub second: u64,
}

impl Region {
    /// Instructions in a loop's body.
    const BODY: u64 = 2;
    /// Instructions between the loops.
    const BETWEEN: u64 = 1;

    /// Loops of about `iterations` in all, which must be at least 4.
    pub fn random(rng: &mut Rng, iterations: u64) -> Self {
        Self { first: rng.between(1, iterations / 2), second: rng.between(1, iterations / 2) }
    }

    /// Instructions that the region retires.  The one that stores counts once, even if it faults:
    /// the faulting attempt does not retire.
    pub const fn instructions(self) -> u64 {
        Self::BODY * (self.first + self.second) + Self::BETWEEN
    }

    /// Branches that the region retires, taken or not.
    pub const fn branches(self) -> u64 {
        self.first + self.second
    }

    /// Executes the region.
    #[inline(always)]
    pub fn execute(self, store: &mut u8) {
        // SAFETY: the only memory access is the store to where `store` points.
        unsafe {
            asm!(
                "2: dec {first}",
                "jnz 2b",
                "mov byte ptr [{store}], 1",
                "3: dec {second}",
                "jnz 3b",
                first = inout(reg) self.first => _,
                second = inout(reg) self.second => _,
                store = in(reg) store,
                options(nostack),
            );
        }
    }
}

/// Reads, executes the region, and reads again; gives the difference.
///
/// Both readings are taken by the same instructions, so every counter of a kind is apart by the
/// same constant: what one whole read and one call take.
///
/// # Errors
///
/// Those of [`Session::read`].
#[inline(never)]
pub fn measure<const N: usize>(
    session: &Session,
    region: Region,
    store: &mut u8,
) -> Result<Reading<N>, Error> {
    let opening = read::<N>(session)?;
    region.execute(store);
    let closing = read::<N>(session)?;
    Ok(closing - opening)
}

/// The one copy of the read.
#[inline(never)]
fn read<const N: usize>(session: &Session) -> Result<Reading<N>, Error> {
    session.read::<N>()
}

/// Reads twice, with nothing in between; gives the difference.
///
/// The reads are inlined, as they would be in a program that cares, so the first counter is apart
/// by what one read takes.
///
/// # Errors
///
/// Those of [`Session::read`].
#[inline(never)]
pub fn measure_read<const N: usize>(session: &Session) -> Result<Reading<N>, Error> {
    let opening = session.read::<N>()?;
    let closing = session.read::<N>()?;
    Ok(closing - opening)
}

/// Memory whose next page the guest has not mapped yet.
#[derive(Debug)]
pub struct FreshPages {
    memory: memory::Memory,
    next: usize,
}

impl FreshPages {
    const PAGES: usize = 64;

    /// Maps some pages.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new() -> nix::Result<Self> {
        Ok(Self { memory: memory::Memory::new(Self::PAGES)?, next: 0 })
    }

    /// A byte whose next access faults.
    ///
    /// # Errors
    ///
    /// The kernel does not take pages back.
    pub fn byte(&mut self) -> nix::Result<&mut u8> {
        if self.next == Self::PAGES {
            self.memory.forget()?;
            self.next = 0;
        }
        self.next += 1;
        Ok(self.memory.page(self.next - 1))
    }
}

/// Anonymous pages.
mod memory {
    use std::ffi::c_void;
    use std::num::NonZeroUsize;
    use std::ptr::NonNull;

    use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
    use shared_abi::limits::PAGE_BYTES;

    #[derive(Debug)]
    pub(super) struct Memory {
        start: NonNull<c_void>,
        bytes: NonZeroUsize,
    }

    impl Memory {
        pub(super) fn new(pages: usize) -> nix::Result<Self> {
            let bytes = NonZeroUsize::new(pages * PAGE_BYTES).ok_or(nix::errno::Errno::EINVAL)?;
            let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            // SAFETY: a new mapping, at an address that the kernel chooses.
            let start = unsafe { mmap_anonymous(None, bytes, access, MapFlags::MAP_PRIVATE)? };
            let memory = Self { start, bytes };
            // A huge page would make all but the first access fault-free.
            memory.advise(MmapAdvise::MADV_NOHUGEPAGE)?;
            Ok(memory)
        }

        /// Gives all pages back; they read as 0 again.
        pub(super) fn forget(&mut self) -> nix::Result<()> {
            self.advise(MmapAdvise::MADV_DONTNEED)
        }

        fn advise(&self, advise: MmapAdvise) -> nix::Result<()> {
            // SAFETY: the mapping is ours, and no reference into it is alive.
            unsafe { madvise(self.start, self.bytes.get(), advise) }
        }

        pub(super) fn page(&mut self, n: usize) -> &mut u8 {
            assert!(n < self.bytes.get() / PAGE_BYTES);
            // SAFETY: inside the mapping, which nobody else refers to.
            unsafe { self.start.cast::<u8>().add(n * PAGE_BYTES).as_mut() }
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: the mapping is ours, and no reference into it is alive.
            let result = unsafe { munmap(self.start, self.bytes.get()) };
            debug_assert!(result.is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_executed_and_truth_is_counted() {
        let region = Region { first: 3, second: 4 };
        let mut byte = 0;
        region.execute(&mut byte);
        assert_eq!(byte, 1);
        assert_eq!((region.instructions(), region.branches()), (15, 7));
    }

    #[test]
    fn pages_are_fresh_again_after_a_round() {
        let mut pages = FreshPages::new().unwrap();
        for _ in 0..3 * FreshPages::PAGES {
            let byte = pages.byte().unwrap();
            assert_eq!(*byte, 0);
            *byte = 1;
        }
    }
}
