// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs the same tests in a PVH tenant, whose vCPUs the control domain moves.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vm_tests::tally::{Tally, equal};
use vm_tests::toolstack::{self, Kind, Tenant, Tsc, live, mount_statistics, say};
use vm_tests::xen::Xen;
use vm_tests::{disturb, module};

use crate::{Machine, PCPUS, SEED, SWITCHES_MIN, counted, place, sampled, switches, wide};

const VCPUS: usize = 2;

/// A test with its name.
type Test = (&'static str, fn(&Machine) -> Result<()>);

/// The tests of the tenant before its vCPUs are moved, and while they are.
const AT_REST: &[Test] = &[
    ("samples of the kernel are where it was, also with interrupts disabled", place::of_the_kernel),
    ("a limit of overflows is kept", sampled::limited),
];
const MOVED: &[Test] = &[
    ("threads count exactly", counted::threads),
    ("threads with counters of their own count exactly beside", counted::beside),
    ("events take turns, and say so", counted::in_turns),
    ("who comes where counters do not suffice is refused, or waits", counted::without_room),
    ("what both modes count is what each counts", counted::of_both_modes),
    ("CPUs count what threads do", wide::equal_to_threads),
    ("CPUs count what threads do until they are unplugged", wide::equal_until_unplugged),
    ("CPUs count what users do who count themselves", wide::equal_to_users),
    ("every period is told, in its own thread", sampled::threads_merged),
];

/// Runs in the control domain.
pub fn control() -> Result<ExitCode> {
    let xen = Xen::open().context("this is not Xen's control domain")?;
    toolstack::start()?;
    let mut tenant = Tenant::create_kind(Kind::Pvh, "perf", VCPUS, Tsc::Native, "tenant")?;
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
    let enough = switches(xen)? - before >= SWITCHES_MIN;
    tally.check("vCPUs were switched meanwhile", equal(enough, true));
    tenant.destroy()?;
    Ok(tally.finish())
}

/// Receives the results of the tenant's tests.
fn hear(tally: &mut Tally, tenant: &mut Tenant, tests: &[Test]) -> Result<()> {
    for (name, _) in tests {
        let outcome = equal(tenant.hear()?, Value::Null);
        tally.check(&format!("in a PVH tenant {name}"), outcome);
    }
    Ok(())
}

/// Runs in the tenant, and ends with the domain.
pub fn run() -> Result<ExitCode> {
    live(all)
}

fn all() -> Result<()> {
    mount_statistics()?;
    module::load()?;
    let machine = Machine::new(None)?;
    say(&json!("ready"));
    for (_, test) in AT_REST.iter().chain(MOVED) {
        say(&json!(test(&machine).err().map(|error| format!("{error:#}"))));
    }
    Ok(())
}
