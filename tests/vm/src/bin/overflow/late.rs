// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Samples on CPUs whose interrupts of overflows come late, so that a vCPU is often moved between
//! an overflow and its interrupt. Each vCPU has only one thread: with more, the next switch of
//! threads would find an overflow of which the guest was not told yet.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Result;
use vm_tests::disturb;
use vm_tests::host::Host;
use vm_tests::region::Region;
use vm_tests::rng::Rng;
use vm_tests::round::{Constants, Overflows, Round, Shape, round};
use vm_tests::sampled;
use vm_tests::stats::ModuleStats;
use vm_tests::threads::{SELF, or_exit, run_on};

use crate::Options;
use crate::report::Report;

/// The period, which is longer than interrupts are late. Unit: instructions.
const PERIOD: u64 = 20_011;
/// The most instructions by which an interrupt is late. Suite `habits` sets it in the emulator.
const LATE: u64 = 10_000;
/// The instructions of a round.
const INSTRUCTIONS: u64 = 2_000_000;

/// What a thread has seen.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    overflows: Overflows,
    error_max: u64,
    is_late: bool,
}

/// Samples while the vCPUs are moved, by the host if this guest can ask it. Otherwise somebody else
/// moves them.
pub fn run(
    report: &mut Report,
    options: &Options,
    host: Option<&dyn Host>,
    cpus: &[usize],
) -> Result<()> {
    let constants = &Constants::find()?;
    let before = ModuleStats::read()?;
    let gate = &Barrier::new(cpus.len());
    let stop = &AtomicBool::new(false);
    let seen: Vec<Seen> = thread::scope(|scope| {
        let sees_modes = host.is_some();
        let sample = move |cpu| or_exit(cpu, sample(cpu, options, constants, gate, sees_modes));
        let threads: Vec<_> = cpus.iter().map(|&cpu| scope.spawn(move || sample(cpu))).collect();
        if let Some(host) = host {
            scope.spawn(move || disturb::vcpus(host, cpus, options.pcpus, options.seed, stop));
        }
        let seen = threads.into_iter().map(|thread| thread.join().expect("no thread panics"));
        let seen = seen.collect();
        stop.store(true, Ordering::Relaxed);
        seen
    });
    let merged = ModuleStats::read()?.growth(&before, "overflows_merged")?;
    let mut all = Overflows::default();
    seen.iter().for_each(|seen| all.add(&seen.overflows));
    let error_max = seen.iter().map(|seen| seen.error_max).max().unwrap_or_default();
    report.set("late_periods", all.expected);
    report.set("late_overflows", all.signalled);
    report.set("late_merged", merged);
    let is_late = seen.iter().all(|seen| seen.is_late);
    report.demand("interrupts of overflows come late", is_late, "none is late");
    let why = format!("counts are off by up to {error_max}");
    report.demand("counts are exact where interrupts come late", error_max == 0, why);
    let why = format!("{all:?}, {merged} merged");
    let name = "each late overflow is delivered before the next one, also when its vCPU is moved";
    report.demand(name, all.are_exact() && merged == 0, why);
    report.elsewhere();
    Ok(())
}

/// Returns the overflows of a round that have to be reported.
///
/// In a PV guest these are all: the hypervisor sees that the thread enters its kernel, and looks
/// for overflows. In other guests, a thread can stop its counters before the interrupt of the last
/// period has come. The module then keeps the report until the counters continue. Here they begin
/// anew in the next round, and so the report is dropped.
fn overflows_to_report(round: &Round, sees_modes: bool) -> Overflows {
    let overflows = round.overflows();
    let is_on_its_way = !sees_modes && round.since_last_period() < LATE;
    if is_on_its_way && overflows.lost == 1 {
        return Overflows { expected: overflows.expected - 1, lost: 0, ..overflows };
    }
    overflows
}

fn sample(
    cpu: usize,
    options: &Options,
    constants: &Constants,
    gate: &Barrier,
    sees_modes: bool,
) -> Result<Seen> {
    run_on(SELF, &[cpu])?;
    let mut session = Constants::open()?;
    let shape = Shape::new(0, PERIOD);
    let mut rng = Rng::new(options.seed, cpu as u64);
    let mut seen = Seen::default();
    gate.wait();
    for _ in 0..options.rounds {
        let round = round(&mut session, &shape, Region::random(&mut rng, INSTRUCTIONS))?;
        let error = round.errors(constants).into_iter().max().unwrap_or_default();
        seen.error_max = seen.error_max.max(error);
        seen.overflows.add(&overflows_to_report(&round, sees_modes));
    }
    seen.is_late = sampled::skids().iter().skip(1).any(|&times| times > 0);
    Ok(seen)
}
