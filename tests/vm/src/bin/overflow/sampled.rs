// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What a thread that samples itself is told, beside what it has counted.

use std::cell::{Cell, OnceCell};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use perfctr::overflow::{Sample, set_handler};
use perfctr::raw::Device;
use shared_abi::ioctl::Create;
use shared_abi::limits::MAX_COUNTERS;
use shared_abi::version::ABI_MAJOR;

/// The signal of all overflows here.
pub const SIGNAL: i32 = libc::SIGIO;

/// Distances between an overflow and its signal that are told apart, unit: events.
pub const SKIDS: usize = 256;

/// Signals that threads got which do not sample, or which none of their counters explains.
static ELSEWHERE: AtomicU64 = AtomicU64::new(0);

/// What the handler notes.  It runs in the thread whose this is, between two of its instructions.
struct Seen {
    /// The thread's counters, to be read while they are paused.
    device: OnceCell<Device>,
    /// Periods of the counters, 0 for those that do not sample; all 0 while the thread does not.
    periods: Cell<[u64; MAX_COUNTERS]>,
    /// Periods that had passed at the last signal.
    passed: Cell<[u64; MAX_COUNTERS]>,
    told: Cell<Told>,
    skids: [Cell<u64>; SKIDS],
}

/// Numbers of a thread's overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Signals.
    pub signals: u64,
    /// Overflows of its counters that they told of.
    pub overflows: u64,
    /// Periods that passed and were not told of at the next signal.
    pub lost: u64,
    /// Overflows told of although no period had passed.
    pub extra: u64,
    /// Signals at which the counters could not be read.
    pub unread: u64,
}

thread_local! {
    static SEEN: Seen = const {
        Seen {
            device: OnceCell::new(),
            periods: Cell::new([0; MAX_COUNTERS]),
            passed: Cell::new([0; MAX_COUNTERS]),
            told: Cell::new(Told { signals: 0, overflows: 0, lost: 0, extra: 0, unread: 0 }),
            skids: [const { Cell::new(0) }; SKIDS],
        }
    };
}

/// From now on every thread's overflows are noted.
pub fn handle() -> Result<()> {
    set_handler(SIGNAL, note).context("cannot handle the signal")
}

/// Signals that came to a wrong thread.
pub fn elsewhere() -> u64 {
    ELSEWHERE.load(Ordering::Relaxed)
}

/// The calling thread has a session, and will sample with these periods.
pub fn expect(periods: &[u64]) -> Result<()> {
    SEEN.with(|seen| {
        if seen.device.get().is_none() {
            let device = Device::open()?;
            let own = Create { abi_major: ABI_MAJOR.into(), ..Create::default() };
            device.open_existing(&own)?;
            let _ = seen.device.set(device);
        }
        let mut all = [0; MAX_COUNTERS];
        all[..periods.len()].copy_from_slice(periods);
        seen.told.set(Told::default());
        seen.passed.set([0; MAX_COUNTERS]);
        seen.periods.set(all);
        Ok(())
    })
}

/// The calling thread samples no more; what it was told.
pub fn told() -> Told {
    SEEN.with(|seen| {
        seen.periods.set([0; MAX_COUNTERS]);
        seen.told.get()
    })
}

/// How often a signal of the calling thread came how many events late.
pub fn skids() -> [u64; SKIDS] {
    SEEN.with(|seen| std::array::from_fn(|n| seen.skids[n].get()))
}

/// The handler.
fn note(sample: &Sample) {
    let noted = SEEN.try_with(|seen| seen.note(sample));
    if noted != Ok(true) {
        ELSEWHERE.fetch_add(1, Ordering::Relaxed);
    }
}

impl Seen {
    /// Notes one signal; false if it was not this thread's.
    fn note(&self, sample: &Sample) -> bool {
        let (periods, mut passed, mut told) =
            (self.periods.get(), self.passed.get(), self.told.get());
        told.signals += 1;
        let Some(Ok(sums)) = self.device.get().map(Device::sums) else {
            told.unread += 1;
            self.told.set(told);
            return false;
        };
        let mut own = true;
        for (n, &count) in sums.counter.iter().enumerate() {
            let overflowed = sample.overflow.contains(n);
            let Some(now) = count.checked_div(periods[n]) else {
                own &= !overflowed;
                continue;
            };
            let new = now.saturating_sub(passed[n]);
            let noted = u64::from(overflowed);
            told.overflows += noted;
            told.lost += new.saturating_sub(noted);
            told.extra += noted.saturating_sub(new);
            passed[n] = now;
            if overflowed {
                let skid = usize::try_from(count % periods[n]).unwrap_or(SKIDS);
                let place = &self.skids[skid.min(SKIDS - 1)];
                place.set(place.get() + 1);
            }
        }
        self.passed.set(passed);
        self.told.set(told);
        own && sample.overflow.counters().next().is_some()
    }
}
