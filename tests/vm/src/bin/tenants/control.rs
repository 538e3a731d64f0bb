// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The control domain's part.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vm_tests::disturb;
use vm_tests::raw::Refusal;
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::cpus;
use vm_tests::xen::{CONTROL_DOMAIN, Xen};

use crate::counting::{self, Places};
use crate::storm;
use crate::toolstack::{self, Tenant, Tsc};

/// Physical CPUs that both domains share.
const PCPUS: u32 = 2;
/// vCPUs of a tenant.
const VCPUS: usize = 2;
/// Regions that each of the tenant's threads measures.
const REGIONS: u64 = 1_500;
/// Until a tenant that has begun to count is in the middle of it.
const AMID: Duration = Duration::from_secs(2);

/// Whose counts are judged.
const CONTROL: &str = "control domain";
const TENANT: &str = "tenant";

/// What to do.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Overflows that the driver allows per vCPU and ms.
    rate: u64,
    /// Every domain may count, without being allowed to.
    #[arg(long)]
    all: bool,
}

/// Creates tenants and judges.
pub fn run(options: &Options) -> Result<ExitCode> {
    let xen = Xen::open().context("this is not Xen's control domain")?;
    toolstack::start()?;
    let host = Host { xen, all: options.all };
    let mut tally = Tally::default();
    if options.all {
        storm::run(&mut tally, &host, options.rate)?;
        together(&mut tally, &host)?;
    } else {
        refusals(&mut tally, &host)?;
        restored(&mut tally, &host)?;
        together(&mut tally, &host)?;
        storm::run(&mut tally, &host, options.rate)?;
    }
    Ok(tally.finish())
}

/// The hypervisor, and whom it lets count.
#[derive(Debug)]
pub struct Host {
    /// The way to it.
    pub xen: Xen,
    all: bool,
}

impl Host {
    /// Lets a tenant count and go on.
    pub fn invite(&self, tenant: &Tenant) -> Result<()> {
        if !self.all {
            self.xen.allow(tenant.domain, true)?;
        }
        tenant.unpause()
    }
}

/// Tenants that must not count: one that cannot, and one that the host allows only for a while.
fn refusals(tally: &mut Tally, host: &Host) -> Result<()> {
    let mut tenant = Tenant::create("emulated", VCPUS, Tsc::Emulated, "count 1")?;
    host.invite(&tenant)?;
    refused(tally, "a tenant whose TSC is emulated", &mut tenant, "EOPNOTSUPP")?;
    tenant.destroy()?;
    let mut tenant = Tenant::create("outlaw", VCPUS, Tsc::Native, &format!("count {}", u64::MAX))?;
    tenant.unpause()?;
    refused(tally, "a tenant that nobody has allowed to count", &mut tenant, "EPERM")?;
    host.xen.allow(tenant.domain, true)?;
    begins(&mut tenant)?;
    sleep(AMID);
    host.xen.allow(tenant.domain, false)?;
    let seen = tenant.hear()?;
    println!("a tenant that was forbidden to count: {seen:#}");
    let refusal = seen["refusal"].is_string();
    tally.check("a tenant that is forbidden to count is told so", equal(refusal, true));
    let exact = equal(&seen["error_max"], &json!(0));
    tally.check("a tenant that is forbidden to count gets no wrong number", exact);
    tenant.destroy()
}

/// The module says why, and the CPU does not let the tenant read counters.
fn refused(tally: &mut Tally, whose: &str, tenant: &mut Tenant, errno: &str) -> Result<()> {
    let said = tenant.hear()?;
    let right = said["module"].as_str().is_some_and(|refusal| refusal.contains(errno));
    let outcome = if right { Ok(()) } else { Err(said.to_string()) };
    tally.check(&format!("{whose} gets {errno}"), outcome);
    let outcome = equal(&said["signal"], &json!(libc::SIGSEGV));
    tally.check(&format!("{whose} cannot execute RDPMC"), outcome);
    Ok(())
}

/// A tenant that is saved to a file twice while it counts: once it goes on, once it is restored.
fn restored(tally: &mut Tally, host: &Host) -> Result<()> {
    let mut tenant = counting("traveller", host, 4 * REGIONS)?;
    sleep(AMID);
    tenant.checkpoint()?;
    tenant.save_and_restore()?;
    tally.check("a tenant is saved while it counts", equal(tenant.is_silent(), true));
    host.invite(&tenant)?;
    let seen = tenant.hear()?;
    println!("a tenant that was restored: {seen:#}");
    exact(tally, "a restored tenant", &seen);
    tenant.destroy()
}

/// A tenant whose threads each measure so many regions twice, and begin now.
fn counting(name: &str, host: &Host, regions: u64) -> Result<Tenant> {
    let mut tenant = Tenant::create(name, VCPUS, Tsc::Native, &format!("count {regions}"))?;
    host.invite(&tenant)?;
    begins(&mut tenant)?;
    Ok(tenant)
}

/// Waits until a tenant begins to count.
fn begins(tenant: &mut Tenant) -> Result<()> {
    let said = tenant.hear()?;
    ensure!(said == "ready", "the tenant says {said}");
    Ok(())
}

fn exact(tally: &mut Tally, whose: &str, seen: &Value) {
    tally.check(&format!("{whose}: counts are exact"), equal(&seen["error_max"], &json!(0)));
    let completed = equal(&seen["refusal"], &Value::Null);
    tally.check(&format!("{whose}: no reading is refused"), completed);
}

/// Both domains count, while their vCPUs are moved between the same physical CPUs.
fn together(tally: &mut Tally, host: &Host) -> Result<()> {
    let mut tenant = counting("count", host, REGIONS)?;
    let clears = host.xen.stats()?.residue_clears;
    for (how, places) in [("apart", counting::APART), ("crossed", counting::CROSSED)] {
        let (ours, theirs) = beside(&host.xen, places[0], &mut tenant)?;
        for (whose, seen) in [(CONTROL, ours), (TENANT, theirs)] {
            println!("{whose}, counters {how}: {seen:#}");
            let name = format!("{whose}, counters {how}");
            exact(tally, &name, &seen);
            // A counter of the control domain's first set may count on during the second.
            if whose == TENANT || how == "apart" {
                tally.check(
                    &format!("{name}: no counter holds what the other domain did"),
                    equal(&seen["residue_max"], &json!(0)),
                );
            }
            let hard = |key: &str| seen[key].as_u64().is_some_and(|times| times > 0);
            let hard = ["regions", "vcpu_switches", "vcpu_migrations"].into_iter().all(hard);
            tally.check(&format!("{name}: vCPUs were preempted and moved"), equal(hard, true));
        }
    }
    let clears = host.xen.stats()?.residue_clears - clears;
    println!("counters were cleared {clears} times");
    tally.check("counters were cleared between the domains", equal(clears > 0, true));
    let domain = tenant.domain;
    tenant.destroy()?;
    tally.check("a tenant that counted leaves nothing", gone(&host.xen, domain));
    Ok(())
}

/// Counts until the tenant says what it has seen; gives what this domain and the tenant have.
fn beside(xen: &Xen, places: Places, tenant: &mut Tenant) -> Result<(Value, Value)> {
    let cpus = &cpus()?;
    let tenant_cpus = &Vec::from_iter(0..VCPUS);
    let (domain, stop) = (tenant.domain, &AtomicBool::new(false));
    let go_on = move |_| !stop.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let ours = scope.spawn(move || counting::run(places, 1, go_on));
        scope.spawn(move || disturb::vcpus(xen, CONTROL_DOMAIN, cpus, PCPUS, 1, stop));
        scope.spawn(move || disturb::vcpus(xen, domain, tenant_cpus, PCPUS, 1, stop));
        let theirs = tenant.hear();
        stop.store(true, Ordering::Relaxed);
        let ours = ours.join().expect("no thread panics");
        Ok((ours?, theirs?))
    })
}

/// Waits until a destroyed domain is forgotten, which it is when its last page is free.
pub fn gone(xen: &Xen, domain: u16) -> Result<(), String> {
    let mut found = Ok(());
    for _ in 0..1_000 {
        found = xen.set_affinity(domain, 0, 1);
        if found == Err(Refusal::ESRCH) {
            return Ok(());
        }
        sleep(Duration::from_millis(10));
    }
    Err(format!("something holds the domain, which answers {found:?}"))
}
