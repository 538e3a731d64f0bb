// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes a tenant's threads sample themselves: each period that passes is signalled once, and other
//! counts are exact.

use std::thread;

use anyhow::Result;
use perfctr::Session;
use serde_json::{Value, json};
use vm_tests::region::Region;
use vm_tests::rng::Rng;
use vm_tests::round::{Constants, Overflows, Shape, round};
use vm_tests::sampled;
use vm_tests::threads::cpus;

/// The period of the first thread. The others' are longer.
const PERIOD: u64 = 100_003;
/// The number of threads for each vCPU.
const THREADS_PER_VCPU: usize = 2;
/// The iterations of a region: five million instructions on average.
const ITERATIONS: u64 = 5_000_000;

/// What a thread has seen.
#[derive(Debug, Default)]
struct Seen {
    rounds: u64,
    overflows: Overflows,
    /// The number of lost periods that passed together with another one.
    merged: u64,
    /// The largest error of a count.
    error_max: u64,
    /// Why it could not continue, if it could not.
    refusal: Option<String>,
}

/// Prepares what `take` needs, while there are no other threads.
pub fn prepare() -> Result<Constants> {
    sampled::handle()?;
    Constants::find()
}

/// Samples in all threads. Returns what they were told, together with the periods that have passed.
/// Each thread continues as long as `go_on` returns true, which gets the number of regions that the
/// thread has counted.
pub fn take(constants: &Constants, go_on: impl Fn(u64) -> bool + Sync) -> Result<Value> {
    let (threads, go_on) = (cpus()?.len() * THREADS_PER_VCPU, &go_on);
    let elsewhere = sampled::elsewhere();
    let all: Vec<_> = thread::scope(|scope| {
        let thread = |number| scope.spawn(move || one(number, constants, go_on));
        let threads: Vec<_> = (0..threads).map(thread).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    let mut sum = Seen::default();
    for seen in all {
        let seen = seen?;
        sum.rounds += seen.rounds;
        sum.overflows.add(&seen.overflows);
        sum.merged += seen.merged;
        sum.error_max = sum.error_max.max(seen.error_max);
        sum.refusal = sum.refusal.or(seen.refusal);
    }
    let Overflows { signalled, lost, extra, unread, .. } = sum.overflows;
    Ok(json!({
        "imode_regions": sum.rounds,
        "imode_overflows": signalled,
        "imode_lost": lost,
        "imode_merged": sum.merged,
        "imode_extra": extra,
        "imode_error_max": sum.error_max,
        // These signals came to a thread that does not sample, or whose counters could not be read.
        "imode_elsewhere": sampled::elsewhere() - elsewhere + unread,
        "refusal": sum.refusal,
    }))
}

/// Runs a thread with a period of its own.
fn one(number: usize, constants: &Constants, go_on: impl Fn(u64) -> bool) -> Result<Seen> {
    let shape = Shape::new(number, PERIOD + 1_000 * number as u64);
    let mut session = Constants::open()?;
    let mut rng = Rng::new(3, number as u64);
    let mut seen = Seen::default();
    while go_on(seen.rounds) {
        let region = Region::random(&mut rng, ITERATIONS);
        if let Err(refusal) = add(&mut seen, &mut session, &shape, region, constants) {
            seen.refusal = Some(format!("{refusal:#}"));
            break;
        }
    }
    Ok(seen)
}

/// Counts a region, and adds the results.
fn add(
    seen: &mut Seen,
    session: &mut Session,
    shape: &Shape,
    region: Region,
    constants: &Constants,
) -> Result<()> {
    let round = round(session, shape, region)?;
    seen.rounds += 1;
    seen.overflows.add(&round.overflows());
    seen.merged += round.merged();
    seen.error_max = round.errors(constants).into_iter().fold(seen.error_max, u64::max);
    Ok(())
}
