// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Predicts how much two readings differ in addition to the measured code. That is what a read
//! itself executes, which its machine code shows.
//!
//! A child process is single-stepped through the very code that measures. Its counters' pages are
//! replaced by copies that nobody writes, since stepping would otherwise disturb every read. To
//! make a read start over, the copy's sequence word is changed in the middle of the read.
#![expect(unsafe_code, reason = "mappings are pointers")]

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use anyhow::{Context, Result, ensure};
use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags, mmap_anonymous, mremap, munmap};
use perfctr::{Error, Event, Provider, Reading, Session};
use shared_abi::limits::{MAX_VCPUS, PAGE_BYTES};
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::sync::{AtomicU64, Ordering, fence};
use shared_abi::{ThreadPage, VcpuPage};

use crate::step::{Executed, Kind, Trace};

/// The difference of two readings in addition to what is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// The difference without a retry of the later reading.
    pub once: Executed,
    /// The further difference for each of its retries.
    pub per_retry: Executed,
}

impl Overhead {
    /// Returns the overhead of each of the `N` counters in the difference of two readings that
    /// `difference` returns when it measures `region`.
    ///
    /// # Errors
    ///
    /// The thread has counters already, or cannot be stepped.
    pub fn of<const N: usize>(
        region: Executed,
        difference: fn(&Session) -> Result<Reading<N>, Error>,
    ) -> Result<[Self; N]> {
        let undisturbed =
            Stepped::new()?.trace(N, |session| difference(session).map(drop), None)?;
        // This is the first RDPMC of the later read.
        let disturbed =
            Stepped::new()?.trace(N, |session| difference(session).map(drop), Some(N))?;
        let (straight, retried) = (undisturbed.places(Kind::Rdpmc), disturbed.places(Kind::Rdpmc));
        ensure!(
            (straight.len(), retried.len()) == (2 * N, 3 * N),
            "{} and {} RDPMCs in two reads of {N} counters",
            straight.len(),
            retried.len()
        );
        Ok(std::array::from_fn(|n| {
            let once = undisturbed.between(straight[n], straight[N + n]).less(region);
            let retry = disturbed.between(retried[N + n], retried[2 * N + n]);
            Self { once, per_retry: retry }
        }))
    }

    /// Does the same as [`of`](Self::of), where all counters have the same overhead.
    ///
    /// # Errors
    ///
    /// The errors of [`of`](Self::of), or the overheads differ.
    pub fn of_all<const N: usize>(
        region: Executed,
        difference: fn(&Session) -> Result<Reading<N>, Error>,
    ) -> Result<Self> {
        let all = Self::of(region, difference)?;
        let first = *all.first().context("no counter")?;
        ensure!(all.iter().all(|one| *one == first), "overheads of counters differ: {all:?}");
        Ok(first)
    }
}

/// A child process to be stepped, and the pages that it reads instead of its counters'.
#[derive(Debug)]
pub struct Stepped {
    pages: NonNull<c_void>,
}

/// A stepped child counts these events, and nobody reads their counts.
const EVENTS: [Event; 4] = [
    Event::INSTRUCTIONS.user(),
    Event::BRANCHES.user(),
    Event::CYCLES.user(),
    Event::BRANCHES.user(),
];

/// The memory for the most pages that there can be.
const BYTES: NonZeroUsize = NonZeroUsize::new((1 + MAX_VCPUS) * PAGE_BYTES).unwrap();
const WORDS_PER_PAGE: usize = PAGE_BYTES / size_of::<AtomicU64>();

impl Stepped {
    /// Gets memory for the pages.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new() -> Result<Self> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let pages = unsafe { mmap_anonymous(None, BYTES, access, MapFlags::MAP_SHARED)? };
        Ok(Self { pages })
    }

    /// Steps through `body` in a child that counts with this many counters. The read that executes
    /// the RDPMC of this number starts over.
    ///
    /// # Errors
    ///
    /// The errors of [`Trace::of`].
    pub fn trace(
        &self,
        counters: usize,
        body: impl FnOnce(&mut Session) -> Result<(), Error>,
        disturb: Option<usize>,
    ) -> Result<Trace> {
        let prepare = || {
            let mut session = Session::open_with(Provider::Paravirt)?;
            session.start(&EVENTS[..counters])?;
            self.replace(&session)?;
            Ok(session)
        };
        let body = |mut session: Session| {
            body(&mut session)?;
            // The session's pages are no longer the device's, so it must not be dropped.
            std::mem::forget(session);
            Ok(())
        };
        Trace::of(prepare, body, |rdpmc| {
            if disturb == Some(rdpmc) {
                // The writer of a page leaves an even number.
                self.word(SEQ_OFFSET).fetch_add(2, Relaxed);
            }
        })
    }

    /// Lets the session read copies of its pages.
    fn replace(&self, session: &Session) -> Result<()> {
        let thread: *const ThreadPage =
            session.thread_page().context("a new session has a page")?;
        let pages = 1 + session.description().vcpus as usize;
        loop {
            let stamp = self.stamps(session)?;
            for word in 0..pages * WORDS_PER_PAGE {
                // SAFETY: the device's pages lie one after the other, and consist of atomics.
                let original = unsafe { &*thread.cast::<AtomicU64>().add(word) };
                self.word(word * size_of::<AtomicU64>()).store(original.load(Relaxed), Relaxed);
            }
            // ATOMICS: the copied words are not newer than the stamps.
            fence(Ordering::Acquire);
            if self.stamps(session)? == stamp {
                break;
            }
        }
        let bytes = NonZeroUsize::new(pages * PAGE_BYTES).context("there are pages")?;
        let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
        let device = NonNull::new(thread.cast_mut().cast()).context("a page has an address")?;
        // SAFETY: the new mapping only reserves a place, to which the device's mapping is moved. No
        // reference to that is alive. It stays mapped, since a process with none of its pages may
        // not execute RDPMC. The copies are moved to its former place, and this process no longer
        // uses its own view of them.
        unsafe {
            let aside = mmap_anonymous(None, bytes, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE)?;
            mremap(device, bytes.get(), bytes.get(), flags, Some(aside))?;
            mremap(self.pages, bytes.get(), bytes.get(), flags, Some(device))?;
        }
        Ok(())
    }

    /// Returns stamps that change whenever the page of the thread or the page of its vCPU does.
    fn stamps(&self, session: &Session) -> Result<impl PartialEq + use<>> {
        let thread = session.thread_page().context("a new session has a page")?;
        let vcpu = thread.vcpu.load(Relaxed);
        let page: &VcpuPage = session.vcpu_page(vcpu).context("a vCPU has no page")?;
        Ok((thread.seq.stamp(), vcpu, page.seq.stamp()))
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset < BYTES.get() && offset.is_multiple_of(size_of::<AtomicU64>()));
        // SAFETY: the offset is inside the mapping, which lives as long as this process.
        unsafe { &*self.pages.as_ptr().cast::<u8>().add(offset).cast::<AtomicU64>() }
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it is alive.
        let result = unsafe { munmap(self.pages, BYTES.get()) };
        debug_assert!(result.is_ok());
    }
}

/// The offset of the thread page's sequence word.
const SEQ_OFFSET: usize = std::mem::offset_of!(ThreadPage, seq);
