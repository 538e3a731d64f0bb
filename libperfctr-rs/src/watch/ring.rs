// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A perf event's ring of records, which the kernel fills (`perf_event_open(2)`, "MMAP layout").
#![expect(unsafe_code, reason = "memory that is shared with the kernel")]

use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use perf_event_open_sys::bindings::perf_event_mmap_page;
use shared_abi::limits::PAGE_BYTES;

/// Size of a ring without the page that describes it; a power of two. Users without privileges may
/// have four such rings on each CPU (`perf_event_mlock_kb`).
pub(super) const BYTES: usize = 32 * PAGE_BYTES;
/// The same for those who may lock any amount of memory. Such a ring has room for 38 ms of 100,000
/// samples in a second, if each has ten callers.
const BYTES_OF_PRIVILEGED: usize = 128 * PAGE_BYTES;
/// The capability of locking memory (`linux/capability.h`), as a bit.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// The mapping of a ring.
#[derive(Debug)]
pub(super) struct Ring {
    map: MmapRaw,
}

impl Ring {
    pub(super) fn new(event: &impl AsRawFd) -> io::Result<Self> {
        let [status, users] = ["/proc/self/status", "/proc/self/uid_map"]
            .map(|file| fs::read_to_string(file).unwrap_or_default());
        let bytes = if may_lock_memory(&status, &users) { BYTES_OF_PRIVILEGED } else { BYTES };
        let map = MmapOptions::new().len(PAGE_BYTES + bytes).map_raw(event)?;
        Ok(Self { map })
    }

    /// Returns the ring's size, unit: bytes.
    fn bytes(&self) -> usize {
        self.map.len() - PAGE_BYTES
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the mapping is page-aligned and lives as long as `self`; both words are in its
        // first page, and aligned.
        unsafe { &*self.map.as_ptr().wrapping_add(offset).cast::<AtomicU64>() }
    }

    /// Takes the bytes that the kernel has written since the last call.
    pub(super) fn drain(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let tail = self.word(offset_of!(perf_event_mmap_page, data_tail));
        // ATOMICS: the kernel writes records, and then their end. It reuses the places of the
        // records after it has read the other word.
        let end = self.word(offset_of!(perf_event_mmap_page, data_head)).load(Ordering::Acquire);
        let begin = tail.load(Ordering::Relaxed);
        let at = begin as usize % self.bytes();
        let rest = self.bytes() - at;
        let all = (end.wrapping_sub(begin) as usize).min(self.bytes());
        for (at, length) in [(at, all.min(rest)), (0, all.saturating_sub(rest))] {
            // SAFETY: these bytes are in the mapping, and the kernel does not change them until
            // `data_tail` says that they have been read.
            let part = unsafe {
                let data = self.map.as_ptr().wrapping_add(PAGE_BYTES + at);
                std::slice::from_raw_parts(data, length)
            };
            bytes.extend_from_slice(part);
        }
        tail.store(end, Ordering::Release);
        bytes
    }
}

/// Returns whether a thread with this `/proc/self/status` may lock any amount of memory. In a user
/// namespace other than the machine's, by its `/proc/self/uid_map`, a capability is not enough.
fn may_lock_memory(status: &str, users: &str) -> bool {
    const ALL_USERS: &str = "4294967295";
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = capabilities.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits & CAP_IPC_LOCK != 0) && users.contains(ALL_USERS)
}

#[cfg(test)]
mod tests {
    use memmap2::MmapMut;

    use super::*;

    #[test]
    fn only_who_may_lock_memory_gets_larger_rings() {
        let (all, few) =
            ("         0          0 4294967295\n", "         0     100000      65536\n");
        for bits in ["000001ffffffffff", "0000000000004000"] {
            let status = format!("Uid:\t0\nCapEff:\t{bits}\nA:\t1\n");
            assert!(may_lock_memory(&status, all) && !may_lock_memory(&status, few), "{bits}");
        }
        for status in ["", "CapEff:\t0000000000000000\n", "CapPrm:\t000001ffffffffff\n"] {
            assert!(!may_lock_memory(status, all), "{status}");
        }
    }

    #[test]
    fn records_across_the_end_are_taken_whole_and_once() {
        let mut map = MmapMut::map_anon(PAGE_BYTES + BYTES).unwrap();
        for (at, byte) in map[PAGE_BYTES..].iter_mut().enumerate() {
            *byte = (at % 251) as u8;
        }
        let ring = Ring { map: map.into() };
        let [head, tail] = [
            offset_of!(perf_event_mmap_page, data_head),
            offset_of!(perf_event_mmap_page, data_tail),
        ]
        .map(|offset| ring.word(offset));
        // The kernel's positions only grow: these are near the end of the third round.
        let begin = 3 * BYTES as u64 - 16;
        tail.store(begin, Ordering::Relaxed);
        let mut taken = Vec::new();
        for (end, expected) in [(begin + 8, 8), (begin + 40, 32), (begin + 40, 0)] {
            head.store(end, Ordering::Relaxed);
            let more = ring.drain();
            assert_eq!((more.len(), tail.load(Ordering::Relaxed)), (expected, end));
            taken.extend(more);
        }
        let places = (BYTES - 16..BYTES).chain(0..24);
        assert_eq!(taken, places.map(|at| (at % 251) as u8).collect::<Vec<_>>());
    }
}
