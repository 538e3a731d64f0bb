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
use vm_tests::histogram::{Histogram, Verdict};

use crate::worker::{Inside, Log, Series};
use crate::{Marks, Options};
use vm_tests::time::TimeCheck;

/// What the run has shown.
pub struct Report {
    values: Map<String, Value>,
    /// The table of truth against reading, line by line.
    table: Vec<String>,
    /// What is wrong; empty if all is well.
    complaints: Vec<String>,
    /// Details for whoever looks for the reason.
    details: Vec<String>,
}

impl Report {
    pub fn new(
        options: &Options,
        description: &Description,
        logs: &[Log],
        marks: &[Marks; 3],
    ) -> Result<Self> {
        let mut report = Self {
            values: Map::new(),
            table: Vec::new(),
            complaints: Vec::new(),
            details: Vec::new(),
        };
        report.set("threads", options.threads as u64);
        report.set("vcpus", u64::from(description.vcpus));
        report.set("pcpus", u64::from(options.pcpus));
        report.set("seed", options.seed);
        let mut all = Log::default();
        logs.iter().for_each(|log| all.merge(log));
        report.exactness(&all);
        report.disturbances(&all, marks)?;
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
    fn exactness(&mut self, log: &Log) {
        for (event, of) in [
            ("instr", (|series| &series.instructions) as fn(&Series) -> &Histogram),
            ("branch", |series| &series.branches),
        ] {
            let mut regions = of(&log.equal).clone();
            regions.merge(of(&log.mixed));
            let mut errors = (0, 0);
            for (name, histogram) in [
                ("regions, equal configurations", of(&log.equal)),
                ("regions, mixed configurations", of(&log.mixed)),
                // Both together have the same constants.
                ("all regions", &regions),
                ("adjoining reads of 1 counter", of(&log.reads_1)),
                ("adjoining reads of 4 counters", of(&log.reads_4)),
            ] {
                let Some(verdict) = self.judge(event, name, histogram) else { continue };
                errors.0 = errors.0.max(verdict.error_max);
                errors.1 += verdict.error_count;
            }
            self.set(&format!("{event}_error_max"), errors.0);
            self.set(&format!("{event}_error_count"), errors.1);
            if let Some(verdict) = regions.judge() {
                self.set(&format!("{event}_constant"), verdict.constant);
                self.set(&format!("{event}_per_retry"), verdict.per_retry);
            }
        }
        for (counters, reads) in [(1, &log.reads_1), (4, &log.reads_4)] {
            // Two adjoining reads are exactly one read apart.
            let cost = reads.instructions.judge().map(|verdict| verdict.constant);
            self.set(&format!("read_instr_{counters}"), cost);
        }
        self.set("regions", log.regions);
        self.set("read_pairs", log.reads_1.instructions.readings() * 2);
        self.occurred("read_retries", log.retries);
        self.set("indirect_reads", log.indirect);
        self.demand(log.indirect == 0, "a read needed a system call");
    }

    /// Judges one series of readings and adds it to the table.
    fn judge(&mut self, event: &str, name: &str, histogram: &Histogram) -> Option<Verdict> {
        if histogram.readings() == 0 {
            return None;
        }
        let Some(verdict) = histogram.judge() else {
            self.complaints.push(format!("{name}: every reading was retried"));
            return None;
        };
        let per_retry = verdict.per_retry.map_or("-".to_owned(), |each| each.to_string());
        self.table.push(format!(
            "{event:<7}{name:<31}{:>9}{:>8}{:>15}{:>15}{:>9}{per_retry:>10}{:>7}{:>9}",
            histogram.readings(),
            histogram.retries(),
            verdict.truth,
            verdict.reading,
            verdict.constant,
            verdict.error_count,
            verdict.error_max,
        ));
        if verdict.error_max != 0 {
            let count = verdict.error_count;
            self.complaints.push(format!("{count} {event} readings of {name} are off the truth"));
            self.details.push(format!("{event}, {name}:\n{}", histogram.describe(20)));
        }
        Some(verdict)
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
        Ok(())
    }

    /// Logical TSCs beside the accounts of Linux and Xen.
    ///
    /// How close they are says more about the emulator's host than about us; the program `clock`
    /// judges them on a machine without one.
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
        // Every tick of a thread is one of a vCPU's.
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
            "{:<38}{:>9}{:>8}{:>15}{:>15}{:>9}{:>10}{:>7}{:>9}",
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
