// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that the module can be unloaded and loaded again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use perfctr::{Cause, Error};

use crate::module;
use crate::rng::Rng;
use crate::stats::until_threads;
use crate::witness::Witness;

/// The number of threads that open and close sessions meanwhile.
const THREADS: u64 = 4;

/// How long a thread does not use the module between two sessions, in ms: long enough that there
/// are moments in which nobody uses it, on a slow machine too.
const PAUSE_MS: std::ops::Range<u64> = 100..600;

/// Checks that the module cannot be unloaded while a thread counts.
///
/// # Errors
///
/// The module can be unloaded, or the thread does not count exactly.
pub fn in_use() -> Result<()> {
    let witness = Witness::new()?;
    let refusal = module::unload();
    ensure!(refusal == Err(Errno::EAGAIN), "unloading gave {refusal:?}");
    witness.exact()
}

/// Unloads and loads the module `rounds` times while threads open and close sessions.
///
/// # Errors
///
/// The module cannot be unloaded or loaded, a thread does not count exactly, or something is left.
///
/// # Panics
///
/// One of the threads panics.
pub fn comes_and_goes(rounds: u32) -> Result<()> {
    let stop = AtomicBool::new(false);
    let sessions = AtomicU64::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|id| {
                let (stop, sessions) = (&stop, &sessions);
                scope.spawn(move || open_and_close(id, stop, sessions))
            })
            .collect();
        let reloaded = reload(rounds);
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().expect("workers do not panic")?;
        }
        reloaded
    })?;
    let sessions = sessions.load(Ordering::Relaxed);
    ensure!(sessions > 0, "no session was opened meanwhile");
    until_threads(0)
}

fn reload(rounds: u32) -> Result<()> {
    for _ in 0..rounds {
        thread::sleep(Duration::from_millis(20));
        module::unload_when_idle().context("cannot unload the module")?;
        module::load()?;
    }
    Ok(())
}

fn open_and_close(id: u64, stop: &AtomicBool, sessions: &AtomicU64) -> Result<()> {
    let mut rng = Rng::new(1, id);
    while !stop.load(Ordering::Relaxed) {
        match Witness::new() {
            Ok(witness) => {
                witness.exact()?;
                sessions.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => match error.downcast_ref() {
                // The module is not loaded at this moment.
                Some(Error::Refused(refusal)) if refusal.cause == Cause::NoModule => {}
                _ => return Err(error),
            },
        }
        thread::sleep(Duration::from_millis(rng.between(PAUSE_MS.start, PAUSE_MS.end)));
    }
    Ok(())
}
