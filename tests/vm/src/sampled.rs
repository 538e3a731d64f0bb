// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Compares the signals that a sampling thread gets with what it has counted.
#![expect(unsafe_code, reason = "a signal handler has a contract")]

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use perfctr::overflow::{Sample, set_handler};
use perfctr::raw::Device;
use perfctr::{Provider, Session};
use shared_abi::ioctl::Create;
use shared_abi::limits::MAX_COUNTERS;
use shared_abi::version::ABI_MAJOR;

/// The signal of all overflows here. It does not harm a program that does not handle it, such as
/// one that is executed while it is pending.
pub const SIGNAL: i32 = libc::SIGURG;

/// Distances between an overflow and its signal that are distinguished. Unit: events.
pub const SKIDS: usize = 256;

/// The longest way from where the counters continue after a signal to where the thread continues.
/// Unit: instructions.
pub const WAY_MAX: usize = 32;

/// The number of signals that came to threads which do not sample, or which none of their counters
/// explains.
static ELSEWHERE: AtomicU64 = AtomicU64::new(0);

/// The descriptors with which handlers read.
static OPENED: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

/// The notes of the handler. It runs in the thread to which they belong, between two of the
/// thread's instructions.
struct Seen {
    /// The thread's counters, to be read while they are paused.
    device: Cell<Option<&'static Device>>,
    /// Periods of the counters, 0 for those that do not sample; all 0 while the thread does not.
    periods: Cell<[u64; MAX_COUNTERS]>,
    /// The counter of instructions.
    instructions: Cell<usize>,
    /// Periods that had passed at the last signal.
    passed: Cell<[u64; MAX_COUNTERS]>,
    noted: Cell<Noted>,
    skids: [Cell<u64>; SKIDS],
}

/// The handler's notes of a thread's overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// The number of signals.
    pub signals: u64,
    /// The number of overflows of its counters that they have reported.
    pub overflows: u64,
    /// The number of periods that passed and were not reported by the next signal.
    pub lost: u64,
    /// The number of overflows that were reported although no period had passed.
    pub extra: u64,
    /// The number of signals at which the counters could not be read.
    pub unread: u64,
    /// The number of instructions at the last signal.
    pub last: u64,
    /// How often a signal came `n` instructions after the one before. Its overflow was on the
    /// way from where the counters continued, and paused them there.
    pub after: [u64; WAY_MAX],
}

impl Noted {
    /// Returns the number of periods that had passed at the last signal.
    pub fn passed(&self) -> u64 {
        self.overflows + self.lost - self.extra
    }
}

thread_local! {
    static SEEN: Seen = const {
        Seen {
            device: Cell::new(None),
            periods: Cell::new([0; MAX_COUNTERS]),
            instructions: Cell::new(0),
            passed: Cell::new([0; MAX_COUNTERS]),
            noted: Cell::new(Noted {
                signals: 0,
                overflows: 0,
                lost: 0,
                extra: 0,
                unread: 0,
                last: 0,
                after: [0; WAY_MAX],
            }),
            skids: [const { Cell::new(0) }; SKIDS],
        }
    };
}

/// Makes the handler note every thread's overflows from now on.
///
/// # Errors
///
/// The kernel's error.
pub fn handle() -> Result<()> {
    // SAFETY: `note` only makes a system call and stores to cells that exist already.
    unsafe { set_handler(SIGNAL, note) }.context("cannot handle the signal")
}

/// Returns the number of signals that came to a wrong thread.
pub fn elsewhere() -> u64 {
    ELSEWHERE.load(Ordering::Relaxed)
}

/// Opens a session whose overflows can be noted.
///
/// Its descriptor for the handler outlives the thread, since a signal may come while the thread
/// ends; see [`close_all`].
///
/// # Errors
///
/// Those of a session and of the device.
pub fn open() -> Result<Session> {
    let session = Session::open_with(Provider::Paravirt)?;
    let device = Device::open()?;
    device.open_existing(&Create { abi_major: ABI_MAJOR.into(), ..Create::default() })?;
    let device: &'static Device = Box::leak(Box::new(device));
    OPENED.lock().expect("no thread panics").push(device);
    SEEN.with(|seen| seen.device.set(Some(device)));
    Ok(session)
}

/// Closes the descriptors of all threads, so that the module can be unloaded. No thread samples.
pub fn close_all() {
    for device in OPENED.lock().expect("no thread panics").drain(..) {
        // SAFETY: only the handler of a thread that samples uses the descriptor.
        unsafe { libc::close(device.as_raw_fd()) };
    }
}

/// Says that the calling thread will sample with these periods, and count instructions with this
/// counter.
pub fn expect(periods: &[u64], instructions: usize) {
    SEEN.with(|seen| {
        let mut all = [0; MAX_COUNTERS];
        all[..periods.len()].copy_from_slice(periods);
        seen.noted.set(Noted::default());
        seen.passed.set([0; MAX_COUNTERS]);
        seen.periods.set(all);
        seen.instructions.set(instructions);
    });
}

/// Says that the calling thread samples no more, and returns what was noted.
pub fn finish() -> Noted {
    SEEN.with(|seen| {
        seen.periods.set([0; MAX_COUNTERS]);
        seen.noted.get()
    })
}

/// Returns, for each lateness in events, how often a signal of the calling thread came so late.
pub fn skids() -> [u64; SKIDS] {
    SEEN.with(|seen| std::array::from_fn(|n| seen.skids[n].get()))
}

/// Handles the signal.
fn note(sample: &Sample) {
    let noted = SEEN.try_with(|seen| seen.note(sample));
    if noted != Ok(true) {
        ELSEWHERE.fetch_add(1, Ordering::Relaxed);
    }
}

impl Seen {
    /// Notes one signal. Returns false if it was not this thread's.
    fn note(&self, sample: &Sample) -> bool {
        let (periods, mut passed, mut noted) =
            (self.periods.get(), self.passed.get(), self.noted.get());
        noted.signals += 1;
        let Some(Ok(sums)) = self.device.get().map(|device| device.sums()) else {
            noted.unread += 1;
            self.noted.set(noted);
            return false;
        };
        let now = sums.counter[self.instructions.get()];
        let way = usize::try_from(now.wrapping_sub(noted.last)).unwrap_or(WAY_MAX);
        if let Some(times) = noted.after.get_mut(way) {
            *times += 1;
        }
        noted.last = now;
        let mut own = true;
        for (n, &count) in sums.counter.iter().enumerate() {
            let overflowed = sample.overflow.contains(n);
            let Some(now) = count.checked_div(periods[n]) else {
                own &= !overflowed;
                continue;
            };
            let new = now.saturating_sub(passed[n]);
            let signalled = u64::from(overflowed);
            noted.overflows += signalled;
            noted.lost += new.saturating_sub(signalled);
            noted.extra += signalled.saturating_sub(new);
            passed[n] = now;
            if overflowed {
                let skid = usize::try_from(count % periods[n]).unwrap_or(SKIDS);
                let place = &self.skids[skid.min(SKIDS - 1)];
                place.set(place.get() + 1);
            }
        }
        self.passed.set(passed);
        self.noted.set(noted);
        own && sample.overflow.counters().next().is_some()
    }
}
