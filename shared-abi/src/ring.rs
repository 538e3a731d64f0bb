// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A thread's ring, into which the guest kernel writes a record of each sample when it happens.
//!
//! A program maps the whole ring, shared and read-only, from page [`RING_FIRST_PAGE`] of the
//! descriptor on. Record `n` is at index `n` modulo [`RingRequest::room`] as soon as
//! [`ThreadPage::ring_written`](crate::ThreadPage::ring_written) is larger than `n`. It stays
//! there until [`IOC_RING_TAKE`](crate::ioctl::IOC_RING_TAKE) says that it was taken. While the
//! ring is full, records are lost and counted in
//! [`ThreadPage::ring_lost`](crate::ThreadPage::ring_lost).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::layout::layout;
use crate::limits::{PAGE_BYTES, RING_CALLERS_MAX, RING_PAGES_MAX};

/// The offset at which the mapping of a ring begins, unit: pages.
pub const RING_FIRST_PAGE: u64 = 1 << 20;

/// Argument of [`IOC_RING`](crate::ioctl::IOC_RING).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingRequest {
    /// Size of the ring, unit: pages. It must be a power of two, up to [`RING_PAGES_MAX`].
    pub pages: u32,
    /// Number of callers that each record has room for, up to [`RING_CALLERS_MAX`].
    pub callers: u32,
    /// poll(2) says that the descriptor can be read while at least this many records have not been
    /// taken. It must be 1 to [`room`](Self::room).
    pub watermark: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Must be 0.
    pub reserved_tail: [u64; 2],
}

layout!(RingRequest, "perfctr_ring_request", 32, {
    0 pages: "__u32",
    4 callers: "__u32",
    8 watermark: "__u32",
    12 reserved: "__u32",
    16 reserved_tail: "__u64" [2],
});

impl RingRequest {
    /// Returns the distance from one record to the next, unit: bytes. It is a power of two, so
    /// that no record crosses the end of a page.
    pub const fn record_bytes(&self) -> usize {
        (size_of::<RingRecord>() + size_of::<u64>() * self.callers as usize).next_power_of_two()
    }

    /// Returns how many records the ring holds.
    pub const fn room(&self) -> usize {
        self.pages as usize * PAGE_BYTES / self.record_bytes()
    }

    /// Returns whether the request is valid.
    pub const fn is_valid(&self) -> bool {
        self.pages.is_power_of_two()
            && self.pages <= RING_PAGES_MAX
            && self.callers <= RING_CALLERS_MAX
            && self.watermark >= 1
            && self.watermark as usize <= self.room()
            && self.reserved == 0
            && self.reserved_tail[0] == 0
            && self.reserved_tail[1] == 0
    }
}

/// The record of one sample. The addresses of its callers follow it, each of them a `u64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct RingRecord {
    /// The address of the instruction that the thread was about to execute in user mode.
    pub ip: u64,
    /// What the counter had counted, unit: events.
    pub count: u64,
    /// How long the thread had executed, unit: TSC ticks. It has a meaning only if the TSC is
    /// counted.
    pub tsc: u64,
    /// The counter's index in [`Control::counter`](crate::ioctl::Control::counter).
    pub counter: u32,
    /// The number of callers that follow. They are the addresses to which the functions on the
    /// stack will return, the innermost function's first, found by frame pointers.
    pub callers: u32,
}

layout!(RingRecord, "perfctr_ring_record", 32, {
    0 ip: "__u64",
    8 count: "__u64",
    16 tsc: "__u64",
    24 counter: "__u32",
    28 callers: "__u32",
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_fill_pages() {
        for callers in 0..=RING_CALLERS_MAX {
            let ring = RingRequest { pages: 2, callers, watermark: 1, ..RingRequest::default() };
            assert!(ring.is_valid());
            assert!(ring.record_bytes() >= 32 + 8 * callers as usize);
            assert_eq!(PAGE_BYTES % ring.record_bytes(), 0);
            assert_eq!(ring.room() * ring.record_bytes(), 2 * PAGE_BYTES);
        }
    }

    #[test]
    fn impossible_requests_are_invalid() {
        let valid = RingRequest { pages: 4, callers: 0, watermark: 512, ..RingRequest::default() };
        assert!(valid.is_valid() && valid.room() == 512);
        for wrong in [
            RingRequest { pages: 0, ..valid },
            RingRequest { pages: 3, ..valid },
            RingRequest { pages: 2 * RING_PAGES_MAX, ..valid },
            RingRequest { pages: 1 << 31, ..valid },
            RingRequest { callers: RING_CALLERS_MAX + 1, ..valid },
            RingRequest { callers: RING_CALLERS_MAX + 1, watermark: 1, ..valid },
            RingRequest { callers: u32::MAX, ..valid },
            RingRequest { watermark: 0, ..valid },
            RingRequest { watermark: 513, ..valid },
            RingRequest { reserved: 1, ..valid },
            RingRequest { reserved_tail: [0, 1], ..valid },
        ] {
            assert!(!wrong.is_valid(), "{wrong:?}");
        }
    }
}
