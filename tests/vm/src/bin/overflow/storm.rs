// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Samples with a short period on all vCPUs at once, with a driver that allows only few overflows.

use std::sync::Barrier;
use std::thread;

use anyhow::{Context, Result, bail};
use perf_event_open_sys::bindings::PERF_COUNT_HW_INSTRUCTIONS;
use shared_abi::sync::Ordering::Relaxed;
use vm_tests::host::Host;
use vm_tests::perf::{Record, Sampling, Whose, generic};
use vm_tests::region::Region;
use vm_tests::round::{Constants, Shape, round};
use vm_tests::sampled;
use vm_tests::stats::ModuleStats;
use vm_tests::threads::{SELF, or_exit, run_on};
use vm_tests::time::VcpuTimes;

use crate::report::{Report, throttled};

/// The shortest period, of which every overflow is signalled. Unit: instructions.
const PERIOD: u64 = 1_000;

/// The number of regions of each thread, and of iterations of each.
const ROUNDS: u64 = 3;
const ITERATIONS: u64 = 1_000_000;

/// What a thread in the storm has seen.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    error_max: u64,
    expected: u64,
    signalled: u64,
    merged: u64,
    extra: u64,
}

/// Raises the storm. The driver allows `rate` overflows per vCPU and ms.
pub fn run(report: &mut Report, host: &dyn Host, cpus: &[usize], rate: u64) -> Result<()> {
    let constants = &Constants::find()?;
    let session = sampled::open()?;
    let interrupts = |cpu: usize| -> Result<u64> {
        let page = session.vcpu_page(cpu as u32).context("the vCPU has no page")?;
        Ok(page.overflows.load(Relaxed))
    };
    let look = || -> Result<_> {
        let times = VcpuTimes::take(host, &session, cpus)?;
        let overflows = cpus.iter().map(|&cpu| interrupts(cpu)).collect::<Result<Vec<_>>>()?;
        run_on(SELF, cpus)?;
        Ok((times, overflows))
    };
    let gate = &Barrier::new(cpus.len() + 1);
    let (before, first, all) = thread::scope(|scope| -> Result<_> {
        let threads: Vec<_> = cpus
            .iter()
            .map(|&cpu| scope.spawn(move || or_exit(cpu, storm(cpu, constants, gate))))
            .collect();
        gate.wait();
        let (before, first) = (ModuleStats::read()?, look()?);
        gate.wait();
        let mut all = Seen::default();
        for thread in threads {
            let seen = thread.join().expect("no thread panics");
            all.error_max = all.error_max.max(seen.error_max);
            all.expected += seen.expected;
            all.signalled += seen.signalled;
            all.merged += seen.merged;
            all.extra += seen.extra;
        }
        Ok((before, first, all))
    })?;
    let (after, last) = (ModuleStats::read()?, look()?);
    let merged = after.growth(&before, "overflows_merged")?;
    let put_off = throttled(&session, cpus);
    let tsc_khz = u64::from(session.description().tsc_khz);
    let (mut taken, mut allowed, mut within) = (0, 0, true);
    for ((vcpu, now), then) in last.0.since(&first.0).iter().zip(&last.1).zip(&first.1) {
        // The driver counts in windows of a ms, which begin while the vCPU executes. A window may
        // end with an overflow that was allowed in the window before.
        let windows = vcpu.running.max_tsc / tsc_khz + vcpu.switches + 1;
        let (vcpu_taken, vcpu_allowed) = (now - then, windows * (rate + 1));
        within &= vcpu_taken <= vcpu_allowed;
        (taken, allowed) = (taken + vcpu_taken, allowed + vcpu_allowed);
    }
    report.set("storm_periods", all.expected);
    report.set("storm_overflows", all.signalled);
    report.set("storm_merged", merged);
    report.set("storm_throttled", put_off);
    report.set("storm_interrupts", taken);
    report.set("storm_interrupts_allowed", allowed);
    report.demand("a storm is put off, and that is reported", put_off > 0, "nothing was put off");
    let why = format!("{taken} interrupts, {allowed} allowed in the ms that the vCPUs executed");
    report.demand("a storm keeps to the allowed rate on each vCPU", within, why);
    let why = format!("counts are off by up to {}", all.error_max);
    report.demand("counts are exact in a storm", all.error_max == 0, why);
    let why = format!("{merged} merged overflows are reported, {} are missing", all.merged);
    report.demand("put off overflows are accounted for", merged == all.merged, why);
    let why = format!("{} overflows too many", all.extra);
    report.demand("a storm doubles no overflow", all.extra == 0, why);
    let (passed, samples, periods) = sampled_by_perf()?;
    let why = format!("{passed} periods passed, {samples} samples stand for {periods}");
    let good = periods == passed && samples < passed;
    report.demand("perf's samples in a storm say for how many periods they stand", good, why);
    Ok(())
}

/// Makes perf sample more often than the driver allows. Returns how many periods have passed, the
/// number of samples, and the number of periods that the samples stand for, as they say.
fn sampled_by_perf() -> Result<(u64, u64, u64)> {
    let mut instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
    instructions.set_disabled(1);
    let mut sampling = Sampling::open(instructions, PERIOD, Whose::Thread(SELF))?;
    sampling.event.enable()?;
    Region { first: ITERATIONS, second: ITERATIONS }.execute(&mut 0);
    sampling.event.disable()?;
    let (mut samples, mut events) = (0, 0);
    for record in sampling.records() {
        let Record::Sample { period, .. } = record else {
            bail!("expected a sample, found {record:?}");
        };
        samples += 1;
        events += period;
    }
    Ok((sampling.event.count()? / PERIOD, samples, events / PERIOD))
}

fn storm(cpu: usize, constants: &Constants, gate: &Barrier) -> Result<Seen> {
    run_on(SELF, &[cpu])?;
    let mut session = Constants::open()?;
    gate.wait();
    gate.wait();
    let mut seen = Seen::default();
    for _ in 0..ROUNDS {
        let region = Region { first: ITERATIONS, second: ITERATIONS };
        let round = round(&mut session, &Shape::new(0, PERIOD), region)?;
        let error = round.errors(constants).into_iter().max().unwrap_or_default();
        seen.error_max = seen.error_max.max(error);
        let overflows = round.overflows();
        seen.expected += overflows.expected;
        seen.signalled += overflows.signalled;
        seen.merged += round.merged();
        seen.extra += overflows.extra;
    }
    Ok(seen)
}
