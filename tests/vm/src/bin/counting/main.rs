// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Competing threads read their own counters while threads and vCPUs are moved, and every reading
//! is compared with the truth.
//!
//! There are two phases. In the first all threads have *equal* configurations, so no hypercall is
//! needed. In the second they have *mixed* ones, which need the same counters for different events.
//! In both phases some threads are pinned and some are moved between vCPUs, and the vCPUs are moved
//! between physical CPUs. After the phases there are threads that do nothing but switch, on vCPUs
//! that are preempted meanwhile.

mod predicted;
mod report;
mod worker;
mod yielding;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use perfctr::{Provider, Session};
use shared_abi::hypercall::HvStats;
use vm_tests::bodies::step_over_invalid;
use vm_tests::disturb;
use vm_tests::guest;
use vm_tests::host::{Host, host};
use vm_tests::stats::ModuleStats;
use vm_tests::threads::{SELF, cpus, or_exit, run_on};

use predicted::Predicted;
use report::Report;
use vm_tests::time::VcpuTimes;
use worker::{HardCases, Log, Plan};

/// Compares readings with the truth under competition and migration.
#[derive(Debug, Parser)]
struct Options {
    /// Threads that measure.
    #[arg(long, default_value_t = 8)]
    threads: usize,
    /// Measured regions per thread and phase, more in the second if hard cases are rare.
    #[arg(long, default_value_t = 1500)]
    regions: u64,
    /// Pairs of adjoining reads per thread, of 1 and of 4 counters.
    #[arg(long, default_value_t = 40_000)]
    reads: u64,
    /// Physical CPUs that the vCPUs are moved between.
    #[arg(long, default_value_t = 2)]
    pcpus: u32,
    /// Seed of all random sequences.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Do not compare cycles: the CPUs count each interrupt as cycles, which nobody subtracts.
    #[arg(long)]
    without_cycles: bool,
    /// Where to write the results as JSON.
    #[arg(long)]
    report: Option<PathBuf>,
}

/// The numbers that the module and the driver have counted up to a moment between phases.
struct Marks {
    hypervisor: HvStats,
    module: ModuleStats,
    vcpus: VcpuTimes,
}

impl Marks {
    /// Visits every CPU, comes back, and reads the numbers.
    fn take(host: &dyn Host, session: &Session, cpus: &[usize]) -> Result<Self> {
        let vcpus = VcpuTimes::take(host, session, cpus)?;
        run_on(SELF, cpus)?;
        Ok(Self {
            hypervisor: host.stats().context("the hypervisor gives no statistics")?,
            module: ModuleStats::read()?,
            vcpus,
        })
    }
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    ensure!(options.threads >= 2, "at least two threads are needed to compete");
    let host = host()?;
    step_over_invalid()?;
    let predicted = Predicted::find().context("reads cannot be stepped")?;
    let cpus = cpus()?;
    let session = Session::open_with(Provider::Paravirt)?;
    let logs = Mutex::new(Vec::new());
    let marks = run(&options, &cpus, &*host, &session, &logs, &predicted);
    let logs = logs.into_inner()?;
    let yielding = yielding::run(&*host, &cpus)?;
    let description = session.description();
    let report = Report::new(&options, &predicted, description, &logs, &marks, &yielding)?;
    report.print();
    if let Some(path) = &options.report {
        report.write(path)?;
    }
    Ok(if report.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs both phases. Returns the marks before the first, between them, and after the second.
fn run(
    options: &Options,
    cpus: &[usize],
    host: &dyn Host,
    session: &Session,
    logs: &Mutex<Vec<Log>>,
    predicted: &Predicted,
) -> [Marks; 3] {
    let is_pv = or_exit(0, guest::is_pv());
    let gate = Barrier::new(options.threads + 1);
    let stop = AtomicBool::new(false);
    let tids = Mutex::new(Vec::new());
    let hard_cases = HardCases::default();
    thread::scope(|scope| {
        for id in 0..options.threads {
            let plan = Plan {
                id,
                regions: options.regions,
                hard_cases: &hard_cases,
                reads: options.reads,
                seed: options.seed,
                cpus,
                gate: &gate,
                movable: &tids,
                totals: predicted.totals,
                is_pv,
            };
            scope.spawn(move || {
                let log = or_exit(id, worker::run(&plan));
                logs.lock().expect("no worker panics").push(log);
            });
        }
        gate.wait();
        let movable = tids.lock().expect("no worker panics").clone();
        let stop = &stop;
        scope.spawn(move || disturb::threads(&movable, cpus, options.seed, stop));
        scope.spawn(move || disturb::vcpus(host, cpus, options.pcpus, options.seed, stop));
        let marks = phases(&gate, || Marks::take(host, session, cpus)).unwrap_or_else(|error| {
            eprintln!("{error:#}");
            // The workers wait at the gate, so this ends the process.
            std::process::exit(1)
        });
        stop.store(true, Ordering::Relaxed);
        marks
    })
}

/// Lets the workers through one phase after the other, with a mark before, between and after them.
fn phases(gate: &Barrier, mark: impl Fn() -> Result<Marks>) -> Result<[Marks; 3]> {
    let before = mark()?;
    gate.wait();
    gate.wait();
    let between = mark()?;
    gate.wait();
    gate.wait();
    let after = mark()?;
    gate.wait();
    Ok([before, between, after])
}
