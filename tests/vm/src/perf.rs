// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Linux's own perf events (`perf_event_open(2)`).
#![expect(unsafe_code, reason = "system calls that take and give descriptors and memory")]

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{Ordering, fence};

use memmap2::{MmapMut, MmapOptions};
use nix::errno::Errno;
use nix::unistd::Pid;
use perf_event_open_sys::bindings::{
    PERF_RECORD_LOST, PERF_RECORD_SAMPLE, PERF_SAMPLE_IP, PERF_SAMPLE_PERIOD, PERF_SAMPLE_TID,
    PERF_TYPE_HARDWARE, PERF_TYPE_RAW, perf_event_attr, perf_event_mmap_page,
};
use perf_event_open_sys::{ioctls, perf_event_open};
use shared_abi::limits::PAGE_BYTES;
use zerocopy::IntoBytes;

/// perf's own policy: what users without `CAP_PERFMON` may count.
pub const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// Pages of a ring, beside the one that describes it.
const RING_PAGES: usize = 64;

/// Whose events.
#[derive(Clone, Copy, Debug)]
pub enum Whose {
    /// A thread's, wherever it executes.
    Thread(Pid),
    /// A CPU's, whoever executes there.
    Cpu(usize),
}

/// What to count in user mode of one of perf's generic events (`PERF_COUNT_HW_*`).
pub fn generic(event: u32) -> perf_event_attr {
    user(PERF_TYPE_HARDWARE, event.into())
}

/// What to count in user mode by a select word.
pub fn raw(select: u64) -> perf_event_attr {
    user(PERF_TYPE_RAW, select)
}

fn user(kind: u32, config: u64) -> perf_event_attr {
    let size = size_of::<perf_event_attr>() as u32;
    let mut attributes = perf_event_attr { type_: kind, size, config, ..Default::default() };
    attributes.set_exclude_kernel(1);
    attributes
}

/// An open event.
#[derive(Debug)]
pub struct Event(File);

impl Event {
    /// Opens one, in the group of another one.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open(
        mut attributes: perf_event_attr,
        whose: Whose,
        leader: Option<&Self>,
    ) -> Result<Self, Errno> {
        let (pid, cpu) = match whose {
            Whose::Thread(pid) => (pid.as_raw(), -1),
            Whose::Cpu(cpu) => (-1, cpu as i32),
        };
        let group = leader.map_or(-1, |leader| leader.0.as_raw_fd());
        // SAFETY: the attributes are writable and say how large they are.
        let event = unsafe { perf_event_open(&raw mut attributes, pid, cpu, group, 0) };
        let event = Errno::result(event)?;
        // SAFETY: a new descriptor, which nobody else owns.
        Ok(Self(unsafe { File::from_raw_fd(event) }))
    }

    /// Its count.
    ///
    /// # Errors
    ///
    /// The kernel's; an event that has failed has none.
    pub fn count(&self) -> std::io::Result<u64> {
        self.read().map(|[count]| count)
    }

    /// What its read format asks for, in so many words.
    ///
    /// # Errors
    ///
    /// As [`count`](Self::count).
    pub fn read<const N: usize>(&self) -> std::io::Result<[u64; N]> {
        let mut words = [0_u64; N];
        (&self.0).read_exact(words.as_mut_bytes())?;
        Ok(words)
    }

    /// It counts from now on, and its group.
    ///
    /// # Errors
    ///
    /// The kernel's.
    #[inline(always)]
    pub fn enable(&self) -> Result<(), Errno> {
        // SAFETY: the descriptor is an event's.
        Errno::result(unsafe { ioctls::ENABLE(self.0.as_raw_fd(), 1) }).map(drop)
    }

    /// It counts no more, nor does its group.
    ///
    /// # Errors
    ///
    /// The kernel's.
    #[inline(always)]
    pub fn disable(&self) -> Result<(), Errno> {
        // SAFETY: the descriptor is an event's.
        Errno::result(unsafe { ioctls::DISABLE(self.0.as_raw_fd(), 1) }).map(drop)
    }

    /// It counts from now on, or not, and at once with it those of its group that are enabled.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn lead(&self, counts: bool) -> Result<(), Errno> {
        let ioctl = if counts { ioctls::ENABLE } else { ioctls::DISABLE };
        // SAFETY: the descriptor is an event's.
        Errno::result(unsafe { ioctl(self.0.as_raw_fd(), 0) }).map(drop)
    }

    /// It counts until it has overflowed so many times.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn refresh(&self, times: usize) -> Result<(), Errno> {
        // SAFETY: the descriptor is an event's.
        Errno::result(unsafe { ioctls::REFRESH(self.0.as_raw_fd(), times as i32) }).map(drop)
    }
}

/// What a ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// An overflow.
    Sample {
        /// Where.
        ip: u64,
        /// In which thread.
        tid: u32,
        /// Events since the one before.
        period: u64,
    },
    /// So many records had no room.
    Lost(u64),
    /// Something else.
    Other(u32),
}

/// An event that samples, and its ring.
#[derive(Debug)]
pub struct Sampling {
    /// The event.
    pub event: Event,
    ring: MmapMut,
}

impl Sampling {
    /// Opens one that overflows every `period` events.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open(
        mut attributes: perf_event_attr,
        period: u64,
        whose: Whose,
    ) -> anyhow::Result<Self> {
        attributes.__bindgen_anon_1.sample_period = period;
        attributes.sample_type = u64::from(PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_PERIOD);
        let event = Event::open(attributes, whose, None)?;
        let bytes = (1 + RING_PAGES) * PAGE_BYTES;
        // SAFETY: the memory is shared with the kernel alone, which follows the ring's protocol.
        let ring = unsafe { MmapOptions::new().len(bytes).map_mut(&event.0)? };
        Ok(Self { event, ring })
    }

    /// What has come since the last time, while nothing comes.
    pub fn records(&mut self) -> Vec<Record> {
        let page: *mut perf_event_mmap_page = self.ring.as_mut_ptr().cast();
        // SAFETY: the kernel has put such a structure there.
        let (head, tail) = unsafe { ((*page).data_head, (*page).data_tail) };
        fence(Ordering::Acquire);
        let data = &self.ring[PAGE_BYTES..];
        let word = |at: u64| {
            let at = at as usize % data.len();
            u64::from_ne_bytes(data[at..at + 8].try_into().expect("8 bytes"))
        };
        let (mut records, mut at) = (Vec::new(), tail);
        while at < head {
            // `struct perf_event_header`: type, misc, size.
            let (kind, bytes) = (word(at) as u32, word(at) >> 48);
            records.push(match kind {
                PERF_RECORD_SAMPLE => Record::Sample {
                    ip: word(at + 8),
                    tid: (word(at + 16) >> 32) as u32,
                    period: word(at + 24),
                },
                PERF_RECORD_LOST => Record::Lost(word(at + 16)),
                other => Record::Other(other),
            });
            at += bytes;
        }
        fence(Ordering::Release);
        // SAFETY: as above.
        unsafe { (*page).data_tail = at };
        records
    }
}
