// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The verdict: a table for people, JSON for programs.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use perfctr::Description;
use serde_json::{Map, Value};
use shared_abi::hypercall::{
    HOOK_LOAD, HOOK_SWITCH_FROM, HOOK_SWITCH_TO, HOOK_TOGGLE, HvHookStats, HvStats,
};

use crate::histogram::Histogram;
use crate::time::TimeCheck;
use crate::worker::{Inside, Log, MIXED};
use crate::{Marks, Options};

/// What the run has shown.
pub struct Report {
    values: Map<String, Value>,
    /// What is wrong; empty if all is well.
    complaints: Vec<String>,
    /// Details for whoever looks for the reason.
    details: Vec<String>,
}

/// Largest error and number of errors of one kind of event.
#[derive(Default)]
struct Off {
    max: u64,
    count: u64,
}

impl Off {
    fn add(&mut self, max: u64, count: u64) {
        self.max = self.max.max(max);
        self.count += count;
    }
}

/// What all threads have seen together.
#[derive(Default)]
struct All {
    log: Log,
    instructions: Off,
    branches: Off,
}

impl Report {
    pub fn new(
        options: &Options,
        description: &Description,
        logs: &[Log],
        marks: &[Marks; 3],
    ) -> Result<Self> {
        let mut report = Self { values: Map::new(), complaints: Vec::new(), details: Vec::new() };
        report.set("threads", options.threads as u64);
        report.set("vcpus", u64::from(description.vcpus));
        report.set("pcpus", u64::from(options.pcpus));
        report.set("seed", options.seed);
        let mut all = All::default();
        logs.iter().for_each(|log| all.log.merge(log));
        report.exactness(&mut all);
        report.disturbances(&all.log, marks)?;
        report.hypercalls(marks)?;
        report.costs(marks)?;
        report.times(logs, marks, description.tsc_khz);
        let ok = report.complaints.is_empty();
        report.set("ok", ok);
        Ok(report)
    }

    /// Whether nothing is wrong.
    pub fn ok(&self) -> bool {
        self.complaints.is_empty()
    }

    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.values.insert(key.to_owned(), value.into());
    }

    /// Complains unless what has to hold does.
    fn demand(&mut self, holds: bool, otherwise: impl Display) {
        if !holds {
            self.complaints.push(otherwise.to_string());
        }
    }

    /// Sets a number that has to be more than 0, or a hard case did not occur.
    fn occurred(&mut self, key: &str, times: u64) {
        self.set(key, times);
        self.demand(times > 0, format_args!("{key} is 0: a hard case did not occur"));
    }

    /// Readings against the truth.
    fn exactness(&mut self, all: &mut All) {
        let log = &all.log;
        let mixed: u64 = log.mixed.iter().map(Histogram::readings).sum();
        self.set("regions", log.equal.readings() + mixed);
        self.set("read_pairs", log.reads_1.readings() + log.reads_4.readings());
        let mut retries = log.equal.retries() + log.reads_1.retries() + log.reads_4.retries();
        retries += log.mixed.iter().map(Histogram::retries).sum::<u64>();
        if let Some([error, general, branches]) = self.judge("equal", &log.equal) {
            all.instructions.add(error.0, error.1);
            all.instructions.add(general.0, general.1);
            all.branches.add(branches.0, branches.1);
        }
        if let Some([error]) = self.judge("read_1", &log.reads_1) {
            all.instructions.add(error.0, error.1);
        }
        if let Some([error, general, branches]) = self.judge("read_4", &log.reads_4) {
            all.instructions.add(error.0, error.1);
            all.instructions.add(general.0, general.1);
            all.branches.add(branches.0, branches.1);
        }
        for kind in 0..MIXED.len() {
            let name = format!("mixed_{kind}");
            if let Some([error, branches]) = self.judge(&name, &log.mixed[kind]) {
                all.instructions.add(error.0, error.1);
                all.branches.add(branches.0, branches.1);
            }
        }
        self.set("instr_error_max", all.instructions.max);
        self.set("instr_error_count", all.instructions.count);
        self.set("branch_error_max", all.branches.max);
        self.set("branch_error_count", all.branches.count);
        self.set("indirect_reads", log.indirect);
        self.demand(log.indirect == 0, "a read needed a system call");
        self.occurred("read_retries", retries);
    }

    /// Judges one series of readings; gives each counter's largest error and number of errors.
    fn judge<const N: usize>(
        &mut self,
        name: &str,
        histogram: &Histogram<N>,
    ) -> Option<[(u64, u64); N]> {
        if histogram.readings() == 0 {
            return None;
        }
        let Some(verdict) = histogram.judge() else {
            self.complaints.push(format!("{name}: every reading was retried"));
            return None;
        };
        self.set(&format!("{name}_constant"), verdict.constant.to_vec());
        let per_retry = verdict.per_retry.map(|each| Value::from(each.to_vec()));
        self.set(&format!("{name}_per_retry"), per_retry);
        self.set(&format!("{name}_retries"), histogram.retries());
        if verdict.error_max != [0; N] {
            let counts = verdict.error_count;
            self.complaints.push(format!("{name}: {counts:?} readings differ from the truth"));
            self.details.push(format!("{name}:\n{}", histogram.describe(20)));
        }
        Some(std::array::from_fn(|n| (verdict.error_max[n], verdict.error_count[n])))
    }

    /// The hard cases.
    fn disturbances(&mut self, log: &Log, [before, _, after]: &[Marks; 3]) -> Result<()> {
        let vcpus = after.vcpus.since(&before.vcpus);
        self.occurred("vcpu_switches", vcpus.iter().map(|vcpu| vcpu.switches).sum());
        self.occurred("vcpu_migrations", vcpus.iter().map(|vcpu| vcpu.migrations).sum());
        self.occurred("thread_switches", log.switches);
        self.occurred("thread_migrations", log.migrations);
        let Inside { fault, ticks, switch, migration } = log.inside;
        self.occurred("regions_with_page_fault", fault);
        self.occurred("regions_with_ticks", ticks);
        self.occurred("regions_with_thread_switch", switch);
        self.occurred("regions_with_thread_migration", migration);
        self.set("page_faults", log.faults);
        let faults = log.faults;
        self.demand(
            faults >= fault,
            format_args!("{fault} regions touched a fresh page, but only {faults} faults occurred"),
        );
        Ok(())
    }

    /// None are needed for equal configurations, some for mixed ones.
    fn hypercalls(&mut self, [before, between, after]: &[Marks; 3]) -> Result<()> {
        let equal = between.module.growth(&before.module, "hypercalls")?;
        let mixed = after.module.growth(&between.module, "hypercalls")?;
        self.set("hypercalls", equal + mixed);
        self.set("hypercalls_equal", equal);
        self.occurred("hypercalls_mixed", mixed);
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

    /// What the sides spend, per switch and per read.
    fn costs(&mut self, [before, between, _]: &[Marks; 3]) -> Result<()> {
        let switch = Cost::between(
            &before.hypervisor,
            &between.hypervisor,
            &[HOOK_SWITCH_FROM, HOOK_SWITCH_TO],
            HOOK_SWITCH_TO,
        );
        self.set("hv_instr_per_vcpu_switch", switch.instructions);
        self.set("hv_pmc_reads_per_vcpu_switch", switch.pmc_reads);
        self.set("hv_msr_reads_per_vcpu_switch", switch.msr_reads);
        self.set("hv_msr_writes_per_vcpu_switch", switch.msr_writes);
        self.demand(
            switch.msr_writes == 0.0,
            "the hypervisor wrote MSRs at switches although the configuration did not change",
        );
        let toggle =
            Cost::between(&before.hypervisor, &between.hypervisor, &[HOOK_TOGGLE], HOOK_TOGGLE);
        self.set("hv_instr_per_toggle", toggle.instructions);
        self.set("hv_pmc_reads_per_toggle", toggle.pmc_reads);
        let module = |key: &str| between.module.growth(&before.module, key);
        let mut guest = 0.0;
        for way in ["in", "out"] {
            let calls = module(&format!("switch_{way}_calls"))?;
            let instructions = module(&format!("switch_{way}_instructions"))?;
            guest += per(instructions, calls);
        }
        self.set("guest_instr_per_thread_switch", guest);
        self.set("guest_read_retries", module("read_retries")?);
        for counters in [1, 4] {
            // Two adjoining reads are exactly one read apart.
            let constant = self.values.get(&format!("read_{counters}_constant"));
            let cost = constant.and_then(|each| each.get(0)).cloned().unwrap_or(Value::Null);
            self.set(&format!("read_instr_{counters}"), cost);
        }
        Ok(())
    }

    /// Logical TSCs against the accounts of Linux and Xen.
    ///
    /// Linux charges a thread also for the time that its vCPU waits for a physical CPU (Debian's
    /// kernel has no steal clock), which our counter excludes: the difference cannot be more than
    /// what Xen says all vCPUs have waited.
    fn times(&mut self, logs: &[Log], [before, between, after]: &[Marks; 3], tsc_khz: u32) {
        let vcpus = between.vcpus.since(&before.vcpus);
        let waiting_ns: u64 = vcpus.iter().map(|vcpu| vcpu.waiting_ns).sum();
        let vcpus_tsc: u64 = vcpus.iter().map(|vcpu| vcpu.running.max_tsc).sum();
        let mut threads = TimeCheck::NONE;
        for log in logs {
            threads.add(&log.elapsed, tsc_khz, log.equal_switches, waiting_ns);
        }
        let mut running = TimeCheck::NONE;
        for vcpu in after.vcpus.since(&before.vcpus) {
            running.add(&vcpu.running, tsc_khz, vcpu.switches, 0);
        }
        self.set("tsc_khz", u64::from(tsc_khz));
        self.set("vcpus_waiting_ns", waiting_ns);
        self.set("vcpus_tsc", vcpus_tsc);
        self.set("threads_tsc", threads.min_tsc);
        self.time_check("thread", &threads, waiting_ns);
        self.time_check("vcpu", &running, 0);
        // Every tick of a thread is one of a vCPU's.
        let threads_tsc = threads.min_tsc;
        self.demand(
            threads_tsc <= vcpus_tsc,
            format_args!("threads counted {threads_tsc} ticks in {vcpus_tsc} ticks of vCPUs"),
        );
        self.demand(waiting_ns > 0, "no vCPU ever waited: a hard case did not occur");
    }

    fn time_check(&mut self, who: &str, check: &TimeCheck, other_ns: u64) {
        let TimeCheck { worst_ns, excess_ns, clock_ns, .. } = *check;
        self.set(&format!("{who}_tsc_excess_ns"), worst_ns);
        self.set(&format!("{who}s_tsc_excess_ns"), excess_ns);
        self.set(&format!("{who}s_clock_ns"), clock_ns);
        self.demand(
            check.each_within,
            format_args!("the TSC of a {who} is {worst_ns} ns off its account"),
        );
        self.demand(
            check.all_within(other_ns),
            format_args!("the TSCs of all {who}s are {excess_ns} ns off their {clock_ns} ns"),
        );
    }

    /// Prints the table.
    pub fn print(&self) {
        for (key, value) in &self.values {
            println!("{key:<32} {value}");
        }
        for detail in &self.details {
            println!("\n{detail}");
        }
        for complaint in &self.complaints {
            println!("FAILED: {complaint}");
        }
    }

    /// Writes the JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.values)?;
        fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }
}

/// `numerator` for each of `denominator`; 0 if there is none.
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
    /// The cost of `hooks` together, for each call of `each`.
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
