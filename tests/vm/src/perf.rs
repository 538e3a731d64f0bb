// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Uses Linux's own perf events (`perf_event_open(2)`).
#![expect(unsafe_code, reason = "system calls that take and give descriptors and memory")]

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};
use std::sync::atomic::{Ordering, fence};

use anyhow::{Context, Result};
use memmap2::{MmapMut, MmapOptions};
use nix::errno::Errno;
use nix::unistd::Pid;
use perf_event_open_sys::bindings::{
    PERF_RECORD_LOST, PERF_RECORD_MISC_EXACT_IP, PERF_RECORD_SAMPLE, PERF_SAMPLE_BRANCH_STACK,
    PERF_SAMPLE_IP, PERF_SAMPLE_PERIOD, PERF_SAMPLE_TID, PERF_TYPE_HARDWARE, PERF_TYPE_RAW,
    perf_event_attr, perf_event_mmap_page,
};
use perf_event_open_sys::{ioctls, perf_event_open};
use shared_abi::limits::PAGE_BYTES;
use zerocopy::IntoBytes;

use crate::branches::Branch;

/// The file of perf's own policy: what users without `CAP_PERFMON` may count.
pub const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// How many samples Linux lets its own perf take in a second. Linux lowers that if samples take
/// long, as they do on an emulated CPU. If it does not look at the time, the rate cannot be set.
/// Linux shares the number out among the ticks of the clock, and an emulated CPU may lack its ticks
/// for half a second, so it is a hundred times as large as needed.
const RATE: (&str, &str) = ("/proc/sys/kernel/perf_event_max_sample_rate", "10000000");
const LOWERED_AT: (&str, &str) = ("/proc/sys/kernel/perf_cpu_time_max_percent", "0");

/// Lets perf take as many samples on a slow machine as on a fast one, until the machine is booted
/// again.
///
/// # Errors
///
/// The error names the file that cannot be written.
pub fn keep_sample_rate() -> Result<()> {
    for (path, value) in [RATE, LOWERED_AT] {
        fs::write(path, value).context(path)?;
    }
    Ok(())
}

/// The number of pages of a ring, without the one that describes it.
const RING_PAGES: usize = 64;

/// Whose events are counted.
#[derive(Clone, Copy, Debug)]
pub enum Whose {
    /// A thread's, wherever it executes.
    Thread(Pid),
    /// A CPU's, whoever executes there.
    Cpu(usize),
}

/// Returns the attributes that count one of perf's generic events (`PERF_COUNT_HW_*`) in user mode.
pub fn generic(event: u32) -> perf_event_attr {
    user(PERF_TYPE_HARDWARE, event.into())
}

/// Returns the attributes that count the events of a select word in user mode.
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
    /// Opens an event, in the group of another one if that is given.
    ///
    /// # Errors
    ///
    /// The kernel's error.
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
        // SAFETY: the attributes are writable and state their size.
        let event = unsafe { perf_event_open(&raw mut attributes, pid, cpu, group, 0) };
        let event = Errno::result(event)?;
        // SAFETY: a new descriptor, which nobody else owns.
        Ok(Self(unsafe { File::from_raw_fd(event) }))
    }

    /// Returns the event's count.
    ///
    /// # Errors
    ///
    /// The kernel's; an event that has failed has no count.
    pub fn count(&self) -> std::io::Result<u64> {
        self.read().map(|[count]| count)
    }

    /// Returns the words that its read format asks for, `N` in all.
    ///
    /// # Errors
    ///
    /// Those of [`count`](Self::count).
    pub fn read<const N: usize>(&self) -> std::io::Result<[u64; N]> {
        let mut words = [0_u64; N];
        (&self.0).read_exact(words.as_mut_bytes())?;
        Ok(words)
    }

    /// Makes the event and its group count from now on.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    #[inline(always)]
    pub fn enable(&self) -> Result<(), Errno> {
        // SAFETY: the descriptor is an event's, and the request takes no pointer.
        Errno::result(unsafe { ioctls::ENABLE(self.0.as_raw_fd(), 1) }).map(drop)
    }

    /// Stops the event and its group.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    #[inline(always)]
    pub fn disable(&self) -> Result<(), Errno> {
        // SAFETY: the descriptor is an event's, and the request takes no pointer.
        Errno::result(unsafe { ioctls::DISABLE(self.0.as_raw_fd(), 1) }).map(drop)
    }

    /// Starts or stops the event alone, and with it, at once, the events of its group that are
    /// enabled.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn lead(&self, counts: bool) -> Result<(), Errno> {
        let ioctl = if counts { ioctls::ENABLE } else { ioctls::DISABLE };
        // SAFETY: the descriptor is an event's, and the request takes no pointer.
        Errno::result(unsafe { ioctl(self.0.as_raw_fd(), 0) }).map(drop)
    }

    /// Sets the number of events between two overflows. A new period begins.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    #[inline(always)]
    pub fn set_period(&self, events: u64) -> Result<(), Errno> {
        let at = (&raw const events).expose_provenance() as u64;
        // SAFETY: the descriptor is an event's. The kernel reads the number at this address.
        Errno::result(unsafe { ioctls::PERIOD(self.0.as_raw_fd(), at) }).map(drop)
    }

    /// Sets the event's count to 0.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn reset(&self) -> Result<(), Errno> {
        // SAFETY: the descriptor is an event's, and the request takes no pointer.
        Errno::result(unsafe { ioctls::RESET(self.0.as_raw_fd(), 0) }).map(drop)
    }

    /// Returns the event's descriptor.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Has each overflow call a program of eBPF.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn call(&self, program: &impl AsRawFd) -> Result<(), Errno> {
        let program = program.as_raw_fd() as u32;
        // SAFETY: the descriptor is an event's, and the request takes no pointer.
        Errno::result(unsafe { ioctls::SET_BPF(self.0.as_raw_fd(), program) }).map(drop)
    }

    /// Lets the event count until it has overflowed this many times.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn refresh(&self, times: usize) -> Result<(), Errno> {
        // SAFETY: the descriptor is an event's, and the request takes no pointer.
        Errno::result(unsafe { ioctls::REFRESH(self.0.as_raw_fd(), times as i32) }).map(drop)
    }
}

/// A record in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// An overflow.
    Sample {
        /// The instruction's address.
        ip: u64,
        /// The thread.
        tid: u32,
        /// The number of events since the overflow before.
        period: u64,
    },
    /// The number of records that were lost, because there was no room.
    Lost(u64),
    /// Another kind of record, by its number.
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
    /// Opens an event that overflows every `period` events.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn open(attributes: perf_event_attr, period: u64, whose: Whose) -> anyhow::Result<Self> {
        Self::of_type(attributes, period, whose, 0)
    }

    fn of_type(
        mut attributes: perf_event_attr,
        period: u64,
        whose: Whose,
        more: u32,
    ) -> anyhow::Result<Self> {
        let usual = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_PERIOD;
        attributes.__bindgen_anon_1.sample_period = period;
        attributes.sample_type = u64::from(usual | more);
        let event = Event::open(attributes, whose, None)?;
        let bytes = (1 + RING_PAGES) * PAGE_BYTES;
        // SAFETY: the memory is shared with the kernel alone, which follows the ring's protocol.
        let ring = unsafe { MmapOptions::new().len(bytes).map_mut(&event.0)? };
        Ok(Self { event, ring })
    }

    /// Opens an event whose samples have branches of these kinds (`PERF_SAMPLE_BRANCH_*`).
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn with_branches(
        mut attributes: perf_event_attr,
        period: u64,
        whose: Whose,
        kinds: u32,
    ) -> anyhow::Result<Self> {
        attributes.branch_sample_type = kinds.into();
        Self::of_type(attributes, period, whose, PERF_SAMPLE_BRANCH_STACK)
    }

    /// Returns the places of the samples since the last call, each with whether it is said to be
    /// that of the event itself. No record may be written meanwhile.
    ///
    /// # Errors
    ///
    /// Samples were lost, or something else was recorded.
    pub fn placed(&mut self) -> anyhow::Result<Vec<(u64, bool)>> {
        let mut samples = Vec::new();
        self.each_record(|kind, word| {
            if kind != PERF_RECORD_SAMPLE {
                return samples.push(Err(kind));
            }
            // The header has the record's type, `PERF_RECORD_MISC_*` and its size.
            let misc = (word(0) >> 32) as u16;
            let exact = u32::from(misc) & PERF_RECORD_MISC_EXACT_IP != 0;
            samples.push(Ok((word(1), exact)));
        });
        let other = |kind| anyhow::anyhow!("a record of type {kind} in place of a sample");
        samples.into_iter().map(|sample| sample.map_err(other)).collect()
    }

    /// Returns the samples since the last call, each with its place, the events that it stands for,
    /// and its branches, the latest first. No record may be written meanwhile.
    ///
    /// # Errors
    ///
    /// Samples were lost, or something else was recorded.
    pub fn branched(&mut self) -> anyhow::Result<Vec<(u64, u64, Vec<Branch>)>> {
        let mut samples = Vec::new();
        self.each_record(|kind, word| {
            if kind != PERF_RECORD_SAMPLE {
                return samples.push(Err(kind));
            }
            // Each branch is a source, a target and flags.
            let branch = |n| (word(5 + 3 * n), word(6 + 3 * n));
            let branches = (0..word(4)).map(branch).collect();
            samples.push(Ok((word(1), word(3), branches)));
        });
        let other = |kind| anyhow::anyhow!("a record of type {kind} in place of a sample");
        samples.into_iter().map(|sample| sample.map_err(other)).collect()
    }

    /// Returns the records since the last call. No record may be written meanwhile.
    pub fn records(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        self.each_record(|kind, word| {
            records.push(match kind {
                PERF_RECORD_SAMPLE => {
                    Record::Sample { ip: word(1), tid: (word(2) >> 32) as u32, period: word(3) }
                }
                PERF_RECORD_LOST => Record::Lost(word(2)),
                other => Record::Other(other),
            });
        });
        records
    }

    /// Calls `take` with each record since the last call: its type, and a function that returns its
    /// words, of which the first is its header.
    fn each_record(&mut self, mut take: impl FnMut(u32, &dyn Fn(u64) -> u64)) {
        let page: *mut perf_event_mmap_page = self.ring.as_mut_ptr().cast();
        // SAFETY: the first page of the mapping has this form, and the kernel keeps it up to date.
        let (head, tail) = unsafe { ((*page).data_head, (*page).data_tail) };
        fence(Ordering::Acquire);
        let data = &self.ring[PAGE_BYTES..];
        let word = |at: u64| {
            let at = at as usize % data.len();
            u64::from_ne_bytes(data[at..at + 8].try_into().expect("8 bytes"))
        };
        let mut at = tail;
        while at < head {
            // `struct perf_event_header`: type, misc, size.
            let (kind, bytes) = (word(at) as u32, word(at) >> 48);
            take(kind, &|n| word(at + 8 * n));
            at += bytes;
        }
        fence(Ordering::Release);
        // SAFETY: the first page of the mapping has this form, and only this function writes the
        // field.
        unsafe { (*page).data_tail = at };
    }
}
