// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Threads of one domain that count known regions, while everything moves under them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

use anyhow::{Context, Result};
use nix::unistd::{Pid, gettid};
use perfctr::rdpmc::Hardware;
use perfctr::{Event, PhysSlot, Provider, Session};
use serde_json::{Value, json};
use shared_abi::read::Counters;
use shared_abi::slot::slots_of;
use shared_abi::sync::Ordering::Relaxed;
use vm_tests::disturb;
use vm_tests::histogram::Histogram;
use vm_tests::region::{Region, measure};
use vm_tests::rng::Rng;
use vm_tests::threads::cpus;

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

/// Of the control domain and of the tenant: no counter in common.
pub const APART: [Places; 2] = [
    Places { instructions: FIXED_INSTRUCTIONS, branches: general(2) },
    Places { instructions: general(0), branches: general(1) },
];

/// The same two counters, with different events.
pub const CROSSED: [Places; 2] = [
    Places { instructions: general(1), branches: general(0) },
    Places { instructions: general(0), branches: general(1) },
];

/// Threads for each of the domain's vCPUs.
const THREADS_PER_VCPU: usize = 2;

/// Regions before a thread looks at counters that its domain does not use.  They may hold events of
/// the domain's own from before its vCPUs were told what to count, until the other domain has
/// executed on the same physical CPU.
const WARM_UP: u64 = 500;

/// What a domain's threads have seen.
#[derive(Debug, Default)]
struct Log {
    instructions: Histogram,
    branches: Histogram,
    /// The largest value in any counter that the domain does not use.
    residue_max: u64,
    /// Why it could not go on.
    refusal: Option<String>,
}

/// Counts on `places` as long as `go_on`, which is asked by each thread with the number of regions
/// that it has measured, says so.
///
/// The result is for a machine of the testbed to send to another one.
pub fn run(places: Places, seed: u64, go_on: impl Fn(u64) -> bool + Sync) -> Result<Value> {
    let cpus = &cpus()?;
    let session = Session::open_with(Provider::Paravirt)?;
    let (switches, migrations) = moves(&session, cpus)?;
    let count = cpus.len() * THREADS_PER_VCPU;
    let gate = &Barrier::new(count + 1);
    let (stop, movable) = (&AtomicBool::new(false), &Mutex::new(Vec::new()));
    let go_on = &go_on;
    let log = thread::scope(|scope| -> Result<Log> {
        let threads: Vec<_> = (0..count as u64)
            .map(|id| scope.spawn(move || thread(places, Rng::new(seed, id), gate, movable, go_on)))
            .collect();
        gate.wait();
        let pids: Vec<Pid> = movable.lock().expect("no thread panics").clone();
        scope.spawn(move || disturb::threads(&pids, cpus, seed, stop));
        let logs = threads.into_iter().map(|thread| thread.join().expect("no thread panics"));
        let logs: Vec<_> = logs.collect();
        stop.store(true, Ordering::Relaxed);
        let mut all = Log::default();
        for log in logs {
            let log = log?;
            all.instructions.merge(&log.instructions);
            all.branches.merge(&log.branches);
            all.residue_max = all.residue_max.max(log.residue_max);
            all.refusal = all.refusal.or(log.refusal);
        }
        Ok(all)
    })?;
    let (switches_now, migrations_now) = moves(&session, cpus)?;
    let [instructions, branches] =
        [&log.instructions, &log.branches].map(|histogram| histogram.judge());
    let instructions = instructions.context("every reading was disturbed")?;
    let branches = branches.context("every reading was disturbed")?;
    Ok(json!({
        "regions": log.instructions.readings(),
        "instr_total": instructions.truth,
        "retries": log.instructions.retries(),
        "error_count": instructions.error_count + branches.error_count,
        "error_max": instructions.error_max.max(branches.error_max),
        "residue_max": log.residue_max,
        "refusal": log.refusal,
        // They start anew when the domain is restored.
        "vcpu_switches": switches_now.saturating_sub(switches),
        "vcpu_migrations": migrations_now.saturating_sub(migrations),
    }))
}

/// How often the domain's vCPUs were switched in, and how often elsewhere than before.
fn moves(session: &Session, cpus: &[usize]) -> Result<(u64, u64)> {
    let mut sums = (0, 0);
    for &cpu in cpus {
        let page = session.vcpu_page(cpu as u32).context("a vCPU has no page")?;
        sums.0 += page.switches.load(Relaxed);
        sums.1 += page.migrations.load(Relaxed);
    }
    Ok(sums)
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
    session.start(&[
        Event::INSTRUCTIONS.user().on(places.instructions),
        Event::BRANCHES.user().on(places.branches),
    ])?;
    let caps = session.description().caps.context("the provider does not say what there is")?;
    let unused = caps.slots() & !places.instructions.bit() & !places.branches.bit();
    let mut log = Log::default();
    let (mut store, mut regions) = (0, 0);
    while go_on(regions) {
        // Mostly short ones, whose readings are close together; some that a switch is likely to hit.
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
        for slot in slots_of(if regions < WARM_UP { 0 } else { unused }) {
            log.residue_max = log.residue_max.max(Hardware.rdpmc(slot.rdpmc()));
        }
        regions += 1;
    }
    Ok(log)
}
