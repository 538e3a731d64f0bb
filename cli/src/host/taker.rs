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

use crate::program::LOOK;

/// The number of samples that are kept until they are fetched. If there are more, sampling ends.
const KEPT_MAX: usize = 6_000;

/// The samples that were taken at once.
pub struct Taken {
    pub samples: Vec<HostSample>,
    /// How many samples were lost since the beginning.
    pub lost: u64,
}

/// The thread, and the samples that it has taken.
pub struct Taker {
    taken: Receiver<Result<Taken, Error>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Taker {
    pub fn new(rings: HostSamples) -> io::Result<Self> {
        let (to, taken) = sync_channel(KEPT_MAX);
        let ends = Arc::new(AtomicBool::new(false));
        let asked = ends.clone();
        let thread = thread::Builder::new().name("samples".to_owned());
        let thread = thread.spawn(move || take(rings, &to, &asked))?;
        Ok(Self { taken, ends, thread: Some(thread) })
    }

    /// Returns the oldest samples that were not fetched yet.
    pub fn next(&self) -> Option<Result<Taken, Error>> {
        self.taken.try_recv().ok()
    }

    /// Ends sampling, and returns all samples that were not fetched yet.
    pub fn end(self) -> Vec<Result<Taken, Error>> {
        self.ends.store(true, Ordering::Relaxed);
        self.taken.iter().collect()
    }
}

impl Drop for Taker {
    /// Waits until sampling has ended.
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // The thread may wait for room.
        self.taken.iter().for_each(drop);
        // The thread returns nothing, and a panic would have ended the process.
        self.thread.take().map(JoinHandle::join);
    }
}

fn take(mut rings: HostSamples, to: &SyncSender<Result<Taken, Error>>, ends: &AtomicBool) {
    // Signals are for the thread that waits for them.
    SigSet::all().thread_block().ok();
    loop {
        // The samples that remain then are taken once more.
        let is_last = ends.load(Ordering::Relaxed);
        let taken = rings.take().map(|samples| Taken { samples, lost: rings.lost() });
        let is_last = is_last || taken.is_err();
        if to.send(taken).is_err() || is_last {
            return;
        }
        thread::sleep(LOOK);
    }
}
