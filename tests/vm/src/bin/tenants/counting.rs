// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs threads of one domain that count known regions, while threads and vCPUs are moved.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

use anyhow::{Context, Result};
use nix::unistd::{Pid, gettid};
use perfctr::rdpmc::Hardware;
use perfctr::{Event, PhysSlot, Provider, Session};
use serde_json::{Value, json};
use shared_abi::PmuCaps;
use shared_abi::read::Counters;
use shared_abi::slot::slots_of;
use shared_abi::sync::Ordering::Relaxed;
use vm_tests::disturb;
use vm_tests::expected::Overhead;
use vm_tests::histogram::{Histogram, Prediction};
use vm_tests::region::{self, Region, measure};
use vm_tests::rng::Rng;
use vm_tests::threads::{SELF, cpus, run_on};

/// The physical counters of a domain's threads: one of instructions, one of branches.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    instructions: PhysSlot,
    branches: PhysSlot,
}

const fn general(n: u32) -> PhysSlot {
    PhysSlot::general(n).expect("every page has three general counters")
}

const FIXED_INSTRUCTIONS: PhysSlot = PhysSlot::fixed(0).expect("every page has fixed counters");
/// The counter that replaces it on a CPU without fixed counters.
const LAST_GENERAL: PhysSlot = PhysSlot::general(3).expect("every page has four general counters");

/// The counters of the control domain and of the tenant, if they have none in common.
pub const DISJOINT: [Places; 2] = [
    Places { instructions: FIXED_INSTRUCTIONS, branches: general(2) },
    Places { instructions: general(0), branches: general(1) },
];

/// The counters of both if they have the same two, with different events.
pub const CROSSED: [Places; 2] = [
    Places { instructions: general(1), branches: general(0) },
    Places { instructions: general(0), branches: general(1) },
];

impl Places {
    /// Returns the same counters, or the nearest that this CPU has.
    fn on(self, caps: &PmuCaps) -> Self {
        let there = caps.has(self.instructions);
        Self { instructions: if there { self.instructions } else { LAST_GENERAL }, ..self }
    }

    const fn events(self) -> [Event; 2] {
        [Event::INSTRUCTIONS.user().on(self.instructions), Event::BRANCHES.user().on(self.branches)]
    }
}

/// The number of threads for each of the domain's vCPUs.
pub const THREADS_PER_VCPU: usize = 2;

/// What a domain's threads have seen.
#[derive(Debug, Default)]
struct Log {
    instructions: Histogram,
    branches: Histogram,
    /// The largest value found in a counter that the domain does not use.
    residue_max: u64,
    /// Why it could not continue, if it could not.
    refusal: Option<String>,
}

impl Log {
    fn merge(&mut self, other: Self) {
        self.instructions.merge(&other.instructions);
        self.branches.merge(&other.branches);
        self.residue_max = self.residue_max.max(other.residue_max);
        self.refusal = self.refusal.take().or(other.refusal);
    }
}

/// A domain whose vCPUs all have the same counters loaded, whatever its threads do.
#[derive(Debug)]
pub struct Domain {
    places: Places,
    cpus: Vec<usize>,
    session: Session,
    overhead: Overhead,
}

impl Domain {
    /// Loads the counters on every vCPU.
    pub fn new(places: Places) -> Result<Self> {
        let cpus = cpus()?;
        let overhead = region::overhead()?;
        let mut session = Session::open_with(Provider::Paravirt)?;
        let caps = session.description().caps.context("the provider does not say what there is")?;
        let places = places.on(&caps);
        session.start(&places.events())?;
        for &cpu in &cpus {
            run_on(SELF, &[cpu])?;
        }
        run_on(SELF, &cpus)?;
        Ok(Self { places, cpus, session, overhead })
    }

    /// Returns the session that has loaded them.
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// Counts as long as `go_on` returns true. Each thread calls it with the number of regions that
    /// it has measured.
    ///
    /// The result is JSON, since one machine of the testbed sends it to another one.
    pub fn count(&self, seed: u64, go_on: impl Fn(u64) -> bool + Sync) -> Result<Value> {
        let (switches, migrations) = self.moves()?;
        let log = self.compete(seed, &go_on)?;
        let (switches_now, migrations_now) = self.moves()?;
        let judge = |histogram: &Histogram, predicted| {
            histogram.judge(predicted).context("there is no reading")
        };
        let instructions = judge(&log.instructions, Prediction::instructions(&self.overhead))?;
        let branches = judge(&log.branches, Prediction::branches(&self.overhead))?;
        Ok(json!({
            "regions": log.instructions.readings(),
            "instr_total": instructions.truth,
            "retries": log.instructions.retries(),
            "error_count": instructions.error_count + branches.error_count,
            "error_max": instructions.error_max.max(branches.error_max),
            "residue_max": log.residue_max,
            "refusal": log.refusal,
            // The numbers start anew when the domain is restored.
            "vcpu_switches": switches_now.saturating_sub(switches),
            "vcpu_migrations": migrations_now.saturating_sub(migrations),
        }))
    }

    /// Returns how often the vCPUs were switched in, and how often on another physical CPU than
    /// before.
    fn moves(&self) -> Result<(u64, u64)> {
        let mut sums = (0, 0);
        for &cpu in &self.cpus {
            let page = self.session.vcpu_page(cpu as u32).context("a vCPU has no page")?;
            sums.0 += page.switches.load(Relaxed);
            sums.1 += page.migrations.load(Relaxed);
        }
        Ok(sums)
    }

    /// Lets threads count, and moves them between the vCPUs.
    fn compete(&self, seed: u64, go_on: &(impl Fn(u64) -> bool + Sync)) -> Result<Log> {
        let (cpus, places) = (&self.cpus, self.places);
        let count = cpus.len() * THREADS_PER_VCPU;
        let gate = &Barrier::new(count + 1);
        let (stop, movable) = (&AtomicBool::new(false), &Mutex::new(Vec::new()));
        let logs: Vec<_> = thread::scope(|scope| {
            let thread = |id| move || thread(places, Rng::new(seed, id), gate, movable, go_on);
            let threads: Vec<_> = (0..count as u64).map(|id| scope.spawn(thread(id))).collect();
            gate.wait();
            let pids: Vec<Pid> = movable.lock().expect("no thread panics").clone();
            scope.spawn(move || disturb::threads(&pids, cpus, seed, stop));
            let logs = threads.into_iter().map(|thread| thread.join().expect("no thread panics"));
            let logs = logs.collect();
            stop.store(true, Ordering::Relaxed);
            logs
        });
        let mut all = Log::default();
        for log in logs {
            all.merge(log?);
        }
        Ok(all)
    }
}

fn thread(
    places: Places,
    rng: Rng,
    gate: &Barrier,
    movable: &Mutex<Vec<Pid>>,
    go_on: impl Fn(u64) -> bool,
) -> Result<Log> {
    movable.lock().expect("no thread panics").push(gettid());
    gate.wait();
    count(places, rng, go_on)
}

fn count(places: Places, mut rng: Rng, go_on: impl Fn(u64) -> bool) -> Result<Log> {
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&places.events())?;
    let caps = session.description().caps.context("the provider does not say what there is")?;
    let unused = caps.slots() & !places.instructions.bit() & !places.branches.bit();
    let mut log = Log::default();
    let (mut store, mut regions) = (0, 0);
    while go_on(regions) {
        // Most regions are short, so that readings are close together. Some are long enough for a
        // switch.
        let iterations = *rng.pick(&[40, 40, 10_000, 200_000]);
        let region = Region::random(&mut rng, iterations);
        let reading = match measure::<2>(&session, region, &mut store) {
            Ok(reading) => reading,
            Err(error) => {
                log.refusal = Some(error.to_string());
                break;
            }
        };
        let [instructions, branches] = reading.counts;
        log.instructions.add(reading.retries, instructions, region.instructions());
        log.branches.add(reading.retries, branches, region.branches());
        for slot in slots_of(unused) {
            log.residue_max = log.residue_max.max(Hardware.counter(slot.counter_index()));
        }
        regions += 1;
    }
    Ok(log)
}
