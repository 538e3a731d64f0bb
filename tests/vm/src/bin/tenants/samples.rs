// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A tenant's threads sample themselves: each period that passes is told, and once.
#![expect(unsafe_code, reason = "a signal handler has a contract")]

use std::cell::Cell;
use std::thread;

use anyhow::{Context, Result};
use perfctr::overflow::{Sample, set_handler};
use perfctr::{Event, Provider, Session};
use serde_json::{Value, json};
use vm_tests::region::Region;
use vm_tests::rng::Rng;
use vm_tests::threads::cpus;

/// Of the first thread; the others' are longer.
const PERIOD: u64 = 100_003;
/// Threads for each vCPU.
const THREADS_PER_VCPU: usize = 2;
/// What each thread executes: regions of five million instructions on average.
const REGIONS: usize = 40;
const ITERATIONS: u64 = 5_000_000;
/// Looks at numbers that may change meanwhile.
const LOOKS: usize = 10;

thread_local! {
    static TOLD: Cell<u64> = const { Cell::new(0) };
}

/// The handler.
fn note(sample: &Sample) {
    let told = u64::from(sample.overflow.contains(0));
    TOLD.with(|all| all.set(all.get() + told));
}

/// What all threads together have been told, beside what has passed.
pub fn take() -> Result<Value> {
    // SAFETY: `note` does nothing but to add to a cell that is there already.
    unsafe { set_handler(libc::SIGURG, note) }.context("cannot handle the signal")?;
    let threads = cpus()?.len() * THREADS_PER_VCPU;
    let seen: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads as u64).map(|n| scope.spawn(move || one(n))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    let (mut told, mut lost, mut extra) = (0, 0, 0);
    for seen in seen {
        let (passed, heard): (u64, u64) = seen?;
        told += heard;
        lost += passed.saturating_sub(heard);
        extra += heard.saturating_sub(passed);
    }
    Ok(json!({ "imode_overflows": told, "imode_lost": lost, "imode_extra": extra }))
}

/// The periods of a thread that have passed, and those that it was told of.
fn one(number: u64) -> Result<(u64, u64)> {
    let period = PERIOD + 1_000 * number;
    let mut session = Session::open_with(Provider::Paravirt)?;
    let instructions = Event::INSTRUCTIONS.user();
    session.start_sampling(&[instructions.every(period), instructions], libc::SIGURG)?;
    let mut rng = Rng::new(3, number);
    for _ in 0..REGIONS {
        Region::random(&mut rng, ITERATIONS).execute(&mut 0);
    }
    for _ in 0..LOOKS {
        let before = TOLD.get();
        let [_, count] = session.read::<2>()?.counts;
        if TOLD.get() == before {
            return Ok((count / period, before));
        }
    }
    anyhow::bail!("overflows do not cease")
}
