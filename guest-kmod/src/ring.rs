// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Manages a thread's ring of samples: where the next record goes, and whether there is room.
//!
//! The thread writes records in its own interrupts; another thread may take records meanwhile, on
//! another vCPU. Users can write to nothing here, and the module accepts a number of taken records
//! only up to the number written. So a reader can at worst lose its own records.

use core::iter;

use shared_abi::ring::RingRequest;
use shared_abi::sync::Ordering::{Acquire, Relaxed, Release};
use shared_abi::sync::{AtomicU32, AtomicU64};
use shared_abi::{Errno, ThreadPage};

/// The ring of one thread, which may not have one.
#[derive(Debug, Default)]
pub struct Ring {
    /// The number of records that it holds, which is a power of two, or 0 without a ring. The
    /// thread writes it once.
    room: AtomicU32,
    record_bytes: AtomicU32,
    watermark: AtomicU32,
    /// The number of callers that each record has room for.
    callers: AtomicU32,
    /// The number of records so far. The thread writes it, with interrupts disabled.
    written: AtomicU64,
    lost: AtomicU64,
    /// The number of records that were taken. The thread that takes them writes it.
    taken: AtomicU64,
}

impl Ring {
    /// Makes the ring that `request` asks for. The thread itself calls this.
    ///
    /// # Errors
    ///
    /// `EXIST` if the thread has a ring; those of [`check_ring`].
    pub fn begin(&self, request: &RingRequest) -> Result<(), Errno> {
        check_ring(request)?;
        if self.exists() {
            return Err(Errno::EXIST);
        }
        self.record_bytes.store(request.record_bytes() as u32, Relaxed);
        self.watermark.store(request.watermark, Relaxed);
        self.callers.store(request.callers, Relaxed);
        // ATOMICS: a thread that takes records, or asks whether there are enough, sees the whole
        // ring or none.
        self.room.store(request.room() as u32, Release);
        Ok(())
    }

    /// Returns whether there is a ring.
    pub fn exists(&self) -> bool {
        self.room.load(Acquire) != 0
    }

    /// Returns the place of the next record, in bytes, or `None` if there is no room; it counts the
    /// record as lost then.
    #[inline(always)]
    pub fn place(&self, page: &ThreadPage) -> Option<u64> {
        let room = u64::from(self.room.load(Relaxed));
        let written = self.written.load(Relaxed);
        // ATOMICS: a thread that reports a record as taken has read it before its place is written
        // again.
        if written.wrapping_sub(self.taken.load(Acquire)) >= room {
            let lost = self.lost.load(Relaxed).wrapping_add(1);
            self.lost.store(lost, Relaxed);
            page.ring_lost.store(lost, Relaxed);
            return None;
        }
        // `room` is a power of two.
        let place = written & room.wrapping_sub(1);
        Some(place.wrapping_mul(self.record_bytes.load(Relaxed).into()))
    }

    /// Returns the number of callers that a record has room for.
    #[inline(always)]
    pub fn callers(&self) -> u32 {
        self.callers.load(Relaxed)
    }

    /// Notes that there is a record at the last [`place`](Self::place).
    #[inline(always)]
    pub fn wrote(&self, page: &ThreadPage) {
        let written = self.written.load(Relaxed).wrapping_add(1);
        // ATOMICS: a reader that sees the number also sees the record.
        self.written.store(written, Release);
        page.ring_written.store(written, Release);
    }

    /// Notes that the first `taken` records have been taken.
    ///
    /// # Errors
    ///
    /// `NXIO` if there is no ring; `INVAL` if these are fewer than before, or more than were
    /// written.
    pub fn take(&self, taken: u64) -> Result<(), Errno> {
        if !self.exists() {
            return Err(Errno::NXIO);
        }
        let later = |before: u64| {
            let there = self.written.load(Acquire).wrapping_sub(before);
            (taken.wrapping_sub(before) <= there).then_some(taken)
        };
        // ATOMICS: of several callers at the same time, each sees the number that the previous one
        // has stored.
        let result = self.taken.fetch_update(Release, Relaxed, later);
        result.map(drop).map_err(|_| Errno::INVAL)
    }

    /// Returns whether the ring is full to its watermark.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        self.exists()
            && self.written.load(Acquire).wrapping_sub(self.taken.load(Acquire))
                >= u64::from(self.watermark.load(Relaxed))
    }
}

/// The place of a ring's next record, and what is written there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RingPlace {
    /// Where the record begins, unit: bytes from the beginning of the ring.
    pub offset: u64,
    /// The counter's count when its overflow was noticed.
    pub count: u64,
    /// The TSC's count at that time.
    pub tsc: u64,
    /// The counter that has overflowed.
    pub counter: u32,
    /// The number of callers that have room.
    pub callers: u32,
}

/// What is on a thread's stack where its frame pointer points to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Frame {
    /// Where the calling function's frame is.
    pub caller: u64,
    /// Where the function will return to.
    pub address: u64,
}

/// Returns the addresses to which a thread will return, the innermost function's first.
///
/// `first` is the thread's frame pointer, or 0 if it keeps none. `read` returns the frame at an
/// address, or `None` if it is not in memory. The thread may have written any value there. A
/// stack grows downwards, so the chain has ended where it does not lead upwards.
pub fn callers(
    first: u64,
    mut read: impl FnMut(u64) -> Option<Frame>,
) -> impl Iterator<Item = u64> {
    let mut next = first;
    iter::from_fn(move || {
        if next == 0 {
            return None;
        }
        let frame = read(next)?;
        next = if frame.caller > next { frame.caller } else { 0 };
        Some(frame.address)
    })
}

/// Checks the argument of `IOC_RING`.
///
/// # Errors
///
/// `INVAL` if there can be no such ring.
pub fn check_ring(request: &RingRequest) -> Result<(), Errno> {
    if request.is_valid() { Ok(()) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use shared_abi::limits::PAGE_BYTES;

    use super::*;

    /// A page of 128 records.
    const REQUEST: RingRequest =
        RingRequest { pages: 1, callers: 0, watermark: 32, reserved: 0, reserved_tail: [0; 2] };
    const ROOM: u64 = 128;
    const BYTES: u64 = 32;

    fn ring() -> (Ring, ThreadPage) {
        let ring = Ring::default();
        ring.begin(&REQUEST).unwrap();
        (ring, ThreadPage::default())
    }

    /// Writes this many records. Returns the places of those for which there was room.
    fn write(ring: &Ring, page: &ThreadPage, records: u64) -> Vec<u64> {
        let write = |_| {
            let place = ring.place(page)?;
            ring.wrote(page);
            Some(place)
        };
        (0..records).filter_map(write).collect()
    }

    fn published(page: &ThreadPage) -> (u64, u64) {
        (page.ring_written.load(Relaxed), page.ring_lost.load(Relaxed))
    }

    #[test]
    fn what_has_no_room_is_lost_and_counted() {
        let (ring, page) = ring();
        let places = write(&ring, &page, ROOM + 5);
        assert!(places.iter().copied().eq((0..ROOM).map(|n| n * BYTES)));
        assert_eq!(published(&page), (ROOM, 5));
        ring.take(3).unwrap();
        assert_eq!(write(&ring, &page, 5), [0, BYTES, 2 * BYTES], "the first are free again");
        assert_eq!(published(&page), (ROOM + 3, 7));
    }

    #[test]
    fn records_have_room_for_the_callers_that_were_asked_for() {
        for (callers, bytes) in [(0, BYTES), (4, 2 * BYTES)] {
            let (ring, page) = (Ring::default(), ThreadPage::default());
            ring.begin(&RingRequest { callers, watermark: 2, ..REQUEST }).unwrap();
            assert_eq!(ring.callers(), callers);
            assert_eq!(write(&ring, &page, 3), [0, bytes, 2 * bytes]);
        }
    }

    #[test]
    fn it_goes_round() {
        let (ring, page) = ring();
        for begin in (0..10 * ROOM).step_by(96) {
            let places = write(&ring, &page, 96);
            assert!(places.iter().copied().eq((begin..begin + 96).map(|n| n % ROOM * BYTES)));
            ring.take(begin + 96).unwrap();
        }
        assert_eq!(published(&page).1, 0);
    }

    #[test]
    fn numbers_wrap() {
        let (ring, page) = ring();
        let first = u64::MAX - 50;
        ring.written.store(first, Relaxed);
        ring.taken.store(first, Relaxed);
        assert_eq!(write(&ring, &page, 2 * ROOM).len() as u64, ROOM);
        assert_eq!(ring.take(first - 1), Err(Errno::INVAL));
        ring.take(first.wrapping_add(100)).unwrap();
        assert_eq!(ring.take(first), Err(Errno::INVAL));
        assert_eq!(write(&ring, &page, ROOM).len(), 100);
    }

    #[test]
    fn a_consumer_may_say_what_it_likes() {
        let (ring, page) = ring();
        let mut sayings: Vec<u64> = (0..64).map(|bit| 1 << bit).collect();
        sayings.extend((0..64).map(|bit| u64::MAX << bit));
        sayings.extend(0..400);
        let mut taken = 0;
        for (round, &taken_now) in (0_u64..).zip(sayings.iter().cycle().take(5_000)) {
            let places = write(&ring, &page, round % 7);
            for place in places {
                assert!(place.is_multiple_of(BYTES) && place + BYTES <= PAGE_BYTES as u64);
            }
            let (written, _) = published(&page);
            let outcome = ring.take(taken_now);
            assert_eq!(
                outcome.is_ok(),
                (taken..=written).contains(&taken_now),
                "{taken_now} of {written}"
            );
            taken = if outcome.is_ok() { taken_now } else { taken };
            assert!(written - taken <= ROOM);
        }
        assert!(published(&page).1 > 0, "it was full now and then");
    }

    #[test]
    fn from_its_watermark_on_it_is_ready() {
        let (ring, page) = ring();
        write(&ring, &page, 31);
        assert!(!ring.is_ready());
        write(&ring, &page, 1);
        assert!(ring.is_ready());
        write(&ring, &page, ROOM);
        assert!(ring.is_ready(), "and while it is full");
        ring.take(ROOM - 31).unwrap();
        assert!(!ring.is_ready());
    }

    #[test]
    fn nobody_has_two() {
        let ring = Ring::default();
        assert!(!ring.exists() && !ring.is_ready());
        assert_eq!(ring.take(0), Err(Errno::NXIO));
        assert_eq!(ring.begin(&RingRequest { pages: 3, ..REQUEST }), Err(Errno::INVAL));
        ring.begin(&REQUEST).unwrap();
        assert_eq!(ring.begin(&RingRequest { callers: 2, ..REQUEST }), Err(Errno::EXIST));
        assert_eq!(u64::from(ring.record_bytes.load(Relaxed)), BYTES);

        // Without a ring there is no room, whoever asks.
        let page = ThreadPage::default();
        assert_eq!(Ring::default().place(&page), None);
    }

    /// Returns the callers that are found on a stack of these frames, each at its address.
    fn callers_on(stack: &[(u64, Frame)], first: u64) -> Vec<u64> {
        let read = |at| stack.iter().find(|(place, _)| *place == at).map(|&(_, frame)| frame);
        callers(first, read).collect()
    }

    #[test]
    fn callers_are_found_from_frame_to_frame() {
        let frame = |caller, address| Frame { caller, address };
        let stack = [(64, frame(96, 0x11)), (96, frame(160, 0x22)), (160, frame(0, 0x33))];
        assert_eq!(callers_on(&stack, 64), [0x11, 0x22, 0x33]);
        assert_eq!(callers_on(&stack, 96), [0x22, 0x33]);
        // The chain leads to where no frame is in memory.
        assert_eq!(callers_on(&stack[..2], 64), [0x11, 0x22]);
        assert_eq!(callers_on(&stack, 72), []);
    }

    #[test]
    fn a_chain_of_frames_that_does_not_lead_upwards_has_ended() {
        let frame = |caller, address| Frame { caller, address };
        for back in [96, 64, 1] {
            let stack = [(64, frame(96, 0x11)), (96, frame(back, 0x22)), (1, frame(2, 0x33))];
            assert_eq!(callers_on(&stack, 64), [0x11, 0x22], "to {back}");
        }
    }

    #[test]
    fn a_thread_without_a_frame_pointer_has_no_callers() {
        assert_eq!(callers_on(&[(0, Frame { caller: 8, address: 0x11 })], 0), []);
    }
}
