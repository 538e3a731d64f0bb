// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs the same tests in a tenant of Xen, whose vCPUs the control domain moves.

use std::fs;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vm_tests::tally::{Tally, equal};
use vm_tests::toolstack::{self, Kind, Tenant, Tsc, Wanted, live, say};
use vm_tests::xen::Xen;
use vm_tests::{disturb, module, programs};

use crate::{AT_REST, MOVED, PCPUS, SEED, Test, check_switches, switches};

const VCPUS: usize = 2;

/// The tenant's memory: enough for the packages, twice while they are unpacked, and recordings.
const MEMORY_MIB: u32 = 768;

/// How often and how long the tenant is waited for. A test has many replays, each of which is given
/// minutes.
const POLL: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(900);

/// Runs in the control domain.
pub fn control(kind: Kind) -> Result<ExitCode> {
    let xen = Xen::open().context("this is not Xen's control domain")?;
    toolstack::start()?;
    let mut tenant = Tenant::create_wanted(&Wanted {
        memory_mib: MEMORY_MIB,
        ..Wanted::usual(kind, "rr", VCPUS, Tsc::Native, "tenant")
    })?;
    xen.allow(tenant.domain, true)?;
    for vcpu in 0..VCPUS as u32 {
        xen.set_affinity(tenant.domain, vcpu, 1 << (vcpu % PCPUS))?;
    }
    tenant.unpause()?;
    let said = tenant.hear()?;
    ensure!(said == "ready", "the tenant says {said}");
    let mut tally = Tally::default();
    hear(&mut tally, &mut tenant, AT_REST)?;
    let before = switches(&xen)?;
    let (domain, stop) = (tenant.domain, &AtomicBool::new(false));
    let (xen, vcpus) = (&xen, &Vec::from_iter(0..VCPUS));
    thread::scope(|scope| {
        scope.spawn(move || disturb::domain(xen, domain, vcpus, PCPUS, SEED, stop));
        let heard = hear(&mut tally, &mut tenant, MOVED);
        stop.store(true, Ordering::Relaxed);
        heard
    })?;
    check_switches(&mut tally, xen, before)?;
    tenant.destroy()?;
    Ok(tally.finish())
}

/// Receives the results of the tenant's tests.
fn hear(tally: &mut Tally, tenant: &mut Tenant, tests: &[Test]) -> Result<()> {
    for (name, _) in tests {
        tally.check(name, equal(tenant.hear_within(POLL, PATIENCE)?, Value::Null));
    }
    Ok(())
}

/// Runs in the tenant, and ends with the domain.
pub fn run() -> Result<ExitCode> {
    live(all)
}

fn all() -> Result<()> {
    // Recordings have random numbers in their names.
    programs::prepare()?;
    fs::create_dir_all("/tmp")?;
    module::load()?;
    say(&json!("ready"));
    for (_, test) in AT_REST.iter().chain(MOVED) {
        say(&json!(test().err().map(|error| format!("{error:#}"))));
    }
    Ok(())
}
