// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that counts stay exact when counters wrap in the middle of regions. It is for a machine
//! with narrow counters, since others do not wrap within a test's time.

use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result};
use perfctr::{Error, Event, PhysSlot, Provider, Reading, Session};
use vm_tests::expected::Overhead;
use vm_tests::region::{Region, measure};
use vm_tests::tally::{Tally, equal};

const SHORT: Region = Region { first: 1, second: 1 };
/// A region with two instructions and a branch for each iteration: 8 of the testbed's cycles, which
/// are a little more than 2^32 in all.
const LONG: Region = Region { first: 300_000_000, second: 250_000_000 };
const WIDTH_MAX: u32 = 32;
const THREADS: usize = 2;

fn events() -> Option<[Event; 4]> {
    let on = |event: Event, slot| Some(event.user().on(slot?));
    Some([
        on(Event::CYCLES, PhysSlot::fixed(1))?,
        on(Event::CYCLES, PhysSlot::general(0))?,
        on(Event::INSTRUCTIONS, PhysSlot::fixed(0))?,
        on(Event::BRANCHES, PhysSlot::general(1))?,
    ])
}

fn main() -> Result<ExitCode> {
    let overhead =
        Overhead::of_all::<4>(SHORT.executed(), |session| measure(session, SHORT, &mut 0))?;
    let mut tally = Tally::default();
    let width = Session::open_with(Provider::Paravirt)?
        .description()
        .caps
        .map(|caps| (caps.general_width.bits(), caps.fixed_width.bits()));
    tally.check("the counters are narrow", equal(width, Some((WIDTH_MAX, WIDTH_MAX))));
    let wraps = LONG.executed().cycles() >> WIDTH_MAX;
    tally.check("a region is longer than a counter", equal(wraps, 1));
    let readings = thread::scope(|scope| -> Result<Vec<_>> {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(long)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    })?;
    for reading in readings {
        let retries = overhead.per_retry.times(reading.retries.into());
        let truth = LONG.executed().plus(overhead.once).plus(retries);
        let truth = [truth.cycles(), truth.cycles(), truth.instructions, truth.branches];
        tally.check("counters that wrap count exactly", equal(reading.counts, truth));
    }
    Ok(tally.finish())
}

/// Measures the long region.
fn long() -> Result<Reading<4>> {
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&events().context("there are not so many counters")?)?;
    let measured: Result<_, Error> = measure::<4>(&session, LONG, &mut 0);
    Ok(measured?)
}
