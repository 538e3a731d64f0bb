// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gives the verdict: a table for people, JSON for programs.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use perfctr::Description;
use serde_json::{Map, Value};
use shared_abi::hypercall::{
    HOOK_LOAD, HOOK_SWITCH_FROM, HOOK_SWITCH_TO, HOOK_TOGGLE, HvHookStats, HvStats,
};
use vm_tests::expected::Overhead;
use vm_tests::guest;
use vm_tests::histogram::{Histogram, Prediction, Verdict};
use vm_tests::step::Executed;
use vm_tests::time::TimeCheck;

use crate::predicted::Predicted;
use crate::worker::{CASES, HARD_CASES_MIN, Kinds, Log, Series};
use crate::{Marks, Options, yielding};

/// An event, and how to judge its counts.
struct CountedEvent {
    name: &'static str,
    histogram: fn(&Series) -> &Histogram,
    predict: fn(&Overhead) -> Prediction,
}

const EVENTS: [CountedEvent; 3] = [
    CountedEvent {
        name: "instr",
        histogram: |series| &series.instructions,
        predict: Prediction::instructions,
    },
    CountedEvent {
        name: "branch",
        histogram: |series| &series.branches,
        predict: Prediction::branches,
    },
    CountedEvent { name: "cycle", histogram: |series| &series.cycles, predict: Prediction::cycles },
];

impl CountedEvent {
    /// Returns the overhead of this event's counter in a read of four counters.
    fn of_reads_4<'a>(&self, predicted: &'a Predicted) -> &'a Overhead {
        let (first, third) = &predicted.reads_4;
        if self.name == "instr" { first } else { third }
    }
}

/// What the driver executes at a switch of vCPUs, as docs/costs.md says. Unit: instructions.
const COST_VCPU_SWITCH: f64 = 290.0;
/// The same in a guest with rings of its own, where each switch reads every counter and stops none.
const COST_VCPU_SWITCH_RINGS: f64 = 540.0;
/// What the driver executes at a change of mode. Unit: instructions.
const COST_TOGGLE: f64 = 105.0;
/// What the module executes at a switch of threads. Unit: instructions.
const COST_THREAD_SWITCH: f64 = 330.0;
/// The factor by which a measurement may differ. Compilers differ, and each run switches other
/// things.
const COST_BAND: f64 = 1.5;

/// The least number of reads that have to be retried.
const RETRIES_MIN: u64 = 100;

/// What the run has shown.
pub struct Report {
    /// Whether the guest is paravirtualised.
    is_pv: bool,
    values: Map<String, Value>,
    /// The table of truth against reading, line by line.
    table: Vec<String>,
    /// Descriptions of everything that is wrong. The run has passed if there are none.
    complaints: Vec<String>,
    /// The prediction and the histogram of each series of readings in which something is wrong.
    details: Vec<String>,
}

impl Report {
    pub fn new(
        options: &Options,
        predicted: &Predicted,
        description: &Description,
        logs: &[Log],
        marks: &[Marks; 3],
        yielding: &yielding::Outcome,
    ) -> Result<Self> {
        let mut report = Self {
            is_pv: guest::is_pv()?,
            values: Map::new(),
            table: Vec::new(),
            complaints: Vec::new(),
            details: Vec::new(),
        };
        report.values.extend(guest::describe(description)?);
        report.set("threads", options.threads as u64);
        report.set("vcpus", u64::from(description.vcpus));
        report.set("pcpus", u64::from(options.pcpus));
        report.set("seed", options.seed);
        let mut all = Log::default();
        logs.iter().for_each(|log| all.merge(log));
        let events = if options.without_cycles { &EVENTS[..2] } else { &EVENTS[..] };
        events.iter().for_each(|event| report.exactness(event, predicted, &all));
        report.reads(predicted, &all);
        report.disturbances(&all, marks)?;
        report.hypercalls(marks)?;
        report.costs(marks)?;
        report.times(logs, marks, description.tsc_khz);
        report.yielding(events, predicted, yielding);
        let ok = report.complaints.is_empty();
        report.set("ok", ok);
        Ok(report)
    }

    /// Judges threads that switch in the middle of regions.
    fn yielding(
        &mut self,
        events: &[CountedEvent],
        predicted: &Predicted,
        outcome: &yielding::Outcome,
    ) {
        self.occurred("guest_read_retries", outcome.retries, yielding::RETRIES);
        for event in events {
            let name = "regions with thread switches";
            let verdict = self.judge(event, name, &outcome.series, &predicted.bodies);
            let error_max = verdict.map(|verdict| verdict.error_max);
            self.set(&format!("{}_yielding_error_max", event.name), error_max);
        }
    }

    /// Returns whether nothing is wrong.
    pub fn ok(&self) -> bool {
        self.complaints.is_empty()
    }

    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.values.insert(key.to_owned(), value.into());
    }

    /// Adds a complaint unless the condition holds.
    fn demand(&mut self, holds: bool, otherwise: impl Display) {
        if !holds {
            self.complaints.push(otherwise.to_string());
        }
    }

    /// Sets a cost, and complains unless it is near the documented one.
    fn cost(&mut self, key: &str, cost: f64, documented: f64) {
        self.set(key, cost);
        let holds = (documented / COST_BAND..=documented * COST_BAND).contains(&cost);
        self.demand(holds, format_args!("{key} is {cost}, {documented} is documented"));
    }

    /// Sets how often a hard case occurred, and complains if that was less often than `min`.
    fn occurred(&mut self, key: &str, times: u64, min: u64) {
        self.set(key, times);
        self.demand(times >= min, format_args!("{key} is {times}, {min} are wanted at least"));
    }

    /// Compares readings with the truth.
    fn exactness(&mut self, event: &CountedEvent, predicted: &Predicted, log: &Log) {
        let mut all = log.equal.clone();
        all.merge(&log.mixed);
        // From start to stop, only retries add to the true counts.
        let totals = Overhead { once: Executed::default(), ..predicted.regions };
        let regions = self.judge(event, "all regions", &all.plain, &predicted.regions);
        let kinds = |kinds: &Kinds| kinds.plain.clone();
        let mut errors = (0, 0);
        for (name, series, overhead) in [
            ("regions, equal configurations", &kinds(&log.equal), &predicted.regions),
            ("regions, mixed configurations", &kinds(&log.mixed), &predicted.regions),
            ("regions with system calls", &all.system_calls, &predicted.bodies),
            ("regions with REP instructions", &all.strings, &predicted.bodies),
            ("regions with signals", &all.signals, &predicted.bodies),
            ("reads with a fault in their middle", &all.faulting_reads, &predicted.faulting_reads),
            ("adjoining reads of 1 counter", &log.reads_1, &predicted.reads_1),
            ("adjoining reads without the TSC", &log.counts_1, &predicted.counts_1),
            ("adjoining reads of 4 counters", &log.reads_4, event.of_reads_4(predicted)),
        ] {
            // Adjoining reads are recorded only for some events.
            if (event.histogram)(series).readings() == 0 && name.starts_with("adjoining") {
                continue;
            }
            let Some(verdict) = self.judge(event, name, series, overhead) else { continue };
            errors = (errors.0.max(verdict.error_max), errors.1 + verdict.error_count);
        }
        let name = event.name;
        self.set(&format!("{name}_error_max"), errors.0);
        self.set(&format!("{name}_error_count"), errors.1);
        let expected = (event.predict)(&predicted.regions);
        self.set(&format!("{name}_constant_expected"), expected.constant);
        self.set(&format!("{name}_per_retry_expected"), expected.per_retry);
        self.set(&format!("{name}_constant"), regions.as_ref().and_then(|r| r.constant));
        self.set(&format!("{name}_per_retry"), regions.as_ref().and_then(|r| r.per_retry));
        let total = self.judge(event, "threads from start to stop", &log.totals, &totals);
        self.set(&format!("{name}_total_error_max"), total.map(|total| total.error_max));
    }

    /// Judges the cost of reads, and how often they had to be retried.
    fn reads(&mut self, predicted: &Predicted, log: &Log) {
        for (what, overhead) in [
            ("1", &predicted.reads_1),
            ("1_no_tsc", &predicted.counts_1),
            ("4", &predicted.reads_4.0),
        ] {
            // Two adjoining reads differ by exactly what one read executes.
            self.set(&format!("read_instr_{what}"), overhead.once.instructions);
        }
        self.set("regions", log.regions);
        self.set("read_pairs", log.reads_1.instructions.readings() * 2);
        self.occurred("read_retries", log.retries, RETRIES_MIN);
        self.set("indirect_reads", log.indirect);
        self.demand(log.indirect == 0, "a read needed a system call");
    }

    /// Judges one series of readings and adds it to the table.
    fn judge(
        &mut self,
        event: &CountedEvent,
        name: &str,
        series: &Series,
        overhead: &Overhead,
    ) -> Option<Verdict> {
        let (histogram, event_name) = ((event.histogram)(series), event.name);
        let Some(verdict) = histogram.judge((event.predict)(overhead)) else {
            self.complaints.push(format!("{event_name}, {name}: there is no reading"));
            return None;
        };
        let or_none = |number: Option<i64>| number.map_or("-".to_owned(), |n| n.to_string());
        self.table.push(format!(
            "{event_name:<7}{name:<35}{:>9}{:>8}{:>15}{:>15}{:>9}{:>10}{:>7}{:>9}",
            histogram.readings(),
            histogram.retries(),
            verdict.truth,
            verdict.reading,
            or_none(verdict.constant),
            or_none(verdict.per_retry),
            verdict.error_count,
            verdict.error_max,
        ));
        if verdict.error_max != 0 {
            let count = verdict.error_count;
            let predicted = (event.predict)(overhead);
            self.complaints.push(format!("{count} {event_name} readings of {name} are off"));
            let described = histogram.describe(20);
            self.details.push(format!("{event_name}, {name}: {predicted:?}\n{described}"));
        }
        Some(verdict)
    }

    /// Judges whether the hard cases have occurred.
    fn disturbances(&mut self, log: &Log, [before, _, after]: &[Marks; 3]) -> Result<()> {
        let vcpus = after.vcpus.since(&before.vcpus);
        self.occurred(
            "vcpu_switches",
            vcpus.iter().map(|vcpu| vcpu.switches).sum(),
            HARD_CASES_MIN,
        );
        self.occurred(
            "vcpu_migrations",
            vcpus.iter().map(|vcpu| vcpu.migrations).sum(),
            HARD_CASES_MIN,
        );
        self.occurred("thread_switches", log.switches, HARD_CASES_MIN);
        self.occurred("thread_migrations", log.migrations, HARD_CASES_MIN);
        for (case, times) in CASES.into_iter().zip(log.inside) {
            self.occurred(&format!("regions_with_{case}"), times, HARD_CASES_MIN);
        }
        let [fault, ..] = log.inside;
        self.set("page_faults", log.faults);
        let faults = log.faults;
        self.demand(
            faults >= fault,
            format_args!("{fault} regions touched a fresh page, but only {faults} faults occurred"),
        );
        Ok(())
    }

    /// Judges the hypercalls: none are needed for equal configurations, and some for mixed ones.
    fn hypercalls(&mut self, [before, between, after]: &[Marks; 3]) -> Result<()> {
        let equal = between.module.growth(&before.module, "hypercalls")?;
        let mixed = after.module.growth(&between.module, "hypercalls")?;
        self.set("hypercalls", equal + mixed);
        self.set("hypercalls_equal", equal);
        self.occurred("hypercalls_mixed", mixed, HARD_CASES_MIN);
        self.demand(equal == 0, format_args!("{equal} hypercalls for equal configurations"));
        let loads = |from: &Marks, to: &Marks| {
            to.hypervisor.hook[HOOK_LOAD].calls - from.hypervisor.hook[HOOK_LOAD].calls
        };
        self.set("hv_loads_equal", loads(before, between));
        self.set("hv_loads_mixed", loads(between, after));
        self.demand(
            loads(before, between) == 0,
            "the hypervisor saw loads of equal configurations",
        );
        self.set("hv_residue_clears", after.hypervisor.residue_clears);
        Ok(())
    }

    /// Judges what the driver and the module execute, per switch and per read.
    fn costs(&mut self, [before, between, _]: &[Marks; 3]) -> Result<()> {
        let switch = Cost::between(
            &before.hypervisor,
            &between.hypervisor,
            &[HOOK_SWITCH_FROM, HOOK_SWITCH_TO],
            HOOK_SWITCH_TO,
        );
        let documented = if self.is_pv { COST_VCPU_SWITCH } else { COST_VCPU_SWITCH_RINGS };
        self.cost("hv_instr_per_vcpu_switch", switch.instructions, documented);
        self.set("hv_pmc_reads_per_vcpu_switch", switch.pmc_reads);
        self.set("hv_msr_reads_per_vcpu_switch", switch.msr_reads);
        self.set("hv_msr_writes_per_vcpu_switch", switch.msr_writes);
        self.demand(
            switch.msr_writes == 0.0,
            "the hypervisor wrote MSRs at switches although the configuration did not change",
        );
        if !self.is_pv {
            // The hypervisor takes no part in changes of mode. The module measures its switches by
            // a counter of user mode, which does not count a kernel in ring 0.
            return Ok(());
        }
        let toggle =
            Cost::between(&before.hypervisor, &between.hypervisor, &[HOOK_TOGGLE], HOOK_TOGGLE);
        self.cost("hv_instr_per_toggle", toggle.instructions, COST_TOGGLE);
        self.set("hv_pmc_reads_per_toggle", toggle.pmc_reads);
        let module = |key: &str| between.module.growth(&before.module, key);
        let mut guest = 0.0;
        for way in ["in", "out"] {
            let calls = module(&format!("switch_{way}_calls"))?;
            let instructions = module(&format!("switch_{way}_instructions"))?;
            guest += per(instructions, calls);
        }
        self.cost("guest_instr_per_thread_switch", guest, COST_THREAD_SWITCH);
        Ok(())
    }

    /// Compares logical TSCs with the accounts of Linux and the host.
    ///
    /// How close they are depends more on the emulator's host than on this project. The program
    /// `clock` judges them on a machine without such a host.
    fn times(&mut self, logs: &[Log], [before, between, after]: &[Marks; 3], tsc_khz: u32) {
        let vcpus = between.vcpus.since(&before.vcpus);
        let waiting_ns: u64 = vcpus.iter().map(|vcpu| vcpu.waiting_ns).sum();
        let vcpus_tsc: u64 = vcpus.iter().map(|vcpu| vcpu.running.max_tsc).sum();
        let (mut threads, mut running) = (TimeCheck::default(), TimeCheck::default());
        for log in logs {
            threads.add(&log.elapsed, tsc_khz, log.equal_switches, waiting_ns);
        }
        for vcpu in after.vcpus.since(&before.vcpus) {
            running.add(&vcpu.running, tsc_khz, vcpu.switches, 0);
        }
        self.set("tsc_khz", u64::from(tsc_khz));
        self.set("vcpus_waiting_ns", waiting_ns);
        self.set("vcpus_tsc", vcpus_tsc);
        self.set("vcpus_clock_ns", running.clock_ns);
        self.set("vcpu_tsc_excess_ns", running.worst_ns);
        self.set("threads_tsc", threads.min_tsc);
        self.set("threads_clock_ns", threads.clock_ns);
        self.set("thread_tsc_excess_ns", threads.worst_ns);
        // Every tick of a thread is also a tick of a vCPU.
        let threads_tsc = threads.min_tsc;
        self.demand(
            0 < threads_tsc && threads_tsc <= vcpus_tsc,
            format_args!("threads counted {threads_tsc} ticks in {vcpus_tsc} ticks of vCPUs"),
        );
        self.demand(waiting_ns > 0, "no vCPU ever waited: a hard case did not occur");
    }

    /// Prints the table of truth against reading, and everything else that is known.
    pub fn print(&self) {
        println!(
            "{:<42}{:>9}{:>8}{:>15}{:>15}{:>9}{:>10}{:>7}{:>9}",
            "counts in user mode",
            "readings",
            "retries",
            "truth",
            "read - const",
            "constant",
            "per retry",
            "errors",
            "largest"
        );
        self.table.iter().for_each(|line| println!("{line}"));
        println!();
        for (key, value) in &self.values {
            println!("{key:<32}{:>16}", value.to_string());
        }
        self.details.iter().for_each(|detail| println!("\n{detail}"));
        self.complaints.iter().for_each(|complaint| println!("FAILED: {complaint}"));
    }

    /// Writes the JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.values)?;
        fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Returns `numerator` divided by `denominator`, or 0 if that is 0.
fn per(numerator: u64, denominator: u64) -> f64 {
    if denominator == 0 { 0.0 } else { numerator as f64 / denominator as f64 }
}

/// What the driver spends each time that some of its hooks run.
struct Cost {
    instructions: f64,
    pmc_reads: f64,
    msr_reads: f64,
    msr_writes: f64,
}

impl Cost {
    /// Returns the cost of `hooks` together, for each call of `each`.
    fn between(from: &HvStats, to: &HvStats, hooks: &[usize], each: usize) -> Self {
        let calls = to.hook[each].calls - from.hook[each].calls;
        let mean = |field: fn(&HvHookStats) -> u64| {
            let grown = |&hook: &usize| field(&to.hook[hook]) - field(&from.hook[hook]);
            per(hooks.iter().map(grown).sum(), calls)
        };
        Self {
            instructions: mean(|hook| hook.instructions),
            pmc_reads: mean(|hook| hook.pmc_reads),
            msr_reads: mean(|hook| hook.msr_reads),
            msr_writes: mean(|hook| hook.msr_writes),
        }
    }
}
