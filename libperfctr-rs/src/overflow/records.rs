// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Samples that the guest's kernel notes where they happen.

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

/// One overflow, as the kernel has noted it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Record {
    /// The instruction that the thread was about to execute in user mode.
    pub ip: u64,
    /// The counter, in the order in which they were given at the start.
    pub counter: usize,
    /// Unit: events.  What it had counted.
    pub count: u64,
    /// Unit: ticks of the TSC during which the thread had executed.
    pub tsc: u64,
    /// The addresses that functions will return to, the innermost first, as far as they keep frame
    /// pointers.
    pub callers: Vec<u64>,
}

/// A thread's overflows, in a ring that the guest's kernel fills.
///
/// There is no signal: an overflow costs the thread one interrupt, in which the kernel notes it,
/// and its counters go on.  Where the ring is full they go on as well, and the overflow is counted
/// as [lost](Self::lost).
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
    /// Records taken; of these told the kernel; and records that are known to be there.
    taken: u64,
    told: u64,
    written: u64,
}

/// What was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// The ring is full to a quarter, or more.
    pub ready: bool,
    /// The thread has closed its session, or ended: what is in the ring now is all there will be.
    pub ended: bool,
}

/// The smallest ring for so many records, which can be read when a quarter of them is there.
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
    /// Gives the calling thread, whose counters the device's are, a ring.
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
        Ok(Self { device, pages, ring, shape, taken: 0, told: 0, written: 0 })
    }

    /// Records that there is room for: at least as many as were asked for.
    pub fn room(&self) -> usize {
        self.shape.room()
    }

    /// The next record; `None` if there is none now.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`], [`Error::Malformed`], or what the kernel says.
    pub fn take(&mut self) -> Result<Option<Record>, Error> {
        if self.taken == self.written && !self.look()? {
            return Ok(None);
        }
        let place = self.taken as usize % self.shape.room() * self.shape.record_bytes();
        let mut head = RingRecord::new_zeroed();
        let mut words = [0; size_of::<RingRecord>() / 8];
        self.ring.load(place, &mut words)?;
        head.as_mut_bytes().copy_from_slice(words.as_bytes());
        if head.callers > self.shape.callers {
            return Err(Error::Malformed("record"));
        }
        let mut callers = vec![0; head.callers as usize];
        self.ring.load(place + size_of::<RingRecord>(), &mut callers)?;
        self.taken += 1;
        let RingRecord { ip, count, tsc, counter, .. } = head;
        Ok(Some(Record { ip, counter: counter as usize, count, tsc, callers }))
    }

    /// Gives what was taken back to the kernel, and sees whether there is more.
    fn look(&mut self) -> Result<bool, Error> {
        let page = self.pages.thread_page().ok_or(Error::Forked)?;
        if self.told != self.taken {
            self.device.ring_take(self.taken).map_err(Error::kernel("give records back"))?;
            self.told = self.taken;
        }
        // ATOMICS: whoever sees the number sees the records.
        let written = page.ring_written.load(Acquire);
        if written.wrapping_sub(self.taken) > self.shape.room() as u64 {
            return Err(Error::Malformed("number of records"));
        }
        self.written = written;
        Ok(self.written != self.taken)
    }

    /// Overflows that found no room; 0 in a forked child.
    pub fn lost(&self) -> u64 {
        self.pages.thread_page().map_or(0, |page| page.ring_lost.load(Relaxed))
    }

    /// Waits until the ring is full to a quarter with what was not taken, or the thread has ended;
    /// at most so long.
    ///
    /// # Errors
    ///
    /// As [`take`](Self::take).
    pub fn wait(&mut self, at_most: Duration) -> Result<Waited, Error> {
        self.look()?;
        let events = poll(iter::once(self.device.as_raw_fd()), at_most)
            .map_err(Error::kernel("wait for records"))?;
        let has = |event| events & event != 0;
        Ok(Waited { ready: has(libc::POLLIN), ended: has(libc::POLLHUP) })
    }
}

impl AsFd for Records {
    /// Readable from when the ring is full to a quarter; hung up when the thread has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
