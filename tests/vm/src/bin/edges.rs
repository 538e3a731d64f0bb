// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what remains true of counts where RDPMC misses the last events before it, or reads events
//! that come after it, as out-of-order processors may. It is for a machine whose PMU has this habit
//! (`rdpmc:N`).

use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;

use anyhow::{Context, Result};
use clap::Parser;
use perfctr::{Event, Provider, Reading, Session};
use shared_abi::limits::PAGE_BYTES;
use vm_tests::bodies::{Body, Does};
use vm_tests::expected::Overhead;
use vm_tests::region::{FreshPages, Region, measure, measure_body};
use vm_tests::rng::Rng;
use vm_tests::stats::ModuleStats;
use vm_tests::step::Executed;
use vm_tests::tally::Tally;
use vm_tests::threads::{SELF, cpus, or_exit, run_on, take_turns};

const EVENTS: [Event; 2] = [Event::INSTRUCTIONS.user(), Event::BRANCHES.user()];
/// The region by which a read's own cost is found.
const SHORT: Region = Region { first: 1, second: 1 };
/// Regions of the first check, and how long each may be.
const REGIONS: usize = 20_000;
const ITERATIONS: u64 = 1_000;
/// Regions of each thread of the second check, and how often it yields its CPU in each of them.
const LONG_REGIONS: usize = 20;
const YIELDS: u64 = 400;
/// Threads on one vCPU that take turns.
const THREADS: usize = 2;

/// Compares counts with the truth where RDPMC is not serialising.
#[derive(Debug, Parser)]
struct Options {
    /// The most events that RDPMC misses, or reads too early.
    #[arg(long)]
    window: i64,
}

/// By how much counts deviate from the truth.
#[derive(Clone, Copy, Debug, Default)]
struct Deviations {
    least: i64,
    most: i64,
}

impl Deviations {
    fn add(&mut self, count: u64, truth: u64) {
        let deviation = count.wrapping_sub(truth).cast_signed();
        self.least = self.least.min(deviation);
        self.most = self.most.max(deviation);
    }

    fn merge(&mut self, other: Self) {
        self.least = self.least.min(other.least);
        self.most = self.most.max(other.most);
    }

    /// Returns an error unless all deviations are within this bound, and there are some on either
    /// side.
    fn within(self, bound: i64) -> Result<(), String> {
        let is = self.least >= -bound && self.most <= bound && self.least < 0 && self.most > 0;
        if is { Ok(()) } else { Err(format!("{self:?} found, up to {bound} expected")) }
    }
}

/// The deviations of each event.
type Found = [Deviations; EVENTS.len()];

fn add(found: &mut Found, reading: &Reading<2>, truth: Executed, overhead: Overhead) {
    let truth = truth.plus(overhead.once).plus(overhead.per_retry.times(reading.retries.into()));
    for (deviations, (count, truth)) in
        found.iter_mut().zip(reading.counts.into_iter().zip([truth.instructions, truth.branches]))
    {
        deviations.add(count, truth);
    }
}

fn main() -> Result<ExitCode> {
    let window = Options::parse().window;
    let mut tally = Tally::default();
    let overhead =
        Overhead::of_all::<2>(SHORT.executed(), |session| measure(session, SHORT, &mut 0))?;
    let around_body = Overhead::of_all::<2>(Executed::default(), |session| {
        measure_body(session, &Body::new(Does::Nothing, 1), &mut [0; 2 * PAGE_BYTES])
    })?;
    let regions = regions(overhead)?;
    println!("regions deviate by {regions:?}");
    // Each of the two readings deviates.
    for (event, deviations) in ["instructions", "branches"].into_iter().zip(regions) {
        tally.check(
            &format!("the {event} of a region deviate by no more than two reads do"),
            deviations.within(2 * window),
        );
    }
    let switches = || ModuleStats::read()?.get("switches_out");
    let before = switches()?;
    let long = long_regions(around_body)?;
    let switches = switches()? - before;
    println!("regions with {YIELDS} switches deviate by {long:?}");
    let regions = (THREADS * LONG_REGIONS) as u64;
    tally.check("threads were switched in the middle of regions", {
        let wanted = regions * YIELDS / 2;
        if switches >= wanted { Ok(()) } else { Err(format!("{switches}, {wanted} expected")) }
    });
    for (event, deviations) in ["instructions", "branches"].into_iter().zip(long) {
        tally.check(
            &format!("the {event} of a region with switches deviate by no more"),
            deviations.within(2 * window),
        );
    }
    Ok(tally.finish())
}

/// Measures regions of random length.
fn regions(overhead: Overhead) -> Result<Found> {
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&EVENTS)?;
    let (mut found, mut rng) = (Found::default(), Rng::new(1, 0));
    for _ in 0..REGIONS {
        let region = Region::random(&mut rng, ITERATIONS);
        let reading = measure::<2>(&session, region, &mut 0)?;
        add(&mut found, &reading, region.executed(), overhead);
    }
    Ok(found)
}

/// Measures regions in which threads switch.
fn long_regions(overhead: Overhead) -> Result<Found> {
    let cpu = *cpus()?.first().context("there is no CPU")?;
    let gate = &Barrier::new(THREADS);
    Ok(thread::scope(|scope| {
        let threads = [(); THREADS]
            .map(|()| scope.spawn(move || or_exit(cpu, switching(cpu, overhead, gate))));
        let mut found = Found::default();
        for thread in threads {
            let theirs = thread.join().expect("no thread panics");
            found.iter_mut().zip(theirs).for_each(|(all, one)| all.merge(one));
        }
        found
    }))
}

/// Measures regions in which this thread yields its CPU to the other one of the same CPU.
fn switching(cpu: usize, overhead: Overhead, gate: &Barrier) -> Result<Found> {
    run_on(SELF, &[cpu])?;
    take_turns()?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&EVENTS)?;
    let (mut found, mut pages) = (Found::default(), FreshPages::new()?);
    let body = Body::new(Does::Yield, YIELDS);
    // A thread that began first would not let the other one begin.
    gate.wait();
    for _ in 0..LONG_REGIONS {
        let reading = measure_body::<2>(&session, &body, pages.take(2)?).context("cannot read")?;
        add(&mut found, &reading, body.executed(), overhead);
    }
    Ok(found)
}
