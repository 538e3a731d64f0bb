// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests sampling: threads sample themselves, each with its own period, while threads and vCPUs are
//! moved. Every overflow is compared with the thread's count. Some of these tests can also be made
//! in a tenant of Xen.

mod competition;
mod cost;
mod ends;
mod late;
mod pending;
mod records;
mod report;
mod storm;
mod tenant;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use vm_tests::disturb::{self, Returns};
use vm_tests::host::{Host, host};
use vm_tests::region;
use vm_tests::sampled;
use vm_tests::stats::ModuleStats;
use vm_tests::threads::cpus;
use vm_tests::toolstack::Kind;

use competition::{RESUMES_MIN, RETURNS_MIN};
use report::Report;

/// A test with its name.
type Test = (&'static str, fn() -> Result<()>);

/// Compares overflows with counts under competition and migration.
#[derive(Debug, Parser)]
struct Options {
    /// Measured regions per thread.
    #[arg(long, default_value_t = 4)]
    rounds: u64,
    /// Physical CPUs that the vCPUs are moved between.
    #[arg(long, default_value_t = 2)]
    pcpus: u32,
    /// Seed of all random sequences.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where to write the results as JSON.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Only raise a storm of overflows: the driver allows this many per vCPU and ms.
    #[arg(long)]
    storm: Option<u64>,
    /// Only sample under competition, while a physical CPU is taken offline and back, and the
    /// machine is suspended.
    #[arg(long)]
    hotplug: bool,
    /// Only test overflows in the middle of thread switches.
    #[arg(long)]
    pending: bool,
    /// Only sample on CPUs whose interrupts of overflows come late.
    #[arg(long)]
    late: bool,
    /// Only test records in rings.
    #[arg(long)]
    records: bool,
    /// Only test ends in the middle of sampling.
    #[arg(long)]
    ends: bool,
    /// Test in a tenant of this kind, which this creates: what `--late` tests, or else what
    /// `--records` does.
    #[arg(long, value_name = "KIND")]
    in_tenant: Option<Kind>,
    /// Do so in this domain, which is the tenant and executes this as its first program.
    #[arg(long, hide = true)]
    tenant: bool,
    /// What to do as a child process of this program.
    #[arg(long, hide = true)]
    child: Option<ends::Child>,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    if let Some(child) = options.child {
        return child.run();
    }
    if options.tenant {
        return tenant::run(&options);
    }
    if let Some(kind) = options.in_tenant {
        return tenant::control(kind, &options);
    }
    let host = &*host()?;
    // A process without other threads is stepped.
    region::overhead()?;
    let cpus = cpus()?;
    sampled::handle()?;
    let mut report = Report::default();
    if options.ends {
        for (name, test) in ends::TESTS {
            report.check(name, test());
        }
    } else if options.records {
        for (name, test) in records::TESTS {
            report.check(name, test());
        }
    } else if options.late {
        late::run(&mut report, &options, Some(host), &cpus)?;
    } else if options.pending {
        pending(&mut report, &options, host, &cpus)?;
    } else if options.hotplug {
        let session = sampled::open()?;
        let returns = compete(&mut report, &options, host, &cpus)?;
        let (last, all) = (returns.last.into_inner(), returns.all.into_inner());
        report.set("pcpu_returns", last);
        report.set("resumes", all);
        report.demand("a physical CPU came back several times", last >= RETURNS_MIN, last);
        report.demand("the machine was suspended to RAM meanwhile", all >= RESUMES_MIN, all);
        report.throttled(&session, &cpus);
        report.elsewhere();
    } else if let Some(rate) = options.storm {
        storm::run(&mut report, host, &cpus, rate)?;
    } else {
        sample(&mut report, &options, host, &cpus)?;
    }
    report.print();
    if let Some(path) = &options.report {
        report.write(path)?;
    }
    Ok(if report.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Samples under competition, in the middle of switches, and alone.
fn sample(report: &mut Report, options: &Options, host: &dyn Host, cpus: &[usize]) -> Result<()> {
    let session = sampled::open()?;
    compete(report, options, host, cpus)?;
    pending(report, options, host, cpus)?;
    report.throttled(&session, cpus);
    drop(session);
    report.elsewhere();
    let measured = cost::run(report, host, cpus);
    report.check("costs are measured", measured);
    Ok(())
}

/// Samples under competition. Returns how often physical CPUs have come back.
fn compete(
    report: &mut Report,
    options: &Options,
    host: &dyn Host,
    cpus: &[usize],
) -> Result<Returns> {
    let before = ModuleStats::read()?;
    let outcome = competition::run(options, cpus, host)?;
    let after = ModuleStats::read()?;
    report.competition(&outcome, after.growth(&before, "overflows_merged")?);
    Ok(outcome.returns)
}

/// Samples in the middle of switches.
fn pending(report: &mut Report, options: &Options, host: &dyn Host, cpus: &[usize]) -> Result<()> {
    let before = ModuleStats::read()?;
    let outcomes = pending::run(cpus, options.yields())?;
    // In guests of KVM some overflows are merged, for an unknown reason.
    let each_told = cpus.len() == 1 && host.xen().is_some();
    report.pending(&outcomes, each_told, &before, &ModuleStats::read()?)
}

impl Options {
    /// Returns the number of switches of each thread whose overflows are to be delivered late.
    fn yields(&self) -> u64 {
        self.rounds * 500
    }
}
