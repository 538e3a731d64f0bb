// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs in the control domain.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use shared_abi::hypercall::HOOK_LOAD;
use vm_tests::disturb;
use vm_tests::raw::Refusal;
use vm_tests::region;
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::cpus;
use vm_tests::toolstack::{self, Kind, Tenant, Tsc};
use vm_tests::volume::pick;
use vm_tests::xen::{CONTROL_DOMAIN, Xen};

use crate::counting::{self, Domain};
use crate::{events, limited, storm};

/// Physical CPUs that both domains share.
const PCPUS: u32 = 2;
/// vCPUs of a tenant.
pub const VCPUS: usize = 2;
/// Regions that each of the tenant's threads measures, and in the long tier.
const REGIONS: [u64; 2] = [2_000, 4_000];
/// When a tenant has begun to count, it is in the middle of counting after this time.
pub const TIME_TO_COUNT: Duration = Duration::from_secs(2);
/// A reason for which a tenant may not count any more, and how the tenant learns it.
#[derive(Debug)]
pub struct Why {
    /// The error number in the thread's page, or of the module when it is asked.
    pub errno: i32,
    /// Names of that error, of which one is in what the tenant says.
    pub names: [&'static str; 2],
    /// The library's message when the tenant opens a session.
    pub answer: &'static str,
}

/// The host does not let the tenant count.
pub const FORBIDDEN: Why = Why {
    errno: libc::EPERM,
    names: ["EPERM", "Operation not permitted"],
    answer: "the host does not let this domain count; its administrator does so",
};
/// How long it may take until the domains have taken turns on a CPU, or a restored one goes on.
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of changes of domains, on all CPUs, of which one was certainly to this domain and on
/// the CPU that is checked.
const TURNS: u64 = 4;

/// What to do.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Overflows that the driver allows per vCPU and ms.
    rate: u64,
    /// Let every domain count, without being allowed to.
    #[arg(long)]
    all: bool,
}

/// The least number of regions that each thread of the control domain measures, however early a
/// tenant ends.
const BESIDE: u64 = 200;

/// Creates tenants, and judges what they and this domain count.
pub fn run(options: &Options) -> Result<ExitCode> {
    let host = Host::open(options.all)?;
    let mut tally = Tally::default();
    if options.all {
        storm::run(&mut tally, &host, options.rate)?;
        together(&mut tally, &host, Kind::Pv, Past::Unknown)?;
    } else {
        together(&mut tally, &host, Kind::Pv, Past::None)?;
        emulated(&mut tally, &host)?;
        limited::control(&mut tally, &host)?;
        vicissitudes(&mut tally, &host)?;
        storm::run(&mut tally, &host, options.rate)?;
    }
    Ok(tally.finish())
}

/// The hypervisor, and whom it lets count.
#[derive(Debug)]
pub struct Host {
    /// The interface to the hypervisor.
    pub xen: Xen,
    all: bool,
}

impl Host {
    /// Starts the tools. `all` domains may count, or only those that are allowed to.
    pub fn open(all: bool) -> Result<Self> {
        let xen = Xen::open().context("this is not Xen's control domain")?;
        toolstack::start()?;
        // The overhead is found once, which takes long, before a tenant counts.
        region::overhead()?;
        Ok(Self { xen, all })
    }

    /// Lets a tenant count, and unpauses it.
    pub fn invite(&self, tenant: &Tenant) -> Result<()> {
        if !self.all {
            self.xen.allow(tenant.domain, true)?;
        }
        tenant.unpause()
    }
}

/// Tests a tenant that cannot count.
fn emulated(tally: &mut Tally, host: &Host) -> Result<()> {
    let mut tenant = Tenant::create("emulated", VCPUS, Tsc::Emulated, "count 1")?;
    host.invite(&tenant)?;
    refused(tally, "a tenant whose TSC is emulated", &mut tenant, "EOPNOTSUPP")?;
    tenant.destroy()
}

/// Tests a tenant that may not count at first, and then counts while its vCPUs are suspended. It is
/// saved to a file and continues, and is saved and restored again. Then it is restored where it may
/// not count, and in the end it is forbidden to count.
fn vicissitudes(tally: &mut Tally, host: &Host) -> Result<()> {
    let mut tenant = Tenant::create("traveller", VCPUS, Tsc::Native, "travel")?;
    tenant.unpause()?;
    refused(tally, "a tenant that nobody has allowed to count", &mut tenant, "EPERM")?;
    host.xen.allow(tenant.domain, true)?;
    of_perf(tally, host, &mut tenant)?;
    begins(&mut tenant)?;
    sleep(TIME_TO_COUNT);
    tenant.pause()?;
    sleep(TIME_TO_COUNT);
    tenant.unpause()?;
    tenant.checkpoint()?;
    tenant.save_and_restore()?;
    goes_on(host, &tenant)?;
    sleep(TIME_TO_COUNT);
    // If a reading had been refused, the tenant would report it.
    tally.check("a tenant that is restored counts on", equal(tenant.is_silent(), true));
    // Afterwards the host sees it as another domain, which nobody has allowed to count.
    tenant.save_and_restore()?;
    tenant.unpause()?;
    expect_refusal(
        tally,
        "a tenant that is restored where it may not count",
        &mut tenant,
        &FORBIDDEN,
    )?;
    refused(tally, "a tenant that was restored where it may not count", &mut tenant, "EPERM")?;
    host.xen.allow(tenant.domain, true)?;
    begins(&mut tenant)?;
    sleep(TIME_TO_COUNT);
    host.xen.allow(tenant.domain, false)?;
    expect_refusal(tally, "a tenant that is forbidden to count", &mut tenant, &FORBIDDEN)?;
    tenant.destroy()
}

/// Checks that its events of perf count while it is saved and continues, and while it is saved and
/// restored. Then they do not count, and then they count again.
fn of_perf(tally: &mut Tally, host: &Host, tenant: &mut Tenant) -> Result<()> {
    begins(tenant)?;
    sleep(TIME_TO_COUNT);
    // If an event had missed anything, the tenant would report it.
    tenant.checkpoint()?;
    sleep(TIME_TO_COUNT);
    let silent = equal(tenant.is_silent(), true);
    tally.check("perf's events count on in a tenant that is saved and continues", silent);
    tenant.save_and_restore()?;
    goes_on(host, tenant)?;
    sleep(TIME_TO_COUNT);
    tally.check("perf's events count on in a restored tenant", equal(tenant.is_silent(), true));
    host.xen.allow(tenant.domain, false)?;
    events::forbidden(tally, tenant)?;
    host.xen.allow(tenant.domain, true)?;
    events::allowed(tally, tenant)
}

/// Unpauses a restored tenant, and waits until its vCPUs have told the driver anew what to count.
fn goes_on(host: &Host, tenant: &Tenant) -> Result<()> {
    counts_on(host, || host.invite(tenant))
}

/// Calls `act`, and waits until the tenant's vCPUs have told the driver what to count. No other
/// vCPUs count.
pub fn counts_on(host: &Host, act: impl FnOnce() -> Result<()>) -> Result<()> {
    let loads = || Ok::<_, Refusal>(host.xen.stats()?.hook[HOOK_LOAD].calls);
    let (before, start) = (loads()?, Instant::now());
    act()?;
    while loads()? < before + VCPUS as u64 {
        ensure!(start.elapsed() < PATIENCE, "the restored tenant loads nothing");
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Checks that the tenant could read no more numbers, but got the reason, and that all numbers
/// before were exact.
pub fn expect_refusal(
    tally: &mut Tally,
    whose: &str,
    tenant: &mut Tenant,
    why: &Why,
) -> Result<()> {
    let seen = tenant.receive()?;
    println!("{whose}: {seen:#}");
    let exact = equal(&seen["error_max"], &json!(0));
    tally.check(&format!("{whose}: counts until then are exact"), exact);
    let refusal = contains_any(&seen["refusal"], &why.names);
    tally.check(&format!("{whose} is told so in place of numbers"), refusal);
    let held = equal(&seen["held"], &json!(format!("Err(NotLoaded(-{}))", why.errno)));
    tally.check(&format!("{whose} is told so where it was stopped before RDPMC"), held);
    let answer = contains_any(&tenant.receive()?, &[why.answer]);
    tally.check(&format!("{whose} is told so when it opens a session"), answer);
    Ok(())
}

/// Returns an error unless the tenant's answer contains one of these texts.
pub fn contains_any(reply: &Value, words: &[&str]) -> Result<(), String> {
    let text = reply.as_str().unwrap_or_default();
    if words.iter().any(|word| text.contains(word)) { Ok(()) } else { Err(reply.to_string()) }
}

/// Checks that the module gives the reason for its refusal, and that the CPU does not let the
/// tenant read counters.
pub fn refused(tally: &mut Tally, whose: &str, tenant: &mut Tenant, errno: &str) -> Result<()> {
    let reply = tenant.receive()?;
    let is_right = reply["module"].as_str().is_some_and(|refusal| refusal.contains(errno));
    let outcome = if is_right { Ok(()) } else { Err(reply.to_string()) };
    tally.check(&format!("{whose} gets {errno}"), outcome);
    let outcome = equal(&reply["signal"], &json!(libc::SIGSEGV));
    tally.check(&format!("{whose} cannot execute RDPMC"), outcome);
    Ok(())
}

/// Waits until a tenant begins to count.
pub fn begins(tenant: &mut Tenant) -> Result<()> {
    let reply = tenant.receive()?;
    ensure!(reply == "ready", "the tenant says {reply}");
    Ok(())
}

/// The counting on this machine before, of which counters may still hold events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    /// Nothing.
    None,
    /// Something was counted. A domain may find events of its own in counters that it does not use:
    /// those that it had before its vCPUs were told what to count.
    Unknown,
}

/// Makes both domains count, while their vCPUs are moved between the same physical CPUs.
pub fn together(tally: &mut Tally, host: &Host, kind: Kind, past: Past) -> Result<()> {
    let [usual, long] = REGIONS;
    let role = format!("count {}", pick(usual, long));
    let mut tenant = Tenant::create_kind(kind, "count", VCPUS, Tsc::Native, &role)?;
    host.invite(&tenant)?;
    begins(&mut tenant)?;
    let clears = host.xen.stats()?.residue_clears;
    for (how, places) in [("disjoint", counting::DISJOINT), ("crossed", counting::CROSSED)] {
        let control = Domain::new(places[0])?;
        let residue = past == Past::None && how == "disjoint";
        if residue {
            take_turns(&host.xen, tenant.domain)?;
        }
        if how == "disjoint" {
            tenant.send(&json!("count"))?;
            begins(&mut tenant)?;
        }
        let (ours, theirs) = count_together(&host.xen, &control, &mut tenant)?;
        for (whose, seen) in [("the control domain", ours), (kind.described(), theirs)] {
            println!("{whose}, counters {how}: {seen:#}");
            let name = format!("{whose}, counters {how}");
            exact(tally, &name, &seen);
            let hard = |key: &str| seen[key].as_u64().is_some_and(|times| times > 0);
            let hard = ["regions", "vcpu_switches", "vcpu_migrations"].into_iter().all(hard);
            tally.check(&format!("{name}: vCPUs were preempted and moved"), equal(hard, true));
            if residue {
                let name = format!("{name}: no counter holds what the other domain did");
                tally.check(&name, equal(&seen["residue_max"], &json!(0)));
            }
        }
    }
    let clears = host.xen.stats()?.residue_clears - clears;
    println!("counters were cleared {clears} times");
    let domain = tenant.domain;
    tenant.destroy()?;
    let name = format!("{} that counted leaves nothing", kind.described());
    tally.check(&name, gone(&host.xen, domain));
    Ok(())
}

/// Checks that what a domain has counted equals the truth, and that it could always read.
pub fn exact(tally: &mut Tally, whose: &str, seen: &Value) {
    tally.check(&format!("{whose}: counts are exact"), equal(&seen["error_max"], &json!(0)));
    let completed = equal(&seen["refusal"], &Value::Null);
    tally.check(&format!("{whose}: no reading is refused"), completed);
}

/// Waits until this domain, whose vCPUs all count now, has followed the tenant, which executes, on
/// every physical CPU. Until then a counter may hold events of the domain itself: those that it
/// caused while selectors of the previous domain were still set, or those that it counted there
/// before with other counters.
fn take_turns(xen: &Xen, tenant: u16) -> Result<()> {
    for vcpu in 0..VCPUS as u32 {
        xen.set_affinity(tenant, vcpu, 1 << (vcpu % PCPUS))?;
    }
    for pcpu in 0..PCPUS {
        for cpu in cpus()? {
            xen.set_affinity(CONTROL_DOMAIN, cpu as u32, 1 << pcpu)?;
        }
        let clears = xen.stats()?.residue_clears;
        let start = Instant::now();
        while xen.stats()?.residue_clears < clears + TURNS {
            ensure!(start.elapsed() < PATIENCE, "the tenant does not execute");
            sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// Counts until the tenant sends its results. Returns this domain's results and the tenant's.
pub fn count_together(xen: &Xen, control: &Domain, tenant: &mut Tenant) -> Result<(Value, Value)> {
    let cpus = &cpus()?;
    let tenant_cpus = &Vec::from_iter(0..VCPUS);
    let (domain, stop) = (tenant.domain, &AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(move || disturb::domain(xen, CONTROL_DOMAIN, cpus, PCPUS, 1, stop));
        scope.spawn(move || disturb::domain(xen, domain, tenant_cpus, PCPUS, 1, stop));
        let theirs = scope.spawn(move || {
            let reply = tenant.receive();
            stop.store(true, Ordering::Relaxed);
            reply
        });
        // The tenant has begun earlier, and may have ended already.
        let ours = control.count(1, |measured| measured < BESIDE || !stop.load(Ordering::Relaxed));
        let theirs = theirs.join().expect("no thread panics")?;
        Ok((ours?, theirs))
    })
}

/// Waits until Xen has forgotten a destroyed domain, which it does when the domain's last page is
/// free.
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
