// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A ring of the calling thread's samples, which a signal handler stores when they happen.
#![expect(unsafe_code, reason = "a signal handler finds its thread's ring by a pointer")]

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::{Overflow, Sample, set_handler};

/// A ring of the calling thread's samples. Its memory is allocated before the first sample.
///
/// A signal handler stores a sample of each overflow and lets the counters go on. The thread takes
/// the samples when it wants to. A thread has at most one ring.
///
/// ```no_run
/// use perfctr::overflow::Ring;
/// use perfctr::{Event, Session};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ring = Ring::new(libc::SIGPROF, 4_096)?;
/// let mut session = Session::open()?;
/// session.start_sampling(&[Event::INSTRUCTIONS.user().every(100_000)], libc::SIGPROF)?;
/// // Whatever this thread does now is sampled.
/// session.stop()?;
/// while let Some(sample) = ring.take() {
///     println!("{:#x}", sample.ip);
/// }
/// assert_eq!(ring.lost(), 0);
/// # Ok(())
/// # }
/// ```
///
/// A ring cannot be sent to another thread:
///
/// ```compile_fail,E0277
/// let ring = perfctr::overflow::Ring::new(libc::SIGPROF, 16).unwrap();
/// std::thread::spawn(move || ring.take());
/// ```
#[derive(Debug)]
pub struct Ring {
    shared: Box<Shared>,
    /// Makes the ring neither `Send` nor `Sync`.
    thread: PhantomData<*const ()>,
}

/// The memory that a thread and its signal handler share.
///
/// ATOMICS: both execute in one thread, the handler between two instructions of the rest. Release
/// and Acquire only keep the compiler from moving accesses of a sample's place across accesses of
/// the number that says whether the handler or the thread may use the place.
#[derive(Debug)]
struct Shared {
    places: Box<[Place]>,
    /// Number of samples that the handler has stored since the beginning.
    noted: AtomicUsize,
    /// Number of samples that the thread has taken since the beginning.
    taken: AtomicUsize,
    lost: AtomicU64,
}

/// The place of a [`Sample`].
#[derive(Debug, Default)]
struct Place {
    counters: AtomicU32,
    ip: AtomicUsize,
}

thread_local! {
    /// This thread's ring, or null.
    static RING: Cell<*const Shared> = const { Cell::new(ptr::null()) };
}

impl Ring {
    /// Makes a ring with room for `capacity` samples, which `signal` reports.
    ///
    /// # Errors
    ///
    /// `EEXIST` if the thread has a ring; the kernel's error if there is no such signal, or if it
    /// cannot be handled.
    pub fn new(signal: libc::c_int, capacity: usize) -> io::Result<Self> {
        if !RING.get().is_null() {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        let shared = Box::new(Shared {
            places: (0..capacity).map(|_| Place::default()).collect(),
            noted: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
        });
        // SAFETY: `note` only loads and stores atomics, which is async-signal-safe.
        unsafe { set_handler(signal, note)? };
        RING.set(&raw const *shared);
        Ok(Self { shared, thread: PhantomData })
    }

    /// Takes the oldest sample that has not been taken yet.
    pub fn take(&self) -> Option<Sample> {
        let taken = self.shared.taken.load(Ordering::Relaxed);
        if taken == self.shared.noted.load(Ordering::Acquire) {
            return None;
        }
        let place = &self.shared.places[taken % self.shared.places.len()];
        let overflow = Overflow { counters: place.counters.load(Ordering::Relaxed) };
        let sample = Sample { overflow, ip: place.ip.load(Ordering::Relaxed) };
        self.shared.taken.store(taken + 1, Ordering::Release);
        Some(sample)
    }

    /// Returns how many samples were lost because the ring was full.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        RING.set(ptr::null());
    }
}

/// Stores a sample. The signal handler calls it.
fn note(sample: &Sample) {
    // SAFETY: the ring behind the pointer lives until `drop`, which clears the pointer first.
    let Some(shared) = (unsafe { RING.get().as_ref() }) else { return };
    let noted = shared.noted.load(Ordering::Relaxed);
    let room = noted - shared.taken.load(Ordering::Acquire) < shared.places.len();
    match shared.places.get(noted % shared.places.len().max(1)).filter(|_| room) {
        Some(place) => {
            place.counters.store(sample.overflow.counters, Ordering::Relaxed);
            place.ip.store(sample.ip, Ordering::Relaxed);
            shared.noted.store(noted + 1, Ordering::Release);
        }
        None => {
            shared.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}
