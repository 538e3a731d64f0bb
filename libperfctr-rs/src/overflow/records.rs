// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Records of samples, which the guest's kernel writes when they happen.

use std::iter;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use shared_abi::limits::{PAGE_BYTES, RING_CALLERS_MAX, RING_PAGES_MAX};
use shared_abi::ring::{RingRecord, RingRequest};
use shared_abi::sync::Ordering::{Acquire, Relaxed};
use zerocopy::{FromZeros, IntoBytes};

use crate::error::Error;
use crate::map::{Pages, RingPages};
use crate::sys::{Device, poll};

/// The record that the kernel has written of one overflow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Record {
    /// The address of the instruction that the thread was about to execute in user mode.
    pub ip: u64,
    /// The counter's number, in the order in which the counters were given at the start.
    pub counter: usize,
    /// The counter's count at the overflow, unit: events.
    pub count: u64,
    /// How long the thread had executed at the overflow, unit: TSC ticks.
    pub tsc: u64,
    /// The addresses to which the functions on the stack will return, the innermost function's
    /// first. They are found by frame pointers, and end at a function without one.
    pub callers: Vec<u64>,
}

/// A thread's overflows, in a ring that the guest's kernel fills.
///
/// There is no signal. An overflow costs the thread one interrupt, in which the kernel writes the
/// record, and the counters go on. They also go on while the ring is full; the overflow is then
/// counted as [lost](Self::lost).
///
/// Any thread of the process may take the records, also when the session is gone:
///
/// ```no_run
/// use perfctr::{Event, Session};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut session = Session::open()?;
/// let mut records = session.records(4_096, 16)?;
/// let reader = std::thread::spawn(move || -> Result<u64, perfctr::Error> {
///     while !records.wait(Duration::from_secs(60))?.ended {
///         while let Some(record) = records.take()? {
///             println!("{:#x}, called by {:#x?}", record.ip, record.callers);
///         }
///     }
///     while records.take()?.is_some() {}
///     Ok(records.lost())
/// });
/// session.start_recording(&[Event::INSTRUCTIONS.user().every(100_003)])?;
/// // Whatever this thread does now is sampled.
/// drop(session);
/// println!("{} lost", reader.join().unwrap()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Records {
    device: Device,
    pages: Pages,
    ring: RingPages,
    shape: RingRequest,
    progress: Progress,
}

/// The numbers of records that were written to a ring and taken from it.
#[derive(Debug, Default)]
struct Progress {
    /// Number of records that were taken.
    taken: u64,
    /// Number of records that the kernel knows to be taken.
    returned: u64,
    /// Number of records that the kernel is known to have written.
    written: u64,
}

impl Progress {
    /// Returns whether there are records that were not taken yet.
    ///
    /// If the kernel does not know how many records were taken, this first calls `give_back` with
    /// that number, so that the kernel can reuse their places. `written` returns how many records
    /// the kernel has written so far, and `room` is how many the ring can hold at a time.
    fn look(
        &mut self,
        room: usize,
        give_back: impl FnOnce(u64) -> Result<(), Error>,
        written: impl FnOnce() -> u64,
    ) -> Result<bool, Error> {
        if self.returned != self.taken {
            give_back(self.taken)?;
            self.returned = self.taken;
        }
        let written = written();
        if written.wrapping_sub(self.taken) > room as u64 {
            return Err(Error::Malformed("number of records"));
        }
        self.written = written;
        Ok(self.written != self.taken)
    }
}

/// The reasons why a wait has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waited {
    /// Whether at least a quarter of the ring is full.
    pub ready: bool,
    /// The thread has closed its session, or has ended. The ring gets no further records.
    pub ended: bool,
}

/// Returns the smallest ring that has room for this many records. Its watermark is a quarter of
/// its records.
///
/// # Errors
///
/// [`Error::RingTooLarge`].
fn shape(room: usize, callers: usize) -> Result<RingRequest, Error> {
    let too_large = || Error::RingTooLarge { room, callers };
    let callers = u32::try_from(callers).ok().filter(|&callers| callers <= RING_CALLERS_MAX);
    let one = RingRequest { callers: callers.ok_or_else(too_large)?, ..RingRequest::default() };
    let bytes = room.max(1).checked_mul(one.record_bytes()).ok_or_else(too_large)?;
    let pages = bytes.div_ceil(PAGE_BYTES).checked_next_power_of_two();
    let pages = pages.filter(|&pages| pages <= RING_PAGES_MAX as usize).ok_or_else(too_large)?;
    let shape = RingRequest { pages: pages as u32, ..one };
    Ok(RingRequest { watermark: (shape.room() / 4).max(1) as u32, ..shape })
}

impl Records {
    /// Gives the calling thread a ring. The device must be bound to its counters.
    pub(crate) fn new(
        device: &Device,
        vcpus: u32,
        room: usize,
        callers: usize,
    ) -> Result<Self, Error> {
        let shape = shape(room, callers)?;
        device.ring(&shape).map_err(Error::kernel("make a ring"))?;
        let device = device.try_clone().map_err(Error::kernel("keep the device"))?;
        let pages = Pages::new(&device, vcpus)?;
        let ring = RingPages::new(&device, shape.pages)?;
        Ok(Self { device, pages, ring, shape, progress: Progress::default() })
    }

    /// Returns how many records the ring can hold, which is at least the number that was asked for.
    pub fn room(&self) -> usize {
        self.shape.room()
    }

    /// Takes the next record. Returns `None` if there is none now.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`], [`Error::Malformed`], or the kernel's error.
    pub fn take(&mut self) -> Result<Option<Record>, Error> {
        if self.progress.taken == self.progress.written && !self.look()? {
            return Ok(None);
        }
        let place = self.progress.taken as usize % self.shape.room() * self.shape.record_bytes();
        let mut head = RingRecord::new_zeroed();
        let mut words = [0; size_of::<RingRecord>() / 8];
        self.ring.load(place, &mut words)?;
        head.as_mut_bytes().copy_from_slice(words.as_bytes());
        if head.callers > self.shape.callers {
            return Err(Error::Malformed("record"));
        }
        let mut callers = vec![0; head.callers as usize];
        self.ring.load(place + size_of::<RingRecord>(), &mut callers)?;
        self.progress.taken += 1;
        let RingRecord { ip, count, tsc, counter, .. } = head;
        Ok(Some(Record { ip, counter: counter as usize, count, tsc, callers }))
    }

    /// Gives the places of the taken records back to the kernel, and returns whether there are new
    /// records.
    fn look(&mut self) -> Result<bool, Error> {
        let page = self.pages.thread_page().ok_or(Error::Forked)?;
        let give_back =
            |taken| self.device.ring_take(taken).map_err(Error::kernel("give records back"));
        // ATOMICS: with Acquire, a reader that sees the number sees the records, too.
        let written = || page.ring_written.load(Acquire);
        self.progress.look(self.shape.room(), give_back, written)
    }

    /// Returns how many overflows were lost because the ring was full, or 0 in a forked child.
    pub fn lost(&self) -> u64 {
        self.pages.thread_page().map_or(0, |page| page.ring_lost.load(Relaxed))
    }

    /// Waits until the records that were not taken fill a quarter of the ring, or the thread has
    /// ended, but not longer than `at_most`.
    ///
    /// # Errors
    ///
    /// The errors of [`take`](Self::take).
    pub fn wait(&mut self, at_most: Duration) -> Result<Waited, Error> {
        self.look()?;
        let events = poll(iter::once(self.device.as_raw_fd()), at_most)
            .map_err(Error::kernel("wait for records"))?;
        let has = |event| events & event != 0;
        Ok(Waited { ready: has(libc::POLLIN), ended: has(libc::POLLHUP) })
    }
}

impl AsFd for Records {
    /// Returns the descriptor. poll(2) says that it is readable while at least a quarter of the
    /// ring is full, and that it is hung up when the thread has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_records_are_given_back_than_were_taken() {
        let mut progress = Progress { taken: 3, returned: 1, written: 7 };
        let look = |progress: &mut Progress, written| {
            let mut given_back = None;
            let give_back = |taken| {
                given_back = Some(taken);
                Ok(())
            };
            (progress.look(8, give_back, || written).unwrap(), given_back)
        };
        assert_eq!(look(&mut progress, 9), (true, Some(3)));
        assert_eq!(look(&mut progress, 10), (true, None), "the kernel knows");
        progress.taken = 10;
        assert_eq!(look(&mut progress, 10), (false, Some(10)));
        let refused = |_| Err(Error::Forked);
        progress.taken = 11;
        assert!(progress.look(8, refused, || 12).is_err());
        assert_eq!(look(&mut progress, 12), (true, Some(11)), "it was refused before");
    }

    #[test]
    fn more_records_than_there_is_room_for_are_no_number() {
        let mut progress = Progress { taken: 5, returned: 5, written: 5 };
        let mut look = |written| progress.look(4, |_| Ok(()), || written).is_ok();
        assert_eq!([9, 10, 4].map(&mut look), [true, false, false]);
    }

    #[test]
    fn a_ring_has_the_room_that_was_asked_for_and_no_more_pages() {
        for (room, callers, pages) in
            [(1, 0, 1), (128, 0, 1), (129, 0, 2), (1, 124, 1), (5, 124, 2), (8_192, 0, 64)]
        {
            let shape = shape(room, callers).unwrap();
            assert!(shape.is_valid() && shape.room() >= room, "{shape:?}");
            assert_eq!(shape.pages, pages, "{room} records");
            assert_eq!(shape.watermark as usize, shape.room() / 4);
        }
        for (room, callers) in [(8_193, 0), (1, 125), (usize::MAX, 0), (1, usize::MAX), (257, 124)]
        {
            let error = shape(room, callers).unwrap_err().to_string();
            assert!(error.contains(&format!("{room} records of {callers}")), "{error}");
        }
    }
}
