// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests sessions on Linux's own perf events.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use perfctr::{Error, Event, Provider, Reading, Session};
use vm_tests::region::{Region, measure};
use vm_tests::rng::Rng;
use vm_tests::threads::{SELF, cpus, run_on};

use crate::Test;

pub const TESTS: &[Test] = &[
    ("a session finds the native provider", finds_it),
    ("counts of competing threads are exact", competing_threads),
    ("counts stand still between stop and resume", stop_and_resume),
    ("time is the thread's own", own_time),
    ("a thread has one session", one_session),
    ("events are refused by name", refused_events),
];

const EVENTS: [Event; 2] = [Event::INSTRUCTIONS.user(), Event::BRANCHES.user()];

/// The number of threads per CPU, so that each is preempted and moved.
const THREADS: usize = 3;
/// The number of regions of each thread, and of iterations of each region, which takes about a ms.
const REGIONS: usize = 300;
const ITERATIONS: u64 = 100_000;
/// The number of regions after which a thread's first system calls and page faults are over.
const WARM_UP: usize = 3;

fn open() -> Result<Session> {
    let mut session = Session::open_with(Provider::Native)?;
    session.start(&EVENTS)?;
    Ok(session)
}

fn finds_it() -> Result<()> {
    let session = Session::open()?;
    let provider = session.description().provider;
    ensure!(provider == Provider::Native, "{provider} found, after {:?}", session.refusals());
    Ok(())
}

/// Returns how much more a reading is than the region.
fn beyond(reading: &Reading<2>, region: Region) -> [u64; 2] {
    let [instructions, branches] = reading.counts;
    [instructions.wrapping_sub(region.instructions()), branches.wrapping_sub(region.branches())]
}

/// The overheads of two readings, without and with retries of the second.
#[derive(Debug, Default)]
struct Seen {
    undisturbed: Vec<[u64; 2]>,
    retried: Vec<(u32, [u64; 2])>,
    indirect: usize,
}

fn count(stream: u64) -> Result<Seen> {
    let all = cpus()?;
    run_on(SELF, &all)?;
    let session = open()?;
    let mut rng = Rng::new(7, stream);
    let mut seen = Seen::default();
    for n in 0..WARM_UP + REGIONS {
        let region = Region::random(&mut rng, ITERATIONS);
        let reading = measure::<2>(&session, region, &mut 0)?;
        if n < WARM_UP {
            continue;
        }
        match (reading.direct, reading.retries) {
            (false, _) => seen.indirect += 1,
            (true, 0) => seen.undisturbed.push(beyond(&reading, region)),
            (true, retries) => seen.retried.push((retries, beyond(&reading, region))),
        }
    }
    Ok(seen)
}

/// Checks that every reading differs from the truth by the same two numbers, which are the cost of
/// one reading. Each retry adds these two numbers again.
fn competing_threads() -> Result<()> {
    let threads = THREADS * cpus()?.len();
    let all = thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|n| scope.spawn(move || count(n as u64))).collect();
        all.into_iter().map(|one| one.join().expect("no thread panics")).collect::<Result<Vec<_>>>()
    })?;
    let mut readings = 0;
    let indirect: usize = all.iter().map(|seen| seen.indirect).sum();
    ensure!(indirect == 0, "{indirect} readings needed a system call");
    let mut undisturbed = all.iter().flat_map(|seen| &seen.undisturbed);
    let constant = *undisturbed.next().context("every reading was disturbed")?;
    ensure!((1..1_000).contains(&constant[0]), "a reading executes {} instructions", constant[0]);
    let mut retry = None;
    for seen in &all {
        readings += seen.undisturbed.len() + seen.retried.len();
        if let Some(off) = seen.undisturbed.iter().find(|beyond| **beyond != constant) {
            bail!("{off:?} beside the region, {constant:?} expected");
        }
        for &(retries, beyond) in &seen.retried {
            let rest = [0, 1].map(|n| beyond[n].wrapping_sub(constant[n]));
            let each = rest.map(|rest| rest / u64::from(retries));
            let divides = [0, 1].map(|n| each[n] * u64::from(retries)) == rest;
            ensure!(
                divides && *retry.get_or_insert(each) == each,
                "{rest:?} for {retries} retries"
            );
        }
    }
    ensure!(readings == threads * REGIONS, "{readings} readings");
    Ok(())
}

fn stop_and_resume() -> Result<()> {
    let mut session = open()?;
    session.stop()?;
    let stopped = session.read::<2>()?;
    Region { first: 1_000, second: 1_000 }.execute(&mut 0);
    let later = session.read::<2>()?;
    ensure!(stopped.counts == later.counts && stopped.tsc == later.tsc, "{stopped:?} {later:?}");
    session.resume()?;
    let resumed = session.read::<2>()?;
    let region = Region { first: 1_000, second: 1_000 };
    region.execute(&mut 0);
    let spent = session.read::<2>()? - resumed;
    let more = (resumed - stopped).counts;
    ensure!(more[0] > 0 && more[0] < 10_000, "{more:?} since the stop");
    ensure!(spent.counts[0] >= region.instructions(), "{spent:?}");
    Ok(())
}

fn own_time() -> Result<()> {
    const SLEEP: Duration = Duration::from_millis(200);
    let session = open()?;
    let before = session.read::<0>()?;
    thread::sleep(SLEEP);
    let spent = session.read::<0>()? - before;
    // The unit is ns, as `tsc_khz` says.
    ensure!(session.description().tsc_khz == 1_000_000, "{:?}", session.description());
    ensure!(u128::from(spent.tsc) < SLEEP.as_nanos() / 2, "{} ns of {SLEEP:?}", spent.tsc);
    Ok(())
}

fn one_session() -> Result<()> {
    let first = open()?;
    for provider in [Provider::Native, Provider::Paravirt, Provider::Tsc] {
        let second = Session::open_with(provider);
        ensure!(matches!(second, Err(Error::AlreadyOpen)), "{second:?}");
    }
    drop(first);
    open().map(drop)
}

fn refused_events() -> Result<()> {
    let mut session = open()?;
    let mut refused = |event: Event, why: &str| match session.start(&[event]) {
        Err(Error::EventNotAvailable { reason, .. }) if reason.contains(why) => Ok(()),
        other => bail!("{event}: {other:?}"),
    };
    // The PMU model has no caches, and its CPUID says so.
    refused(Event::raw(0x4f2e).user(), "not known to be right")?;
    refused(Event::raw(0x0151).user(), "not known to be right")?;
    refused(Event::CYCLES.on(perfctr::PhysSlot::new(0).expect("a first counter")), "chooses")?;
    refused(Event::CYCLES.every(1_000), "samples")?;
    let sampled = session.start_sampling(&[Event::CYCLES.every(1_000)], libc::SIGURG);
    ensure!(matches!(sampled, Err(Error::EventNotAvailable { .. })), "{sampled:?}");
    session.start(&[Event::raw(0x0151).user().unverified()])?;
    let counted = session.read::<1>()?.counts[0];
    ensure!(counted == 0, "{counted} of an event that the model does not have");
    Ok(())
}
