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

/// Tenants that cannot count: the module says why, and the CPU does not let them read counters.
fn refusals(tally: &mut Tally, host: &Host) -> Result<()> {
    let cases = [
        ("a tenant that nobody has allowed to count", Tsc::Native, false, "EPERM"),
        ("a tenant whose time-stamp counter is emulated", Tsc::Emulated, true, "EOPNOTSUPP"),
    ];
    for (name, tsc, allowed, errno) in cases {
        let mut tenant = Tenant::create(errno, VCPUS, tsc, "intrude")?;
        host.xen.allow(tenant.domain, allowed)?;
        tenant.unpause()?;
        let said = tenant.hear()?;
        let refusal = said["module"].as_str().unwrap_or_default();
        let expected = if refusal.contains(errno) { Ok(()) } else { Err(said.to_string()) };
        tally.check(&format!("{name} gets {errno}"), expected);
        let outcome = equal(&said["signal"], &json!(libc::SIGSEGV));
        tally.check(&format!("{name} cannot execute RDPMC"), outcome);
        tenant.destroy()?;
    }
    Ok(())
}

/// Both domains count, while their vCPUs are moved between the same physical CPUs.
fn together(tally: &mut Tally, host: &Host) -> Result<()> {
    let mut tenant = Tenant::create("count", VCPUS, Tsc::Native, &format!("count {REGIONS}"))?;
    host.invite(&tenant)?;
    let said = tenant.hear()?;
    ensure!(said == "ready", "the tenant says {said}");
    let clears = host.xen.stats()?.residue_clears;
    for (how, places) in [("apart", counting::APART), ("crossed", counting::CROSSED)] {
        let (ours, theirs) = beside(&host.xen, places[0], &mut tenant)?;
        for (whose, seen) in [("control domain", ours), ("tenant", theirs)] {
            println!("{whose}, counters {how}: {seen:#}");
            let name = |what| format!("{whose}, counters {how}: {what}");
            tally.check(&name("counts are exact"), equal(&seen["error_max"], &json!(0)));
            tally.check(
                &name("no counter holds what the other domain did"),
                equal(&seen["residue_max"], &json!(0)),
            );
            let hard = |key: &str| seen[key].as_u64().is_some_and(|times| times > 0);
            let hard = ["regions", "vcpu_switches", "vcpu_migrations"].into_iter().all(hard);
            tally.check(&name("vCPUs were preempted and moved"), equal(hard, true));
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
