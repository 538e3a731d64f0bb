// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Measures what samples, and switches of threads that sample, cost the driver and the module.

use std::sync::Barrier;
use std::thread;

use anyhow::{Context, Result, ensure};
use perfctr::Event;
use shared_abi::hypercall::{HOOK_INTERRUPT, HOOK_LOAD, HOOK_TOGGLE, HvHookStats, HvStats};
use shared_abi::sync::Ordering::Relaxed;
use vm_tests::host::Host;
use vm_tests::region::Region;
use vm_tests::round::{Shape, round};
use vm_tests::sampled;
use vm_tests::stats::ModuleStats;
use vm_tests::threads::{SELF, run_on};

use crate::report::Report;

/// The number of sampled periods.
const SAMPLES: u64 = 1_000;
const PERIOD: u64 = 10_007;
/// The number of times that two threads wait for each other.
const TURNS: u64 = 500;
/// A period that is too long to end while two threads switch.
const LONG_PERIOD: u64 = 1 << 30;

/// The documented cost of an overflow for the driver; see docs/caveats.md (unit: instructions). A
/// measurement may differ from it by this factor, since compilers differ: 177 was seen.
const INTERRUPT_INSTRUCTIONS: f64 = 180.0;
const COST_BAND: f64 = 1.5;

/// What driver and module have counted up to a moment.
struct Mark {
    hypervisor: HvStats,
    module: ModuleStats,
}

/// The differences between two moments, to be divided by the number of operations.
struct Passed {
    from: Mark,
    to: Mark,
    each: u64,
}

impl Mark {
    fn take(host: &dyn Host) -> Result<Self> {
        let hypervisor = host.stats().context("the hypervisor gives no statistics")?;
        Ok(Self { hypervisor, module: ModuleStats::read()? })
    }
}

impl Passed {
    fn hook(&self, hook: usize, field: fn(&HvHookStats) -> u64) -> f64 {
        let grown = field(&self.to.hypervisor.hook[hook]) - field(&self.from.hypervisor.hook[hook]);
        grown as f64 / self.each as f64
    }

    /// Returns the sum of all hooks.
    fn hooks(&self, field: fn(&HvHookStats) -> u64) -> f64 {
        (0..self.to.hypervisor.hook.len()).map(|hook| self.hook(hook, field)).sum()
    }

    fn module(&self, key: &str) -> Result<f64> {
        Ok(self.to.module.growth(&self.from.module, key)? as f64 / self.each as f64)
    }

    /// Returns the mean of a cost that the module measures itself.
    fn measured(&self, what: &str) -> Result<f64> {
        let calls = self.module(&format!("{what}_calls"))?;
        Ok(self.module(&format!("{what}_instructions"))? / calls)
    }
}

/// Measures all costs while this process does nothing else.
pub fn run(report: &mut Report, host: &dyn Host, cpus: &[usize]) -> Result<()> {
    samples(report, host, cpus[0])?;
    records(report, host, cpus[0])?;
    switches(report, host, cpus[0])?;
    run_on(SELF, cpus)?;
    Ok(())
}

fn samples(report: &mut Report, host: &dyn Host, cpu: usize) -> Result<()> {
    run_on(SELF, &[cpu])?;
    let mut session = sampled::open()?;
    let iterations = SAMPLES * PERIOD / 2;
    let region = Region { first: iterations / 2, second: iterations / 2 };
    let from = Mark::take(host)?;
    let overflows = round(&mut session, &Shape::new(0, PERIOD), region)?.overflows();
    let to = Mark::take(host)?;
    ensure!(overflows.are_exact(), "overflows are not what the counts say: {overflows:?}");
    let passed = Passed { from, to, each: overflows.signals };
    report.set("hv_instr_per_sample", passed.hooks(|hook| hook.instructions));
    let of_interrupt = passed.hook(HOOK_INTERRUPT, |hook| hook.instructions);
    report.set("hv_instr_per_sample_interrupt", of_interrupt);
    let near = INTERRUPT_INSTRUCTIONS / COST_BAND..=INTERRUPT_INSTRUCTIONS * COST_BAND;
    let why = format!("{of_interrupt} instructions, {INTERRUPT_INSTRUCTIONS} are documented");
    report.demand("an interrupt costs what is documented", near.contains(&of_interrupt), why);
    report.set("hv_instr_per_sample_load", passed.hook(HOOK_LOAD, |hook| hook.instructions));
    report.set("hv_instr_per_sample_toggles", passed.hook(HOOK_TOGGLE, |hook| hook.instructions));
    report.set("hv_toggles_per_sample", passed.hook(HOOK_TOGGLE, |hook| hook.calls));
    report.set("hv_pmc_reads_per_sample", passed.hooks(|hook| hook.pmc_reads));
    report.set("hv_msr_reads_per_sample", passed.hooks(|hook| hook.msr_reads));
    report.set("hv_msr_writes_per_sample", passed.hooks(|hook| hook.msr_writes));
    report.set("hypercalls_per_sample", passed.module("hypercalls")?);
    let guest = passed.measured("interrupt")? + passed.measured("go_on")?;
    report.set("guest_instr_per_sample", guest);
    Ok(())
}

/// Measures samples without signals.
fn records(report: &mut Report, host: &dyn Host, cpu: usize) -> Result<()> {
    run_on(SELF, &[cpu])?;
    let mut session = sampled::open()?;
    let records = session.records(2 * SAMPLES as usize, 0)?;
    let iterations = SAMPLES * PERIOD / 2;
    let region = Region { first: iterations / 2, second: iterations / 2 };
    let from = Mark::take(host)?;
    // The module measures itself by a counter of all instructions.
    session.start_recording(&[Event::INSTRUCTIONS.user().every(PERIOD), Event::INSTRUCTIONS])?;
    region.execute(&mut 0);
    session.stop()?;
    let to = Mark::take(host)?;
    let each = session.thread_page().context("not forked")?.ring_written.load(Relaxed);
    ensure!(each >= SAMPLES && records.lost() == 0, "{each} records, {} lost", records.lost());
    let passed = Passed { from, to, each };
    report.set("hv_instr_per_record", passed.hooks(|hook| hook.instructions));
    let instructions = |hook| passed.hook(hook, |hook| hook.instructions);
    report.set("hv_instr_per_record_interrupt", instructions(HOOK_INTERRUPT));
    report.set("hv_instr_per_record_load", instructions(HOOK_LOAD));
    report.set("hv_instr_per_record_toggles", instructions(HOOK_TOGGLE));
    report.set("hypercalls_per_record", passed.module("hypercalls")?);
    report.set("guest_instr_per_record", passed.measured("interrupt")?);
    Ok(())
}

/// Measures switches of two threads that take turns on one CPU.
fn switches(report: &mut Report, host: &dyn Host, cpu: usize) -> Result<()> {
    let from = Mark::take(host)?;
    let turn = &Barrier::new(2);
    thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(move || takes_turns(cpu, turn)));
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    let to = Mark::take(host)?;
    let each = to.module.growth(&from.module, "switches_in")?;
    ensure!(each >= TURNS, "only {each} switches");
    let passed = Passed { from, to, each };
    report.set("hypercalls_per_sampling_switch", passed.module("hypercalls")?);
    let load = |field| passed.hook(HOOK_LOAD, field);
    report.set("hv_instr_per_sampling_switch", load(|hook| hook.instructions));
    report.set("hv_msr_writes_per_sampling_switch", load(|hook| hook.msr_writes));
    let guest = passed.measured("switch_in")? + passed.measured("switch_out")?;
    // This is not a number unless the module was loaded to measure switches.
    report.set("guest_instr_per_sampling_switch", guest);
    Ok(())
}

fn takes_turns(cpu: usize, turn: &Barrier) -> Result<()> {
    run_on(SELF, &[cpu])?;
    let mut session = sampled::open()?;
    Shape::new(0, LONG_PERIOD).start(&mut session)?;
    for _ in 0..TURNS {
        turn.wait();
    }
    Ok(session.stop()?)
}
