// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests a tenant that the host lets count within limits of its own.

use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use perfctr::overflow::Ring;
use perfctr::{Event, Provider, Session};
use serde_json::{Value, json};
use shared_abi::hypercall::HvDomain;
use shared_abi::sync::Ordering::Relaxed;
use vm_tests::module;
use vm_tests::region::Region;
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::toolstack::{Tenant, Tsc, send};

use crate::control::{Host, VCPUS, contains_any, exact};
use crate::counting::{CROSSED, Domain, THREADS_PER_VCPU};

/// The limits of the tenant: two counters, and one overflow in a millisecond.
const COUNTERS: u32 = 2;
const OVERFLOWS_PER_MS: u32 = 1;
/// A period that ends many times in a millisecond.
const PERIOD: u64 = 1_000;
/// How long the tenant samples.
const SAMPLED: Duration = Duration::from_secs(2);
/// The number of regions that each of the tenant's threads measures.
const REGIONS: u64 = 200;
const LONG: Region = Region { first: 100_000, second: 100_000 };

/// Runs in the control domain.
pub fn control(tally: &mut Tally, host: &Host) -> Result<()> {
    let mut tenant = Tenant::create("limited", VCPUS, Tsc::Native, "limited")?;
    let domid = tenant.domain.into();
    let mut wanted =
        HvDomain { domid, enabled: 1, counters_max: COUNTERS, overflows_per_ms: OVERFLOWS_PER_MS };
    host.xen.decide(wanted)?;
    let listed = host.xen.domains()?.into_iter().find(|domain| domain.domid == domid);
    tally.check("the host's list says which limits a tenant has", equal(listed, Some(wanted)));
    tenant.unpause()?;
    let seen = tenant.receive()?;
    println!("a tenant with limits of its own: {seen:#}");
    let counters = ["general", "fixed"].map(|key| seen[key].clone());
    let name = "a tenant with a limit of two counters has two";
    tally.check(name, equal(counters, [json!(COUNTERS), json!(0)]));
    let name = "a tenant with a limit of two counters is refused a third one";
    tally.check(name, equal(seen["third"].is_string(), true));
    let name = "a tenant's own limit puts its overflows off";
    tally.check(name, equal(seen["throttled"].as_u64() > Some(0), true));
    let seen = tenant.receive()?;
    println!("a tenant with limits of its own: {seen:#}");
    exact(tally, "a tenant with limits of its own", &seen);
    let reply = tenant.receive()?;
    ensure!(reply == "ready", "the tenant says {reply}");
    wanted.counters_max = 1;
    host.xen.decide(wanted)?;
    let seen = tenant.receive()?;
    println!("a tenant that may use fewer counters than it has loaded: {seen:#}");
    let name =
        "a tenant that may use fewer counters than it has loaded: counts until then are exact";
    tally.check(name, equal(&seen["error_max"], &json!(0)));
    let refusal = contains_any(&seen["refusal"], &["ESTALE", "Stale file handle"]);
    tally.check("a tenant that may use fewer counters than it has loaded gets ESTALE", refusal);
    tenant.destroy()
}

/// Runs in the tenant.
pub fn tenant() -> Result<()> {
    module::load()?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    let caps = session.description().caps.context("the provider does not say what there is")?;
    let three = [Event::INSTRUCTIONS.user(), Event::BRANCHES.user(), Event::CYCLES.user()];
    let third = session.start(&three).err().map(|error| error.to_string());
    drop(session);
    send(&json!({
        "general": caps.general, "fixed": caps.fixed, "third": third, "throttled": throttled()?,
    }));
    let domain = Domain::new(CROSSED[1])?;
    send(&domain.count(2, |measured| measured < REGIONS)?);
    let counting = AtomicUsize::new(0);
    // The reason comes with the first load after the change. Before that, readers only see that the
    // counters were stopped.
    let mut seen = domain.count(2, |measured| {
        // The limit changes once each thread has counted.
        if measured == 1 && counting.fetch_add(1, Relaxed) + 1 == VCPUS * THREADS_PER_VCPU {
            send(&json!("ready"));
        }
        true
    })?;
    drop(domain);
    seen["refusal"] = refusal_of_a_load();
    send(&seen);
    Ok(())
}

/// Returns how often the hypervisor has put overflows off while this thread caused many.
fn throttled() -> Result<u64> {
    let all = cpus()?;
    let cpu = *all.first().context("there is no CPU")?;
    run_on(SELF, &[cpu])?;
    // The samples are not used, but their signals have to be handled.
    let _ring = Ring::new(libc::SIGURG, 0)?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start_sampling(&[Event::INSTRUCTIONS.user().every(PERIOD)], libc::SIGURG)?;
    let start = Instant::now();
    while start.elapsed() < SAMPLED {
        LONG.execute(&mut 0);
    }
    let page = session.vcpu_page(cpu as u32).context("the vCPU has no page")?;
    let throttled = page.throttled.load(Relaxed);
    run_on(SELF, &all)?;
    Ok(throttled)
}

/// Returns the reason for which two counters cannot count.
fn refusal_of_a_load() -> Value {
    let counted = || -> Result<()> {
        let mut session = Session::open_with(Provider::Paravirt)?;
        session.start(&[Event::INSTRUCTIONS.user(), Event::BRANCHES.user()])?;
        session.read::<2>()?;
        Ok(())
    };
    counted().err().map(|error| format!("{error:#}")).into()
}
