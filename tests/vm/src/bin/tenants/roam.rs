// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A PVH tenant that counts and samples while it is saved, restored and migrated.
//!
//! What it executes is known to the instruction.  Nothing of it may be lost or counted twice, and
//! every period that passes is told once; or, where it may not count any more, it is told so.

use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use perfctr::rdpmc::survive_faults;
use serde_json::{Value, json};
use shared_abi::limits::PAGE_BYTES;
use vm_tests::module;
use vm_tests::region;
use vm_tests::round::Constants;
use vm_tests::stats::ModuleStats;
use vm_tests::tally::{Tally, equal};
use vm_tests::toolstack::{Kind, Tenant, Tsc, hear, mount_statistics, say};
use vm_tests::volume::pick;

use crate::control::{AMID, Host, VCPUS, begins, counts_on, exact, says};
use crate::counting::{self, Domain};
use crate::samples;

/// Pages that a tenant writes to again and again: many more than those that `xl` leaves to the end
/// of a migration, for which it stops the tenant.
const DIRTIED: usize = 1024;
/// Between one time and the next.
const BETWEEN: Duration = Duration::from_millis(10);

/// What happens to a tenant that counts: its name, and how.
type Scene = (&'static str, fn(&Host, &mut Tenant) -> Result<()>);

/// The first two are the usual ones.
const SCENES: [Scene; 3] = [
    ("is saved and restored", |host, tenant| {
        tenant.save_and_restore()?;
        host.invite(tenant)
    }),
    ("is migrated while it executes", |_, tenant| tenant.migrate(false)),
    ("is saved and goes on", |_, tenant| tenant.checkpoint()),
];

/// The control domain's part: every domain may count.
pub fn control() -> Result<ExitCode> {
    let host = Host::open(true)?;
    let mut tally = Tally::default();
    let whole = roam(&mut tally, &host, &SCENES[..pick(2, SCENES.len())]);
    let outcome = whole.map_err(|error| format!("{error:#}"));
    tally.check("a PVH tenant goes through all of it", outcome);
    Ok(tally.finish())
}

/// All that happens to a tenant.
fn roam(tally: &mut Tally, host: &Host, scenes: &[Scene]) -> Result<()> {
    let mut tenant = Tenant::create_kind(Kind::Pvh, "roamer", VCPUS, Tsc::Native, "roam")?;
    host.invite(&tenant)?;
    // To step through what is counted, and through what samples.
    begins(&mut tenant)?;
    begins(&mut tenant)?;
    for (what, act) in scenes {
        let whose = format!("a PVH tenant that {what}");
        let seen = scene(&mut tenant, |tenant| counts_on(host, || act(host, tenant)));
        right(tally, &whose, &seen.context(whose.clone())?);
    }
    let whose = "a PVH tenant that is migrated where it may not count";
    let seen = scene(&mut tenant, |tenant| forbidden(host, tenant));
    told(tally, whose, &seen.context(whose)?);
    tenant.destroy()
}

/// Has the tenant count while this happens; gives what it has seen.
fn scene(tenant: &mut Tenant, act: impl FnOnce(&mut Tenant) -> Result<()>) -> Result<Value> {
    tenant.tell(&json!("count"))?;
    begins(tenant)?;
    sleep(AMID);
    act(tenant)?;
    sleep(AMID);
    tenant.tell(&json!("stop"))?;
    tenant.hear()
}

/// Migrates it, and lets it go on where it may not count.
fn forbidden(host: &Host, tenant: &mut Tenant) -> Result<()> {
    tenant.migrate(true)?;
    host.xen.allow(tenant.domain, false)?;
    tenant.unpause()
}

/// Nothing was lost or counted twice, and everything went on.
fn right(tally: &mut Tally, whose: &str, seen: &Value) {
    println!("{whose}: {seen:#}");
    exact(tally, whose, &seen["counted"]);
    let samples = &seen["sampled"];
    tally.check(&format!("{whose}: samples go on"), equal(&samples["refusal"], &Value::Null));
    let elsewhere = equal(&samples["imode_elsewhere"], &json!(0));
    tally.check(&format!("{whose}: signals come to who samples"), elsewhere);
    let kept = equal(seen["written"].is_u64(), true);
    tally.check(&format!("{whose}: memory keeps what is written"), kept);
    all_told(tally, whose, samples);
}

/// Each period that has passed was told once, and what was counted beside is exact.
fn all_told(tally: &mut Tally, whose: &str, samples: &Value) {
    let some = samples["imode_overflows"].as_u64().is_some_and(|told| told > 0);
    tally.check(&format!("{whose}: overflows are told"), equal(some, true));
    // What is told late is told together with what follows, and the module says so.
    let merged = equal(&samples["imode_lost"], &samples["merged"]);
    tally.check(&format!("{whose}: every period is told, if with others"), merged);
    for key in ["imode_extra", "imode_error_max"] {
        tally.check(&format!("{whose}: {key} is 0"), equal(&samples[key], &json!(0)));
    }
}

/// It was exact until there were no numbers any more, but why.
fn told(tally: &mut Tally, whose: &str, seen: &Value) {
    println!("{whose}: {seen:#}");
    let error_max = equal(&seen["counted"]["error_max"], &json!(0));
    tally.check(&format!("{whose}: counts until then are exact"), error_max);
    for which in ["counted", "sampled"] {
        let refusal = says(&seen[which]["refusal"], &["EPERM", "Operation not permitted"]);
        tally.check(&format!("{whose} is told so in place of numbers: {which}"), refusal);
    }
    all_told(tally, whose, &seen["sampled"]);
}

/// The tenant's part, which ends with the domain.
pub fn tenant() -> Result<()> {
    survive_faults()?;
    mount_statistics()?;
    module::load()?;
    // Found out before there are other threads.
    region::apart()?;
    say(&json!("ready"));
    let constants = samples::prepare()?;
    say(&json!("ready"));
    loop {
        let asked = hear()?;
        ensure!(asked == "count", "{asked} is asked");
        say(&count(&constants)?);
    }
}

/// Counts, samples and writes to memory until it is told to stop.
fn count(constants: &Constants) -> Result<Value> {
    let (stop, begun) = (&AtomicBool::new(false), &Barrier::new(2));
    let go_on = |_| !stop.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let counting = scope.spawn(move || {
            let domain = Domain::new(counting::APART[1]);
            begun.wait();
            domain?.count(2, go_on)
        });
        begun.wait();
        let sampling = scope.spawn(move || sample(constants, go_on));
        let writing = scope.spawn(move || dirty(stop));
        say(&json!("ready"));
        let asked = hear();
        stop.store(true, Ordering::Relaxed);
        let [counted, sampled, written] =
            [counting, sampling, writing].map(|thread| thread.join().expect("no thread panics"));
        ensure!(asked? == "stop", "something else is asked");
        Ok(json!({ "counted": counted?, "sampled": sampled?, "written": written? }))
    })
}

/// What samples have told, and how many periods were told with others by the module's account.
fn sample(constants: &Constants, go_on: impl Fn(u64) -> bool + Sync) -> Result<Value> {
    let before = ModuleStats::read()?;
    let mut sampled = samples::take(constants, go_on)?;
    sampled["merged"] = ModuleStats::read()?.growth(&before, "overflows_merged")?.into();
    Ok(sampled)
}

/// Writes to memory, which keeps what was written the time before; gives how often.
fn dirty(stop: &AtomicBool) -> Result<Value> {
    let mut memory = vec![0_u64; DIRTIED * PAGE_BYTES / size_of::<u64>()];
    let mut times = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        for (number, page) in memory.chunks_exact_mut(PAGE_BYTES / size_of::<u64>()).enumerate() {
            ensure!(page[0] == times, "page {number} holds {}, not {times}", page[0]);
            page[0] = times + 1;
        }
        times += 1;
        sleep(BETWEEN);
    }
    let kept = memory.chunks_exact(PAGE_BYTES / size_of::<u64>()).all(|page| page[0] == times);
    ensure!(kept, "a page does not hold {times}");
    Ok(times.into())
}
