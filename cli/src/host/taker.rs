// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Takes a host's samples in a thread of its own. So no sample is lost, and sampling does not end,
//! while names are looked up or a terminal is slow.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use nix::sys::signal::SigSet;
use perfctr::Error;
use perfctr::host::{HostSample, HostSamples};
use perfctr::watch::{MachineSample, MachineSamples};

use crate::program::LOOK;

/// A host's rings of samples.
pub trait Rings: Send + 'static {
    type Sample: Send;

    /// Takes the samples that there are.
    fn take(&mut self) -> Result<Vec<Self::Sample>, Error>;

    /// Returns how many samples were lost since the beginning.
    fn lost(&self) -> u64;

    /// Ends sampling. The samples that remain are taken afterwards.
    fn stop(&mut self) -> Result<(), Error>;
}

impl Rings for HostSamples {
    type Sample = HostSample;

    fn take(&mut self) -> Result<Vec<HostSample>, Error> {
        Self::take(self)
    }

    fn lost(&self) -> u64 {
        Self::lost(self)
    }

    fn stop(&mut self) -> Result<(), Error> {
        // Xen forgets its samples when sampling ends, so it ends when they have been taken.
        Ok(())
    }
}

impl Rings for MachineSamples {
    type Sample = MachineSample;

    fn take(&mut self) -> Result<Vec<MachineSample>, Error> {
        Self::take(self)
    }

    fn lost(&self) -> u64 {
        Self::lost(self)
    }

    fn stop(&mut self) -> Result<(), Error> {
        Self::stop(self)
    }
}

/// The number of samples that are kept until they are fetched. If there are more, sampling ends.
const KEPT_MAX: usize = 6_000;

/// The samples that were taken at once.
pub struct Taken<S> {
    pub samples: Vec<S>,
    /// How many samples were lost since the beginning.
    pub lost: u64,
}

/// What was taken at once, or why there is no more.
pub type Outcome<S> = Result<Taken<S>, Error>;

/// The thread, and the samples that it has taken.
pub struct Taker<R: Rings> {
    taken: Receiver<Outcome<R::Sample>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<R>>,
}

impl<R: Rings> Taker<R> {
    pub fn new(rings: R) -> io::Result<Self> {
        let (to, taken) = sync_channel(KEPT_MAX);
        let ends = Arc::new(AtomicBool::new(false));
        let asked = ends.clone();
        let thread = thread::Builder::new().name("samples".to_owned());
        let thread = thread.spawn(move || take(rings, &to, &asked))?;
        Ok(Self { taken, ends, thread: Some(thread) })
    }

    /// Returns the oldest samples that were not fetched yet.
    pub fn next(&self) -> Option<Outcome<R::Sample>> {
        self.taken.try_recv().ok()
    }

    /// Ends sampling. Returns all samples that were not fetched yet, and the rings.
    pub fn end(mut self) -> (Vec<Outcome<R::Sample>>, Option<R>) {
        self.ends.store(true, Ordering::Relaxed);
        let rest = self.taken.iter().collect();
        // A panic would have ended the process.
        (rest, self.thread.take().and_then(|thread| thread.join().ok()))
    }
}

impl<R: Rings> Drop for Taker<R> {
    /// Waits until sampling has ended.
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // The thread may wait for room.
        self.taken.iter().for_each(drop);
        // A panic would have ended the process.
        self.thread.take().map(JoinHandle::join);
    }
}

fn take<R: Rings>(mut rings: R, to: &SyncSender<Outcome<R::Sample>>, ends: &AtomicBool) -> R {
    // Signals are for the thread that waits for them.
    SigSet::all().thread_block().ok();
    loop {
        // The samples that remain then are taken once more.
        let is_last = ends.load(Ordering::Relaxed);
        let stopped = if is_last { rings.stop() } else { Ok(()) };
        let taken = stopped.and_then(|()| rings.take());
        let taken = taken.map(|samples| Taken { samples, lost: rings.lost() });
        let is_last = is_last || taken.is_err();
        if to.send(taken).is_err() || is_last {
            return rings;
        }
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rings that give one sample each time they are asked. After sampling has ended they give
    /// four. The samples are the numbers from 0 on.
    #[derive(Default)]
    struct Numbers {
        found: u32,
        stopped: u32,
        fails_at: Option<u32>,
    }

    impl Rings for Numbers {
        type Sample = u32;

        fn take(&mut self) -> Result<Vec<u32>, Error> {
            if self.fails_at == Some(self.found) {
                return Err(Error::NotSampled("rings that fail"));
            }
            let first = self.found;
            self.found += 1 + 3 * self.stopped;
            Ok((first..self.found).collect())
        }

        fn lost(&self) -> u64 {
            self.found.into()
        }

        fn stop(&mut self) -> Result<(), Error> {
            self.stopped += 1;
            Ok(())
        }
    }

    #[test]
    fn the_samples_that_remain_when_sampling_has_ended_are_taken() {
        let taker = Taker::new(Numbers::default()).unwrap();
        let (mut all, mut lost) = (Vec::new(), 0);
        let mut add = |taken: Outcome<u32>| {
            let taken = taken.unwrap();
            all.extend(taken.samples);
            lost = taken.lost;
            (all.len(), lost)
        };
        for number in 1..=3 {
            let taken = std::iter::repeat_with(|| taker.next()).flatten().next();
            assert_eq!(add(taken.unwrap()), (number, number as u64), "one each time");
        }
        let (rest, rings) = taker.end();
        rest.into_iter().for_each(|taken| _ = add(taken));
        let rings = rings.unwrap();
        assert_eq!(all, (0..rings.found).collect::<Vec<_>>(), "each once, in their order");
        assert_eq!((rings.stopped, lost), (1, rings.found.into()));
        assert!(all.len() >= 3 + 4, "sampling has ended before the last samples were taken");
    }

    #[test]
    fn an_error_ends_sampling_and_keeps_what_was_there() {
        let taker = Taker::new(Numbers { fails_at: Some(2), ..Numbers::default() }).unwrap();
        let (rest, rings) = loop {
            // The thread ends by itself.
            if taker.thread.as_ref().is_some_and(JoinHandle::is_finished) {
                break taker.end();
            }
            thread::yield_now();
        };
        let samples: Vec<Option<u32>> =
            rest.iter().map(|taken| Some(taken.as_ref().ok()?.samples[0])).collect();
        assert_eq!(samples, [Some(0), Some(1), None]);
        assert_eq!(rings.unwrap().stopped, 0);
    }
}
