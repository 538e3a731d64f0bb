// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Collects the results, for people and as one flat JSON object.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use perfctr::Session;
use serde_json::{Map, Value};
use shared_abi::sync::Ordering::Relaxed;
use vm_tests::round::Overflows;
use vm_tests::sampled::{self, SKIDS};
use vm_tests::stats::ModuleStats;

use crate::competition::{Log, Outcome};
use crate::pending;

/// What the run has shown.
#[derive(Debug, Default)]
pub struct Report {
    values: Map<String, Value>,
    /// Overflows beside periods, line by line.
    table: Vec<String>,
    /// The names of the conditions that hold.
    passed: Vec<String>,
    /// The names of the conditions that do not hold, and the reasons.
    failed: Vec<String>,
}

/// Returns the number of loads whose overflows the hypervisor has put off, on all vCPUs.
pub fn throttled(session: &Session, cpus: &[usize]) -> u64 {
    let pages = cpus.iter().filter_map(|&cpu| session.vcpu_page(cpu as u32));
    pages.map(|page| page.throttled.load(Relaxed)).sum()
}

impl Report {
    /// Returns whether nothing is wrong.
    pub fn ok(&self) -> bool {
        self.failed.is_empty() && !self.passed.is_empty()
    }

    /// Returns an error that names each condition that does not hold.
    pub fn verdict(&self) -> Result<()> {
        ensure!(self.ok(), "{}", self.failed.join("; "));
        Ok(())
    }

    /// Sets a value.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.values.insert(key.to_owned(), value.into());
    }

    /// Notes whether a condition holds, or why it does not.
    pub fn demand(&mut self, name: &str, holds: bool, otherwise: impl Display) {
        if holds {
            self.passed.push(name.to_owned());
        } else {
            self.failed.push(format!("{name}: {otherwise}"));
        }
    }

    /// Notes a test.
    pub fn check(&mut self, name: &str, outcome: Result<()>) {
        let why = outcome.as_ref().err().map_or(String::new(), |error| format!("{error:#}"));
        self.demand(name, outcome.is_ok(), why);
    }

    /// Compares every period with its overflow.
    pub fn competition(&mut self, outcome: &Outcome, merged: u64) {
        let mut all = Overflows::default();
        let (mut errors, mut error_max) = (0, 0);
        for log in &outcome.logs {
            all.add(&log.overflows);
            errors += log.errors;
            error_max = error_max.max(log.error_max);
            self.table.push(line(log));
        }
        let skids = |n: usize| outcome.logs.iter().any(|log| log.skids[n] > 0);
        self.set("imode_threads", outcome.logs.len());
        self.set("imode_periods_expected", all.expected);
        self.set("imode_overflows", all.signalled);
        self.set("imode_lost", all.lost);
        self.set("imode_extra", all.extra);
        self.set("imode_merged", merged);
        self.set("imode_count_errors", errors);
        self.set("imode_count_error_max", error_max);
        self.set("imode_instr_per_signal", outcome.constants.per_signal()[0]);
        let skid_max = (0..SKIDS).rev().find(|&n| skids(n));
        self.set("imode_skid_max", skid_max);
        let why = format!("{skid_max:?} events");
        self.demand("every overflow is delivered without skid", skid_max == Some(0), why);
        let why = format!("{all:?}");
        self.demand("every period has its overflow, in its own thread", all.are_exact(), why);
        let why = format!("{errors} counts are off, by up to {error_max}");
        self.demand("counts of sampling counters and beside them are exact", errors == 0, why);
        let why = outcome.complaints.join("; ");
        self.demand("threads that do not sample count exactly", why.is_empty(), why);
    }

    /// Checks that no overflow was put off up to now.
    pub fn throttled(&mut self, session: &Session, cpus: &[usize]) {
        let throttled = throttled(session, cpus);
        self.set("imode_throttled", throttled);
        let why = format!("{throttled} loads' overflows were put off");
        self.demand("the allowed rate is not reached", throttled == 0, why);
    }

    /// Judges overflows whose interrupt came too late. `each_told` says whether each has to have
    /// its own signal.
    pub fn pending(
        &mut self,
        outcomes: &[pending::Outcome],
        each_told: bool,
        before: &ModuleStats,
        after: &ModuleStats,
    ) -> Result<()> {
        let delivered = after.growth(before, "overflows_pending")?;
        self.set("imode_pending_delivered", delivered);
        self.set("imode_stray_interrupts", after.growth(before, "interrupts_stray")?);
        self.demand("late overflows are delivered", delivered > 0, "there were none");
        // Periods are merged if they pass while the kernel has disabled interrupts and waits for
        // another vCPU. A period that ends while the kernel stops the counters has no signal.
        let merged = after.growth(before, "overflows_merged")?;
        let lost: u64 = outcomes.iter().map(|outcome| outcome.noted.lost).sum();
        let is_right = outcomes.iter().all(|outcome| {
            let untold = outcome.expected.checked_sub(outcome.noted.passed());
            outcome.noted.extra == 0 && untold.is_some_and(|n| n <= 1)
        });
        self.set("imode_pending_merged", merged);
        let why = format!("{merged} merged, {outcomes:?}");
        self.demand(
            "late overflows are delivered once, or merged and counted",
            is_right && lost == merged,
            why,
        );
        if each_told {
            let why = format!("{merged} merged");
            self.demand("without another vCPU every late overflow is delivered", merged == 0, why);
        }
        Ok(())
    }

    /// Judges signals that came to threads which do not sample, or that no counter of their thread
    /// explains.
    pub fn elsewhere(&mut self) {
        let elsewhere = sampled::elsewhere();
        self.set("imode_wrong_thread", elsewhere);
        self.demand("no signal comes to a wrong thread", elsewhere == 0, elsewhere);
    }

    /// Prints the table and everything else that is known.
    pub fn print(&self) {
        if !self.table.is_empty() {
            println!(
                "{:>10}{:>10}{:>10}{:>9}{:>6}{:>7}{:>8}{:>9}  skid x times",
                "period", "expected", "overflows", "signals", "lost", "extra", "errors", "largest"
            );
            self.table.iter().for_each(|line| println!("{line}"));
            println!();
        }
        for (key, value) in &self.values {
            println!("{key:<32}{:>16}", value.to_string());
        }
        self.passed.iter().for_each(|name| println!("ok      {name}"));
        self.failed.iter().for_each(|failure| println!("FAILED  {failure}"));
    }

    /// Writes the JSON.
    pub fn write(&mut self, path: &Path) -> Result<()> {
        self.set("imode_ok", self.ok());
        let text = serde_json::to_string_pretty(&self.values)?;
        fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
    }
}

fn line(log: &Log) -> String {
    let Overflows { expected, signals, signalled, lost, extra, .. } = log.overflows;
    let skids = log.skids.iter().enumerate().filter(|(_, count)| **count > 0);
    let skids: Vec<_> = skids.map(|(skid, count)| format!("{skid} x {count}")).collect();
    format!(
        "{:>10}{expected:>10}{signalled:>10}{signals:>9}{lost:>6}{extra:>7}{:>8}{:>9}  {}",
        log.period,
        log.errors,
        log.error_max,
        skids.join(", ")
    )
}
