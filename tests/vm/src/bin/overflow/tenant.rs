// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes some of the tests in a tenant of Xen, whose vCPUs the control domain moves.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use vm_tests::in_tenant::{Moves, Tests};
use vm_tests::threads::cpus;
use vm_tests::toolstack::{Kind, Tsc, Wanted, live, mount_statistics};
use vm_tests::{module, region, sampled};

use crate::report::Report;
use crate::{Options, Test, late, records};

/// The tenant's vCPUs.
const VCPUS: usize = 2;

/// The number of switches that shows that vCPUs are moved.
const SWITCHES_MIN: u64 = 50;

/// How often and how long the control domain waits for a test.
const POLL: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(900);

/// The test on CPUs whose interrupts of overflows come late.
const LATE: [Test; 1] =
    [("each late overflow is reported before the next one, and counts are exact", late_overflows)];

/// Returns the tests that these options choose. They execute while the vCPUs are moved.
fn tests(options: &Options) -> Tests<fn() -> Result<()>> {
    let moved = if options.late { &LATE } else { records::TESTS };
    Tests { at_rest: &[], moved, saved: &[] }
}

/// Runs in the control domain: creates the tenant, and receives its results.
pub fn control(kind: Kind, options: &Options) -> Result<ExitCode> {
    let chosen = if options.late { "--late" } else { "--records" };
    let role = format!("--tenant {chosen} --rounds {}", options.rounds);
    let wanted = Wanted::usual(kind, "overflow", VCPUS, Tsc::Native, &role);
    let moves = Moves { pcpus: options.pcpus, seed: options.seed, switches_min: SWITCHES_MIN };
    tests(options).control(&wanted, moves, |tenant| tenant.receive_within(POLL, PATIENCE))
}

/// Runs in the tenant, and ends with the domain.
pub fn run(options: &Options) -> Result<ExitCode> {
    live(|| {
        mount_statistics()?;
        module::load()?;
        // A process without other threads is stepped.
        region::overhead()?;
        sampled::handle()?;
        tests(options).run_in_tenant(|test| test());
        Ok(())
    })
}

fn late_overflows() -> Result<()> {
    let mut report = Report::default();
    late::run(&mut report, &Options::parse(), None, &cpus()?)?;
    report.verdict()
}
