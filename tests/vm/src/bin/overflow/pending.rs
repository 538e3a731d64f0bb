// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests overflows in the middle of a thread switch.
//!
//! Counters that also count in the kernel now and then overflow where the kernel has disabled
//! interrupts in order to switch threads. The virtual interrupt comes when another thread
//! executes. The thread whose counter has overflowed gets its signal when it is resumed.
//!
//! Such counters also overflow where the kernel waits, with interrupts disabled, for a lock whose
//! holder is on a vCPU that does not execute. That takes so long that whole periods pass and are
//! merged. It cannot happen with one vCPU, where nobody waits like this, so every overflow has to
//! have its own signal.

use std::sync::Barrier;
use std::thread;

use anyhow::{Context, Error, Result};
use perfctr::Event;
use vm_tests::sampled::{self, Noted, SIGNAL};
use vm_tests::threads::{SELF, run_on};

/// The period. It is longer than the way of a signal through the kernel, so that the thread makes
/// progress between two signals. It is also longer than the time for which the kernel disables
/// interrupts when it does not have to wait.
const PERIOD: u64 = 20_011;

const THREADS: usize = 4;

/// The signals of a thread that switches often.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub noted: Noted,
    /// How often the thread's period fits into its count.
    pub expected: u64,
}

/// Runs two threads on each of two CPUs, or four on the only one. Each switches `yields` times.
pub fn run(cpus: &[usize], yields: u64) -> Result<Vec<Outcome>> {
    let begin = &Barrier::new(THREADS);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|id| scope.spawn(move || switches(cpus[id % cpus.len().min(2)], yields, begin)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    })
}

fn switches(cpu: usize, yields: u64, begin: &Barrier) -> Result<Outcome> {
    let ready = run_on(SELF, &[cpu]).map_err(Error::from).and_then(|()| sampled::open());
    sampled::expect(&[PERIOD], 0);
    // Alone, a thread would have no other thread to switch to.
    begin.wait();
    let mut session = ready?;
    session
        .start_sampling(&[Event::INSTRUCTIONS.every(PERIOD), Event::INSTRUCTIONS], SIGNAL)
        .context("cannot sample in the kernel")?;
    for _ in 0..yields {
        thread::yield_now();
    }
    session.stop()?;
    let noted = sampled::finish();
    Ok(Outcome { noted, expected: session.read::<1>()?.counts[0] / PERIOD })
}
