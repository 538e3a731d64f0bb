// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Code with a known number of instructions, which is measured between two readings or from a start
//! to a stop.
#![expect(unsafe_code, reason = "only assembly has a known number of instructions")]

use std::arch::asm;
use std::sync::Mutex;

use perfctr::rdpmc::Hardware;
use perfctr::{Counts, Error, Reading, Session};
use shared_abi::read::{ReadError, Snapshot, read_thread};

use crate::bodies::Body;
use crate::expected::Overhead;
use crate::rng::Rng;
use crate::step::Executed;

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

    /// Makes loops of about `iterations` in all, which must be at least 4.
    pub fn random(rng: &mut Rng, iterations: u64) -> Self {
        Self { first: rng.between(1, iterations / 2), second: rng.between(1, iterations / 2) }
    }

    /// Returns the number of instructions that the region retires. The one that stores counts once,
    /// even if it faults, since the faulting attempt does not retire.
    pub const fn instructions(self) -> u64 {
        Self::BODY * (self.first + self.second) + Self::BETWEEN
    }

    /// Returns the number of branches that the region retires, taken or not.
    pub const fn branches(self) -> u64 {
        self.first + self.second
    }

    /// Returns both numbers.
    pub const fn executed(self) -> Executed {
        Executed { instructions: self.instructions(), branches: self.branches() }
    }

    /// Executes the region.
    #[inline(always)]
    pub fn execute(self, store: &mut u8) {
        // SAFETY: the only memory access is the store through `store`.
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

/// Instructions and branches of [`known_loop`].
pub const KNOWN_LOOP: [u64; 2] = [1 + 2 * KNOWN_ITERATIONS, KNOWN_ITERATIONS];
const KNOWN_ITERATIONS: u64 = 1_000;

/// Executes a known loop. It has no arguments, so that it begins and ends without further
/// instructions.
#[inline(always)]
pub fn known_loop() {
    // SAFETY: the assembly changes one register, which it names, and no memory.
    unsafe {
        asm!(
            "mov {left:e}, {iterations}",
            "2: dec {left:e}",
            "jnz 2b",
            left = out(reg) _,
            iterations = const KNOWN_ITERATIONS,
            options(nomem, nostack),
        );
    }
}

/// Reads, executes the region, and reads again. Returns the difference.
///
/// The same instructions take both readings. So the difference of every counter of a kind has the
/// same overhead, which is the cost of one whole read and one call.
///
/// # Errors
///
/// The errors of [`Session::read`].
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

/// Does the same as [`measure`], until nothing has disturbed a reading. A reading that starts over
/// executes more, and so counts more.
///
/// # Errors
///
/// The errors of [`Session::read`]; [`Error::Disturbed`] if each of many readings began again.
pub fn measure_undisturbed<const N: usize>(
    session: &Session,
    region: Region,
    store: &mut u8,
) -> Result<Reading<N>, Error> {
    const ATTEMPTS: usize = 100;
    for _ in 0..ATTEMPTS {
        let reading = measure::<N>(session, region, store)?;
        if reading.retries == 0 {
            return Ok(reading);
        }
    }
    Err(Error::Disturbed)
}

/// Returns what [`measure`] of two counters counts in addition to the region. It is found by
/// single-stepping, once in a process.
///
/// # Errors
///
/// The process cannot be stepped.
pub fn overhead() -> anyhow::Result<Overhead> {
    const SHORT: Region = Region { first: 1, second: 1 };
    static OVERHEAD: Mutex<Option<Overhead>> = Mutex::new(None);
    let mut known = OVERHEAD.lock().expect("nobody panics");
    if known.is_none() {
        let difference = |session: &Session| measure::<2>(session, SHORT, &mut 0);
        *known = Some(Overhead::of_all(SHORT.executed(), difference)?);
    }
    Ok(known.expect("it was just found"))
}

/// Does the same as [`measure`], with a body of assembly in place of the region.
///
/// # Errors
///
/// The errors of [`Session::read`].
#[inline(never)]
pub fn measure_body<const N: usize>(
    session: &Session,
    body: &Body,
    memory: &mut [u8],
) -> Result<Reading<N>, Error> {
    let opening = read::<N>(session)?;
    body.execute(memory);
    let closing = read::<N>(session)?;
    Ok(closing - opening)
}

/// Does the same as [`measure`], with reads that store each number as soon as they have it. If they
/// store to `fresh` memory, which has not been touched yet, a fault in the middle disturbs the
/// read.
///
/// # Errors
///
/// The pages cannot be read directly.
#[inline(never)]
pub fn measure_into<const N: usize>(
    session: &Session,
    region: Region,
    store: &mut u8,
    fresh: &mut [u64; N],
) -> Result<Reading<N>, ReadError> {
    let mut warm = [0; N];
    let opening = read_into(session, &mut warm)?;
    region.execute(store);
    let closing = read_into(session, fresh)?;
    let mut reading = Reading::default();
    reading.tsc = closing.tsc - opening.tsc;
    reading.counts = std::array::from_fn(|n| fresh[n].wrapping_sub(warm[n]));
    (reading.retries, reading.direct) = (closing.retries, true);
    Ok(reading)
}

/// Reads and stores. This is the one copy of that code.
#[inline(never)]
fn read_into<const N: usize>(
    session: &Session,
    counts: &mut [u64; N],
) -> Result<Snapshot, ReadError> {
    let thread = session.thread_page().ok_or(ReadError::NotDirect)?;
    read_thread(thread, |n| session.vcpu_page(n), &Hardware, counts)
}

/// Continues counting, executes all regions, each after a read, and stops. Returns the number of
/// the reads' retries.
///
/// # Errors
///
/// The session's error.
#[inline(never)]
pub fn total<const N: usize>(
    session: &mut Session,
    regions: &[Region],
    store: &mut u8,
) -> Result<u32, Error> {
    session.resume()?;
    let mut retries = 0;
    for region in regions {
        retries += read::<N>(session)?.retries;
        region.execute(store);
    }
    session.stop()?;
    Ok(retries)
}

/// Reads. This is the one copy of that code.
#[inline(never)]
fn read<const N: usize>(session: &Session) -> Result<Reading<N>, Error> {
    session.read::<N>()
}

/// Reads twice, with nothing in between. Returns the difference.
///
/// The reads are inlined, as in a program for which their cost matters, so the first counter's
/// difference is what one read executes.
///
/// # Errors
///
/// The errors of [`Session::read`].
#[inline(never)]
pub fn measure_read<const N: usize>(session: &Session) -> Result<Reading<N>, Error> {
    let opening = session.read::<N>()?;
    let closing = session.read::<N>()?;
    Ok(closing - opening)
}

/// Does the same as [`measure_read`], with reads that leave out the TSC.
///
/// # Errors
///
/// The errors of [`Session::counts`].
#[inline(never)]
pub fn measure_counts<const N: usize>(session: &Session) -> Result<Reading<N>, Error> {
    let opening = session.counts::<N>()?;
    let closing = session.counts::<N>()?;
    let mut reading = Reading::default();
    let Counts { counts, retries, direct, .. } = closing - opening;
    (reading.counts, reading.retries, reading.direct) = (counts, retries, direct);
    Ok(reading)
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

    /// Returns some pages whose next accesses fault.
    ///
    /// # Errors
    ///
    /// The kernel does not take pages back.
    pub fn take(&mut self, pages: usize) -> nix::Result<&mut [u8]> {
        if self.next + pages > Self::PAGES {
            self.memory.forget()?;
            self.next = 0;
        }
        self.next += pages;
        Ok(self.memory.pages(self.next - pages, pages))
    }

    /// Returns a byte whose next access faults.
    ///
    /// # Errors
    ///
    /// The errors of [`take`](Self::take).
    pub fn byte(&mut self) -> nix::Result<&mut u8> {
        Ok(&mut self.take(1)?[0])
    }

    /// Returns memory for counts, whose next access faults.
    ///
    /// # Errors
    ///
    /// The errors of [`take`](Self::take).
    pub fn counts<const N: usize>(&mut self) -> nix::Result<&mut [u64; N]> {
        let counts = self.take(1)?.as_mut_ptr().cast::<[u64; N]>();
        // SAFETY: a page is aligned and has room for more than the counts. The result borrows the
        // page.
        Ok(unsafe { &mut *counts })
    }
}

/// Anonymous pages.
mod memory {
    use std::ffi::c_void;
    use std::num::NonZeroUsize;
    use std::ptr::NonNull;
    use std::slice;

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
            // With a huge page only the first access would fault. A kernel with PREEMPT_RT has no
            // huge pages, and refuses to be told so.
            match memory.advise(MmapAdvise::MADV_NOHUGEPAGE) {
                Err(error) if error != nix::errno::Errno::EINVAL => Err(error),
                _ => Ok(memory),
            }
        }

        /// Gives all pages back to the kernel. They read as 0 again.
        pub(super) fn forget(&mut self) -> nix::Result<()> {
            self.advise(MmapAdvise::MADV_DONTNEED)
        }

        fn advise(&self, advise: MmapAdvise) -> nix::Result<()> {
            // SAFETY: the mapping is ours, and no reference into it is alive.
            unsafe { madvise(self.start, self.bytes.get(), advise) }
        }

        pub(super) fn pages(&mut self, first: usize, pages: usize) -> &mut [u8] {
            assert!((first + pages) * PAGE_BYTES <= self.bytes.get());
            // SAFETY: inside the mapping, which nobody else refers to.
            unsafe {
                let start = self.start.cast::<u8>().add(first * PAGE_BYTES);
                slice::from_raw_parts_mut(start.as_ptr(), pages * PAGE_BYTES)
            }
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
