// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Mappings of the pages that the kernel publishes: those of the device, and those of perf events.
#![expect(unsafe_code, reason = "a mapping is a pointer; this gives it a type")]

use std::hint::black_box;
use std::io;
use std::mem::{ManuallyDrop, offset_of};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};
use perf_event_open_sys::bindings::perf_event_mmap_page;
use shared_abi::limits::{MAX_VCPUS, PAGE_BYTES};
use shared_abi::read::Counters;
use shared_abi::ring::RING_FIRST_PAGE;
use shared_abi::{ThreadPage, VcpuPage};

use crate::error::Error;
use crate::rdpmc::survive_by_default;
use crate::reader::{ReadError, Reader, Snapshot};
use crate::sys::Generation;

/// A read-only mapping of a bound descriptor, which the kernel does not copy to a forked child.
///
/// A mapping of nothing is one of [no process](Generation::NONE), so a reader learns by one check
/// whether something is mapped that it may read.
#[derive(Debug)]
struct Mapping {
    /// `drop` unmaps it in the process that made it, and in no other.
    map: ManuallyDrop<Option<MmapRaw>>,
    generation: Generation,
}

impl Mapping {
    /// Maps `pages` pages of the descriptor from page `first` on.
    fn new(device: &impl AsRawFd, first: u64, pages: usize) -> Result<Self, Error> {
        Generation::watch().map_err(Error::kernel("watch for forks"))?;
        let map = MmapOptions::new()
            .offset(first * PAGE_BYTES as u64)
            .len(pages * PAGE_BYTES)
            .map_raw_read_only(device)
            .map_err(Error::kernel("map the counter pages"))?;
        Ok(Self { map: ManuallyDrop::new(Some(map)), generation: Generation::current() })
    }

    /// Makes a mapping of nothing.
    const fn none() -> Self {
        Self { map: ManuallyDrop::new(None), generation: Generation::NONE }
    }

    /// Returns what is mapped, or `None` in any other process than the one that has mapped it.
    #[inline(always)]
    fn mapped(&self) -> Option<&MmapRaw> {
        // SAFETY: only a mapping of nothing has no map, and its generation is that of no process.
        (!self.forked()).then(|| unsafe { self.map.as_ref().unwrap_unchecked() })
    }

    #[inline(always)]
    fn forked(&self) -> bool {
        self.generation != Generation::current()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child other memory may lie at this address by now.
        if !self.forked() {
            // SAFETY: this is the only place that drops the mapping, and `drop` runs once.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

/// A read-only mapping of a bound descriptor's `1 + vcpus` pages.
#[derive(Debug)]
pub struct Pages {
    mapping: Mapping,
    vcpus: u32,
}

impl Pages {
    /// Maps the pages, and makes reads that fault return an error from now on, unless the program
    /// wants otherwise. `vcpus` is the number of vCPUs that the device's info says.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if `vcpus` is larger than the interface allows, or the kernel's error.
    pub fn new(device: &impl AsRawFd, vcpus: u32) -> Result<Self, Error> {
        if vcpus == 0 || vcpus as usize > MAX_VCPUS {
            return Err(Error::Malformed("number of vCPUs"));
        }
        let mapping = Mapping::new(device, 0, 1 + vcpus as usize)?;
        survive_by_default();
        Ok(Self { mapping, vcpus })
    }

    /// Returns the pages of a provider that has none. They are never readable, as in a forked
    /// child.
    pub(crate) const fn none() -> Self {
        Self { mapping: Mapping::none(), vcpus: 0 }
    }

    /// Returns the reader of these pages, or `None` in a forked child, which inherited the session
    /// but not the mapping.
    #[inline(always)]
    pub fn reader(&self) -> Option<Reader<'_>> {
        let map = self.mapping.mapped()?;
        // SAFETY: `1 + vcpus` pages are mapped as long as `self` lives.
        Some(unsafe { Reader::new(map.as_ptr(), self.vcpus) })
    }

    /// Returns the thread's page, or `None` in a forked child.
    #[inline(always)]
    pub fn thread_page(&self) -> Option<&ThreadPage> {
        self.reader().map(Reader::thread)
    }

    /// Returns the page of vCPU `n`, or `None` if there is no such vCPU or in a forked child.
    #[inline(always)]
    pub fn vcpu_page(&self, n: u32) -> Option<&VcpuPage> {
        self.reader()?.vcpu(n)
    }

    /// Reads the TSC and the first `counts.len()` counters. The descriptor must be bound to the
    /// calling thread; otherwise the values have no meaning.
    ///
    /// # Errors
    ///
    /// The errors of [`Reader::read`]; [`ReadError::NotDirect`] in a forked child.
    #[inline(always)]
    pub fn read(&self, counts: &mut [u64]) -> Result<Snapshot, ReadError> {
        let Some(reader) = self.reader() else { return Err(no_pages()) };
        reader.read(counts)
    }

    /// Reads the first `counts.len()` counters like [`read`](Self::read), without the TSC. The
    /// snapshot's TSC has no meaning.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](Self::read).
    #[inline(always)]
    pub fn counts(&self, counts: &mut [u64]) -> Result<Snapshot, ReadError> {
        let Some(reader) = self.reader() else { return Err(no_pages()) };
        reader.counts(counts)
    }
}

/// Returns the error of a read without pages. This is a function of its own, because otherwise
/// compilers load the value before each read, even if no read needs it.
#[cold]
#[inline(never)]
fn no_pages() -> ReadError {
    black_box(ReadError::NotDirect)
}

/// A read-only mapping of a thread's ring.
#[derive(Debug)]
pub(crate) struct RingPages(Mapping);

impl RingPages {
    pub(crate) fn new(device: &impl AsRawFd, pages: u32) -> Result<Self, Error> {
        Mapping::new(device, RING_FIRST_PAGE, pages as usize).map(Self)
    }

    /// Copies words of the ring from this offset on, unit: bytes. It must be a multiple of 8.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`], or [`Error::Malformed`] if not all of the words are in the ring.
    pub(crate) fn load(&self, offset: usize, words: &mut [u64]) -> Result<(), Error> {
        let map = self.0.mapped().ok_or(Error::Forked)?;
        if !offset.is_multiple_of(8) || offset + size_of_val(words) > map.len() {
            return Err(Error::Malformed("record"));
        }
        for (n, word) in words.iter_mut().enumerate() {
            let at = map.as_ptr().wrapping_add(offset + 8 * n).cast::<AtomicU64>();
            // SAFETY: `at` is an aligned word of the mapping, which lives as long as `self`.
            // ATOMICS: the caller has seen that the kernel has written the record, and the kernel
            // does not change the record until the caller has taken it.
            *word = unsafe { (*at).load(Ordering::Relaxed) };
        }
        Ok(())
    }
}

/// A perf event's page, `struct perf_event_mmap_page`.
///
/// Like the device's pages it is not copied to a forked child. The group that it belongs to checks
/// for that.
#[derive(Debug)]
pub(crate) struct PerfPage {
    map: MmapRaw,
}

/// Loads the current value of a field of the page.
macro_rules! load {
    ($page:expr, $field:ident: $atomic:ident) => {{
        let field = $page.map.as_ptr().wrapping_add(offset_of!(perf_event_mmap_page, $field));
        // SAFETY: the mapping is page-aligned, at least as long as the structure, and lives as long
        // as the page. The kernel changes the field by whole words.
        // ATOMICS: `lock` orders these loads; see its comment.
        unsafe { (*field.cast::<$atomic>()).load(Ordering::Relaxed) }
    }};
}

/// Bits of the page's capabilities.
const CAP_USER_RDPMC: u64 = 1 << 2;
const CAP_USER_TIME: u64 = 1 << 3;
const CAP_USER_TIME_SHORT: u64 = 1 << 5;

impl PerfPage {
    pub(crate) fn new(event: &impl AsRawFd) -> io::Result<Self> {
        let map = MmapOptions::new().len(PAGE_BYTES).map_raw_read_only(event)?;
        Ok(Self { map })
    }

    /// Returns the page's sequence word, which is never odd for the thread that the page describes.
    #[inline(always)]
    pub(crate) fn lock(&self) -> u64 {
        // ATOMICS: a thread reads its own page, which changes only while the thread is interrupted.
        // So only the compiler could reorder loads around this one.
        fence(Ordering::Acquire);
        let lock = load!(self, lock: AtomicU32);
        fence(Ordering::Acquire);
        lock.into()
    }

    #[inline(always)]
    fn can(&self, capability: u64) -> bool {
        // On other architectures the page may allow reading counters by other instructions than
        // RDPMC.
        cfg!(target_arch = "x86_64") && load!(self, __bindgen_anon_1: AtomicU64) & capability != 0
    }

    /// Returns the event's count, or `None` if it cannot be read directly now.
    #[inline(always)]
    pub(crate) fn count(&self, hw: &impl Counters) -> Option<u64> {
        let index = load!(self, index: AtomicU32);
        if index == 0 || !self.can(CAP_USER_RDPMC) {
            return None;
        }
        let unused = 64_u32.checked_sub(load!(self, pmc_width: AtomicU16).into())?;
        // The counter is a signed number of its width.
        let raw = ((hw.counter(index - 1) as i64) << unused) >> unused;
        Some(load!(self, offset: AtomicU64).wrapping_add(raw as u64))
    }

    /// Returns how long the thread has executed since the event was enabled, unit: ns, or `None` if
    /// that cannot be read directly.
    #[inline(always)]
    pub(crate) fn enabled_ns(&self, hw: &impl Counters) -> Option<u64> {
        if !self.can(CAP_USER_TIME) {
            return None;
        }
        let mut cycles = hw.clock();
        if self.can(CAP_USER_TIME_SHORT) {
            let start = load!(self, time_cycles: AtomicU64);
            let passed = cycles.wrapping_sub(start) & load!(self, time_mask: AtomicU64);
            cycles = start.wrapping_add(passed);
        }
        let shift = u32::from(load!(self, time_shift: AtomicU16));
        let product = u128::from(cycles) * u128::from(load!(self, time_mult: AtomicU32));
        let ns = (product >> shift) as u64;
        let offset = load!(self, time_offset: AtomicU64);
        Some(load!(self, time_enabled: AtomicU64).wrapping_add(offset).wrapping_add(ns))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_provider_without_pages_reads_nothing_directly() {
        let pages = Pages::none();
        assert!(pages.reader().is_none() && pages.thread_page().is_none());
        assert_eq!(pages.read(&mut []), Err(ReadError::NotDirect));
        assert_eq!(pages.counts(&mut []), Err(ReadError::NotDirect));
    }

    #[test]
    fn a_ring_is_not_looked_at_in_a_forked_child() {
        let path = std::env::temp_dir().join(format!("perfctr-ring-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let first = RING_FIRST_PAGE * PAGE_BYTES as u64;
        file.write_all_at(&7_u64.to_ne_bytes(), first + PAGE_BYTES as u64 - 8).unwrap();
        let mut ring = RingPages::new(&file, 1).unwrap();
        std::fs::remove_file(path).unwrap();
        let mut word = [0];
        ring.load(PAGE_BYTES - 8, &mut word).unwrap();
        assert_eq!(word, [7]);
        assert!(matches!(ring.load(PAGE_BYTES, &mut word), Err(Error::Malformed(_))));
        let own = std::mem::replace(&mut ring.0.generation, Generation::of_child());
        assert!(matches!(ring.load(0, &mut word), Err(Error::Forked)));
        ring.0.generation = own;
    }

    /// A CPU whose clock shows this value, and whose counters are not read.
    struct Clock(u64);

    impl Counters for Clock {
        fn counter(&self, _: u32) -> u64 {
            0
        }
        fn clock(&self) -> u64 {
            self.0
        }
    }

    /// A CPU whose counter with this index holds this value.
    struct Counter(u32, u64);

    impl Counters for Counter {
        fn counter(&self, index: u32) -> u64 {
            assert_eq!(index, self.0, "another counter is read");
            self.1
        }
        fn clock(&self) -> u64 {
            0
        }
    }

    /// Makes the file of a page that is all zeros, for this test.
    fn zeros(test: &str) -> File {
        let path = std::env::temp_dir().join(format!("perfctr-{test}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(PAGE_BYTES as u64).unwrap();
        file
    }

    #[test]
    fn a_counter_of_a_perf_event_is_a_signed_number_of_its_width() {
        let file = zeros("signed");
        let write = |offset: usize, bytes: &[u8]| file.write_all_at(bytes, offset as u64).unwrap();
        let capabilities = offset_of!(perf_event_mmap_page, __bindgen_anon_1);
        write(offset_of!(perf_event_mmap_page, index), &4_u32.to_ne_bytes());
        let page = PerfPage::new(&file).unwrap();
        assert_eq!(page.count(&Counter(3, 9)), None, "the page does not allow it");
        write(capabilities, &CAP_USER_RDPMC.to_ne_bytes());
        for (width, offset, holds, count) in [
            // The kernel presets the counter to a negative number; here the offset is its opposite.
            (48_u16, 1_u64 << 47, (1_u64 << 47) + 5, 5),
            (48, 1_000, (1 << 48) - 300, 700),
            (40, 1_000, (1 << 40) - 300, 700),
            (40, 600, (1 << 39) - 1, (1 << 39) + 599),
            // Bits beyond the width do not count.
            (40, 600, 7 << 40 | 11, 611),
            (64, 20, u64::MAX - 7, 12),
        ] {
            write(offset_of!(perf_event_mmap_page, pmc_width), &width.to_ne_bytes());
            write(offset_of!(perf_event_mmap_page, offset), &offset.to_ne_bytes());
            let read = page.count(&Counter(3, holds));
            assert_eq!(
                read,
                Some(count),
                "{width} bits hold {holds:#x}, to which {offset:#x} is added"
            );
        }
    }

    #[test]
    fn time_goes_on_where_a_short_clock_wraps() {
        let file = zeros("page");
        let write = |offset: usize, bytes: &[u8]| file.write_all_at(bytes, offset as u64).unwrap();
        let page = |capabilities: u64| {
            write(offset_of!(perf_event_mmap_page, __bindgen_anon_1), &capabilities.to_ne_bytes());
            PerfPage::new(&file).unwrap()
        };
        write(offset_of!(perf_event_mmap_page, time_cycles), &0xfff0_u64.to_ne_bytes());
        write(offset_of!(perf_event_mmap_page, time_mask), &0xffff_u64.to_ne_bytes());
        write(offset_of!(perf_event_mmap_page, time_shift), &1_u16.to_ne_bytes());
        write(offset_of!(perf_event_mmap_page, time_mult), &6_u32.to_ne_bytes());
        write(offset_of!(perf_event_mmap_page, time_offset), &100_u64.to_ne_bytes());
        write(offset_of!(perf_event_mmap_page, time_enabled), &7_000_u64.to_ne_bytes());
        let ns = |cycles: u64| Some(3 * cycles + 7_100);
        let short = page(CAP_USER_TIME | CAP_USER_TIME_SHORT);
        assert_eq!(short.enabled_ns(&Clock(0xfff5)), ns(0xfff5));
        assert_eq!(short.enabled_ns(&Clock(0x10)), ns(0x1_0010), "it has wrapped");
        assert_eq!(page(CAP_USER_TIME).enabled_ns(&Clock(0x10)), ns(0x10));
        assert_eq!(page(0).enabled_ns(&Clock(0x10)), None);
    }
}
