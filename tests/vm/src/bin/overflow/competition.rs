// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs many threads at once: some sample, some only count, some do neither, and some end in the
//! middle.

use std::mem::forget;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::unistd::{Pid, gettid};
use vm_tests::disturb::Returns;
use vm_tests::host::Host;
use vm_tests::region::Region;
use vm_tests::rng::Rng;
use vm_tests::round::{Constants, Overflows, Shape, round};
use vm_tests::sampled::{self, SKIDS};
use vm_tests::threads::{SELF, or_exit, run_on};
use vm_tests::witness::Witness;

use crate::{Options, disturb};

/// Each sampling thread's period, unit: instructions.
pub const PERIODS: [u64; 8] =
    [1_000, 3_001, 10_007, 50_021, 100_003, 1_000_003, 5_000_011, 10_000_000];

/// The number of threads that count without sampling, and of threads without counters.
const BYSTANDERS: usize = 2;

/// Threads that end while they sample.
const MAYFLIES: usize = 40;

/// How often one physical CPU has to come back from being offline, and how often all of them have
/// to come back from suspend to RAM. After their rounds the sampling threads continue until then,
/// but on a busy machine not beyond `PATIENCE`.
pub const RETURNS_MIN: u64 = 3;
pub const RESUMES_MIN: u64 = 1;
const PATIENCE: Duration = Duration::from_secs(120);

/// What a sampling thread has seen.
#[derive(Clone, Debug)]
pub struct Log {
    pub period: u64,
    pub overflows: Overflows,
    /// The number of rounds whose counts are wrong, and the largest error.
    pub errors: u64,
    pub error_max: u64,
    pub skids: [u64; SKIDS],
}

/// What the competition has shown.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What is counted in every thread in addition to its regions.
    pub constants: Constants,
    pub logs: Vec<Log>,
    /// The faults that threads which do not sample have found.
    pub complaints: Vec<String>,
    /// How often physical CPUs have come back.
    pub returns: Returns,
}

/// Runs the competition.
pub fn run(options: &Options, cpus: &[usize], host: &dyn Host) -> Result<Outcome> {
    let constants = &Constants::find()?;
    let gate = Barrier::new(PERIODS.len());
    let (done, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let movable = Mutex::new(Vec::new());
    let (done, stop, movable, gate) = (&done, &stop, &movable, &gate);
    let (returns, start) = (Returns::default(), Instant::now());
    let is_enough = || !options.hotplug || are_enough(&returns) || start.elapsed() > PATIENCE;
    let go_on = &|rounds| rounds < options.rounds || !is_enough();
    let (logs, complaints) = thread::scope(|scope| -> Result<_> {
        let samplers: Vec<_> = (0..PERIODS.len())
            .map(|id| {
                let sample = move || sample(id, options, cpus, constants, gate, movable, go_on);
                scope.spawn(move || or_exit(id, sample()))
            })
            .collect();
        let mut others = Vec::new();
        for _ in 0..BYSTANDERS {
            others.push(scope.spawn(move || counts_only(done)));
            others.push(scope.spawn(move || {
                spin_until(done);
                Ok(())
            }));
        }
        others.push(scope.spawn(move || mayflies(done)));
        scope.spawn(move || {
            while movable.lock().expect("no thread panics").len() < PERIODS.len() / 2 {
                thread::sleep(Duration::from_millis(1));
            }
            let threads = movable.lock().expect("no thread panics").clone();
            disturb::threads(&threads, cpus, options.seed, stop);
        });
        let disturber = scope.spawn(|| disturb(options, cpus, host, stop, &returns));
        let logs = samplers.into_iter().map(|sampler| sampler.join().expect("no thread panics"));
        let logs: Vec<_> = logs.collect();
        done.store(true, Ordering::Relaxed);
        let others = others.into_iter().map(|other| other.join().expect("no thread panics"));
        let complaints = others.filter_map(Result::err).map(|error| format!("{error:#}"));
        let complaints = complaints.collect();
        stop.store(true, Ordering::Relaxed);
        disturber.join().expect("no thread panics")?;
        Ok((logs, complaints))
    })?;
    Ok(Outcome { constants: constants.clone(), logs, complaints, returns })
}

fn are_enough(returns: &Returns) -> bool {
    let at_least = |times: &AtomicU64, least| times.load(Ordering::Relaxed) >= least;
    at_least(&returns.last, RETURNS_MIN) && at_least(&returns.all, RESUMES_MIN)
}

/// Moves vCPUs. If that is asked for, it also takes physical CPUs offline and back.
fn disturb(
    options: &Options,
    cpus: &[usize],
    host: &dyn Host,
    stop: &AtomicBool,
    returns: &Returns,
) -> Result<()> {
    if options.hotplug {
        return disturb::pcpus(host, cpus, options.pcpus, options.seed, stop, returns);
    }
    disturb::vcpus(host, cpus, options.pcpus, options.seed, stop);
    Ok(())
}

fn sample(
    id: usize,
    options: &Options,
    cpus: &[usize],
    constants: &Constants,
    gate: &Barrier,
    movable: &Mutex<Vec<Pid>>,
    go_on: &impl Fn(u64) -> bool,
) -> Result<Log> {
    let mut session = Constants::open()?;
    let period = PERIODS[id];
    let shape = Shape::new(id, period);
    let mut log =
        Log { period, overflows: Overflows::default(), errors: 0, error_max: 0, skids: [0; SKIDS] };
    if id.is_multiple_of(2) {
        run_on(SELF, &[cpus[id / 2 % cpus.len()]])?;
    } else {
        movable.lock().expect("no thread panics").push(gettid());
    }
    let mut rng = Rng::new(options.seed, id as u64);
    gate.wait();
    for _ in (0..).take_while(|&rounds| go_on(rounds)) {
        // The region is long enough for some periods and for some switches, but not longer.
        let instructions = (period * 2_000).min(2_000_000).max(period * 4);
        let round = round(&mut session, &shape, Region::random(&mut rng, instructions))?;
        let error = round.errors(constants).into_iter().max().unwrap_or_default();
        log.errors += u64::from(error > 0);
        log.error_max = log.error_max.max(error);
        log.overflows.add(&round.overflows());
        if error > 0 || !round.overflows().are_exact() {
            eprintln!("{round:?}: {:?}", round.errors(constants));
        }
    }
    log.skids = sampled::skids();
    Ok(log)
}

/// Checks that a thread which counts without sampling notices nothing of the sampling threads.
fn counts_only(done: &AtomicBool) -> Result<()> {
    let witness = Witness::new()?;
    while !done.load(Ordering::Relaxed) {
        witness.unchanged().map_err(anyhow::Error::msg).context("beside sampling threads")?;
    }
    Ok(())
}

fn spin_until(done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// Threads that end while they sample.
fn mayflies(done: &AtomicBool) -> Result<()> {
    for _ in 0..MAYFLIES {
        if done.load(Ordering::Relaxed) {
            break;
        }
        thread::scope(|scope| scope.spawn(end_while_sampling).join().expect("it does not panic"))?;
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Starts sampling, and returns without stopping.
pub fn end_while_sampling() -> Result<()> {
    let mut session = sampled::open()?;
    Shape::new(2, 1_000).start(&mut session)?;
    Region { first: 20_000, second: 20_000 }.execute(&mut 0);
    forget(session);
    Ok(())
}
