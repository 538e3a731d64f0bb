// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests threads that perf samples.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};
use nix::unistd::gettid;
use perf_event_open_sys::bindings::PERF_COUNT_HW_INSTRUCTIONS;
use vm_tests::perf::{Record, Sampling, Whose, generic};
use vm_tests::region::Region;
use vm_tests::threads::SELF;

use crate::Machine;

/// Each thread's period, unit: instructions.
const PERIODS: [u64; 8] = [10_007, 20_011, 30_011, 50_021, 100_003, 200_003, 500_009, 1_000_003];
const ITERATIONS: u64 = 2_000_000;
const ROUNDS: usize = 5;

fn sampling(period: u64) -> Result<Sampling> {
    let mut instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
    instructions.set_disabled(1);
    Sampling::open(instructions, period, Whose::Thread(SELF))
}

/// Executes the code whose places samples name.
#[inline(never)]
fn work() {
    Region { first: ITERATIONS, second: ITERATIONS }.execute(&mut 0);
}

/// The most bytes of the code of `work`.
const WORK_BYTES: u64 = 256;

/// Checks that every period has a sample of its own.
pub fn threads(machine: &Machine) -> Result<()> {
    let merged = merged(machine)?;
    ensure!(merged == 0, "{merged} periods have no sample of their own");
    Ok(())
}

/// Checks that every period is in a sample, even if one sample stands for several.
pub fn threads_merged(machine: &Machine) -> Result<()> {
    println!("{} periods were delivered together with others", merged(machine)?);
    Ok(())
}

/// Returns how many periods were merged into samples of others.
fn merged(machine: &Machine) -> Result<u64> {
    let merged = &AtomicU64::new(0);
    machine.disturbed(|| {
        machine.scattered(PERIODS.len(), |id| {
            let mut sampling = sampling(PERIODS[id])?;
            for _ in 0..ROUNDS {
                merged.fetch_add(round(&mut sampling, PERIODS[id])?, Relaxed);
            }
            Ok(())
        })
    })?;
    Ok(merged.load(Relaxed))
}

/// Counts one round, and returns how many periods were merged into samples of others.
fn round(sampling: &mut Sampling, period: u64) -> Result<u64> {
    let before = sampling.event.count()?;
    sampling.event.enable()?;
    work();
    sampling.event.disable()?;
    let expected = sampling.event.count()? / period - before / period;
    let (mut samples, mut periods, mut elsewhere) = (0, 0, 0);
    let own = gettid().as_raw() as u32;
    let work = work as *const () as u64;
    for record in sampling.records() {
        let Record::Sample { ip, tid, period: events } = record else {
            anyhow::bail!("{record:?} in place of a sample");
        };
        ensure!(tid == own, "a sample of thread {tid} with thread {own}");
        ensure!(events % period == 0, "{events} events are not periods of {period}");
        elsewhere += u64::from(!(work..work + WORK_BYTES).contains(&ip));
        samples += 1;
        periods += events / period;
    }
    ensure!(periods == expected, "{periods} periods of {period} delivered, {expected} passed");
    // The code that enables and disables counting is counted as well, and may end a period.
    ensure!(elsewhere <= 2, "{elsewhere} of {samples} samples are elsewhere");
    Ok(periods - samples)
}

/// Tests a limit, as PAPI and HPCToolkit use it: after this many overflows the event is disabled
/// until it is refreshed.
pub fn limited(_: &Machine) -> Result<()> {
    const LIMIT: usize = 3;
    let mut sampling = sampling(100_003)?;
    sampling.event.refresh(LIMIT)?;
    work();
    let taken = sampling.records().len();
    ensure!(taken == LIMIT, "{taken} overflows, {LIMIT} allowed");
    let count = sampling.event.count()?;
    work();
    ensure!(sampling.event.count()? == count, "the event counts on");
    sampling.event.refresh(1)?;
    work();
    let taken = sampling.records().len();
    ensure!(taken == 1, "{taken} overflows after one was allowed");
    let all = sampling.event.count()?.checked_div(100_003).context("a period")?;
    ensure!(all == LIMIT as u64 + 1, "{all} periods have passed");
    Ok(())
}
