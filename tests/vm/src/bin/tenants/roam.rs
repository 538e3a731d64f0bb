// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests tenants that count and sample while they are saved, restored and migrated, and while their
//! memory and vCPUs are reduced and extended.
//!
//! Their execution is known to the instruction. No event may be lost or counted twice, and every
//! period that passes is signalled once. If they may not count any more, they have to get an error.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};
use nix::sys::reboot::{RebootMode, reboot};
use serde_json::{Value, json};
use shared_abi::limits::PAGE_BYTES;
use vm_tests::host::Host as _;
use vm_tests::interrupts::{Interrupt, received};
use vm_tests::kvm::Kvm;
use vm_tests::module;
use vm_tests::region;
use vm_tests::round::Constants;
use vm_tests::sampled;
use vm_tests::stats::ModuleStats;
use vm_tests::tally::{Tally, equal};
use vm_tests::toolstack::{Kind, Tenant, Tsc, Wanted, mount_statistics, receive, send};
use vm_tests::volume::pick;

use crate::control::{Host, TIME_TO_COUNT, VCPUS, begins, contains_any, counts_on, exact, gone};
use crate::counting::{self, Domain};
use crate::{samples, successor};

/// The kinds of tenants. The usual run has the first one only.
const KINDS: [Kind; 3] = [Kind::Pvh, Kind::Hvm, Kind::Pv];
/// The memory that a tenant has, and the smaller one that it has for a while.
const MEMORY_MIB: [u32; 2] = [256, 192];
/// The number of pages to which a tenant writes again and again. This is many more than the number
/// that `xl` leaves to the end of a migration, for which it stops the tenant.
const DIRTIED: usize = 1024;
/// The time between two rounds of writing.
const BETWEEN: Duration = Duration::from_millis(10);
/// How long a tenant's kernel may take until it uses other vCPUs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What happens to a tenant that counts: its name, and how.
type Scene = (&'static str, fn(&Host, &mut Tenant) -> Result<()>);

/// The scenes. The usual run has the first two. The last one is not for HVM tenants, whose CPUs
/// come by ACPI.
const SCENES: [Scene; 5] = [
    ("is saved and restored", |host, tenant| {
        tenant.save_and_restore()?;
        host.invite(tenant)
    }),
    ("is migrated while it executes", |_, tenant| tenant.migrate(false)),
    ("is saved and goes on", |_, tenant| tenant.checkpoint()),
    ("gives memory back and gets it again", |_, tenant| {
        let [all, less] = MEMORY_MIB;
        // An HVM tenant's last MiB is not listed.
        let unlisted = all - tenant.memory()?;
        tenant.set_memory(less, less - unlisted)?;
        sleep(TIME_TO_COUNT);
        tenant.set_memory(all, all - unlisted)
    }),
    ("loses a vCPU and gets it again", |_, tenant| {
        for vcpus in [VCPUS - 1, VCPUS] {
            tenant.set_vcpus(vcpus)?;
            let reply = tenant.request("vcpus", &vcpus.to_string())?;
            ensure!(reply == "ready", "the tenant says {reply}");
            sleep(TIME_TO_COUNT);
        }
        Ok(())
    }),
];

/// Runs in the control domain. Every domain may count.
pub fn control() -> Result<ExitCode> {
    let host = Host::open(true)?;
    let mut tally = Tally::default();
    let (kinds, scenes) = pick((1, 2), (KINDS.len(), SCENES.len()));
    for &kind in &KINDS[..kinds] {
        let scenes = if kind == Kind::Hvm { scenes.min(SCENES.len() - 1) } else { scenes };
        let outcome = roam(&mut tally, &host, kind, &SCENES[..scenes]);
        let name = format!("{} goes through all of it", kind.described());
        tally.check(&name, outcome.map_err(|error| format!("{error:#}")));
        let name = format!("{} that reboots while it counts leaves nothing", kind.described());
        tally.check(&name, reboots(&host, kind).map_err(|error| format!("{error:#}")));
    }
    if KINDS[..kinds].contains(&Kind::Hvm) {
        successor::control(&mut tally, &host)?;
    }
    Ok(tally.finish())
}

/// Does everything that happens to a tenant of this kind.
fn roam(tally: &mut Tally, host: &Host, kind: Kind, scenes: &[Scene]) -> Result<()> {
    let mut tenant = Tenant::create_kind(kind, "roamer", VCPUS, Tsc::Native, "roam")?;
    host.invite(&tenant)?;
    // This takes long, since the tenant steps through its counting and its sampling.
    begins(&mut tenant)?;
    begins(&mut tenant)?;
    for (what, act) in scenes {
        let whose = format!("{} that {what}", kind.described());
        let seen = scene(&mut tenant, |tenant| counts_on(host, || act(host, tenant)));
        check_exact(tally, &whose, &seen.context(whose.clone())?);
    }
    let whose = format!("{} that is migrated where it may not count", kind.described());
    let seen = scene(&mut tenant, |tenant| forbidden(host, tenant));
    check_refused(tally, &whose, &seen.context(whose.clone())?);
    host.xen.allow(tenant.domain, true)?;
    for which in ["the first", "the second"] {
        let whose = format!("{} that is allowed again, {which} time", kind.described());
        let seen = scene(&mut tenant, |_| Ok(()));
        check_exact(tally, &whose, &seen.context(whose.clone())?);
    }
    tenant.destroy()
}

/// Creates a tenant with this role, whose threads count and sample.
pub fn counting(host: &Host, wanted: &Wanted<'_>) -> Result<Tenant> {
    let mut tenant = Tenant::create_wanted(wanted)?;
    host.invite(&tenant)?;
    begins(&mut tenant)?;
    begins(&mut tenant)?;
    counts_on(host, || {
        tenant.send(&json!("count"))?;
        begins(&mut tenant)
    })?;
    Ok(tenant)
}

/// Makes a tenant reboot while its threads count and sample. Xen gets back all its pages, also
/// those of its vCPUs.
fn reboots(host: &Host, kind: Kind) -> Result<()> {
    let wanted = Wanted::usual(kind, "rebooter", VCPUS, Tsc::Native, "roam");
    let mut tenant = counting(host, &wanted)?;
    tenant.send(&json!("reboot"))?;
    tenant.shut_down()?;
    ensure!(tenant.is_silent(), "it says {}", tenant.receive()?);
    let domain = tenant.domain;
    tenant.destroy()?;
    gone(&host.xen, domain).map_err(Error::msg)
}

/// Makes the tenant count while this happens. Returns the tenant's results.
fn scene(tenant: &mut Tenant, act: impl FnOnce(&mut Tenant) -> Result<()>) -> Result<Value> {
    tenant.send(&json!("count"))?;
    begins(tenant)?;
    sleep(TIME_TO_COUNT);
    act(tenant)?;
    sleep(TIME_TO_COUNT);
    tenant.send(&json!("stop"))?;
    tenant.receive()
}

/// Migrates the tenant, and lets it continue where it may not count.
fn forbidden(host: &Host, tenant: &mut Tenant) -> Result<()> {
    tenant.migrate(true)?;
    host.xen.allow(tenant.domain, false)?;
    tenant.unpause()
}

/// Checks that nothing was lost or counted twice, and that everything continued.
fn check_exact(tally: &mut Tally, whose: &str, seen: &Value) {
    println!("{whose}: {seen:#}");
    exact(tally, whose, &seen["counted"]);
    let samples = &seen["sampled"];
    tally.check(&format!("{whose}: samples go on"), equal(&samples["refusal"], &Value::Null));
    let elsewhere = equal(&samples["imode_elsewhere"], &json!(0));
    tally.check(&format!("{whose}: signals come to who samples"), elsewhere);
    let kept = equal(seen["written"].is_u64(), true);
    tally.check(&format!("{whose}: memory keeps what is written"), kept);
    all_told(tally, whose, samples);
    // A late period is merged with one that follows, and the module says so. Or the counters are
    // stopped first, and nobody is told.
    let merged = equal(&samples["imode_merged"], &samples["merged"]);
    tally.check(&format!("{whose}: every period is delivered in time, or with others"), merged);
}

/// Checks that each period that has passed was signalled once, and that other counts are exact.
fn all_told(tally: &mut Tally, whose: &str, samples: &Value) {
    let some = samples["imode_overflows"].as_u64().is_some_and(|overflows| overflows > 0);
    tally.check(&format!("{whose}: overflows are delivered"), equal(some, true));
    for key in ["imode_extra", "imode_error_max"] {
        tally.check(&format!("{whose}: {key} is 0"), equal(&samples[key], &json!(0)));
    }
}

/// Checks that numbers were exact until reads failed, and that reads then gave the reason.
fn check_refused(tally: &mut Tally, whose: &str, seen: &Value) {
    println!("{whose}: {seen:#}");
    let error_max = equal(&seen["counted"]["error_max"], &json!(0));
    tally.check(&format!("{whose}: counts until then are exact"), error_max);
    for which in ["counted", "sampled"] {
        let refusal = contains_any(&seen[which]["refusal"], &["EPERM", "Operation not permitted"]);
        tally.check(&format!("{whose} is told so in place of numbers: {which}"), refusal);
    }
    all_told(tally, whose, &seen["sampled"]);
    // The last region, which has no numbers, may have had some of these periods.
    let [seen, reported] = ["imode_merged", "merged"].map(|key| seen["sampled"][key].as_u64());
    let enough = equal(seen.is_some() && seen <= reported, true);
    tally.check(&format!("{whose}: until then, every period is delivered, or with others"), enough);
}

/// Runs in a guest of KVM, whose host moves it from one process to another. The guest is the
/// tenant, and itself asks for these moves.
pub fn alone() -> Result<ExitCode> {
    region::overhead()?;
    let constants = samples::prepare()?;
    let kvm = &Kvm::open()?;
    let mut tally = Tally::default();
    let moved = |live, allowed| {
        count(&constants, || {
            sleep(TIME_TO_COUNT);
            kvm.move_to_another(live, allowed)?;
            sleep(TIME_TO_COUNT);
            Ok(())
        })
    };
    for (what, live) in [("is saved and restored", false), ("is migrated while it executes", true)]
    {
        check_exact(&mut tally, &format!("a guest of KVM that {what}"), &moved(live, true)?);
    }
    check_refused(
        &mut tally,
        "a guest of KVM that is migrated where it may not count",
        &moved(true, false)?,
    );
    kvm.allow(true)?;
    let start = Instant::now();
    while let Err(error) = Domain::new(counting::DISJOINT[1]) {
        ensure!(start.elapsed() < PATIENCE, "a guest that is allowed again: {error:#}");
        sleep(BETWEEN);
    }
    let seen = count(&constants, || {
        sleep(2 * TIME_TO_COUNT);
        Ok(())
    })?;
    check_exact(&mut tally, "a guest of KVM that is allowed again", &seen);
    receives_nothing_without_the_module(&mut tally, kvm)?;
    Ok(tally.finish())
}

/// Checks that a guest without the module gets no interrupt. The interrupt that reports a restore
/// would be a sign of broken hardware to its kernel. The driver sends it none, whether the guest
/// may count or not.
fn receives_nothing_without_the_module(tally: &mut Tally, kvm: &Kvm) -> Result<()> {
    let before = received(Interrupt::Nmi)?;
    kvm.move_to_another(false, false)?;
    let heard = received(Interrupt::Nmi)?;
    tally.check("NMIs tell the module that its guest was restored", equal(heard > before, true));
    sampled::close_all();
    module::unload_when_idle()?;
    for allowed in [false, true, true] {
        let before = received(Interrupt::Nmi)?;
        kvm.move_to_another(false, allowed)?;
        sleep(TIME_TO_COUNT);
        let name =
            format!("a guest of KVM without the module receives nothing: allowed is {allowed}");
        tally.check(&name, equal(received(Interrupt::Nmi)?, before));
    }
    Ok(())
}

/// Runs in the tenant, and ends with the domain.
pub fn tenant() -> Result<()> {
    mount_statistics()?;
    module::load()?;
    // The overhead is found before there are other threads.
    region::overhead()?;
    send(&json!("ready"));
    let constants = samples::prepare()?;
    send(&json!("ready"));
    loop {
        let asked = receive()?;
        ensure!(asked == "count", "{asked} is asked");
        let seen = count(&constants, || {
            send(&json!("ready"));
            until_told()
        })?;
        send(&seen);
    }
}

/// Counts, samples and writes to memory while `act` is done.
fn count(constants: &Constants, act: impl FnOnce() -> Result<()>) -> Result<Value> {
    let (stop, begun) = (&AtomicBool::new(false), &Barrier::new(2));
    let go_on = |_| !stop.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let counting = scope.spawn(move || {
            let domain = Domain::new(counting::DISJOINT[1]);
            begun.wait();
            domain?.count(2, go_on)
        });
        begun.wait();
        let sampling = scope.spawn(move || sample(constants, go_on));
        let writing = scope.spawn(move || dirty(stop));
        let acted = act();
        stop.store(true, Ordering::Relaxed);
        let [counted, sampled, written] =
            [counting, sampling, writing].map(|thread| thread.join().expect("no thread panics"));
        acted?;
        Ok(json!({ "counted": counted?, "sampled": sampled?, "written": written? }))
    })
}

/// Waits until the tenant is told to stop, and executes other orders until then.
fn until_told() -> Result<()> {
    loop {
        let asked = receive()?;
        if asked == "stop" {
            return Ok(());
        }
        if asked == "reboot" {
            match reboot(RebootMode::RB_AUTOBOOT)? {}
        }
        if asked == "kexec" {
            match successor::start("successor")? {}
        }
        ensure!(asked[0] == "vcpus", "{asked} is asked");
        use_vcpus(asked[1].as_str().context("not a number")?.parse()?)?;
        send(&json!("ready"));
    }
}

/// Waits until the kernel uses this many vCPUs. New ones have to be brought online, which udev does
/// elsewhere.
fn use_vcpus(wanted: usize) -> Result<()> {
    let start = Instant::now();
    loop {
        let cpus = (0..VCPUS).map(|cpu| format!("/sys/devices/system/cpu/cpu{cpu}"));
        let there: Vec<_> = cpus.filter(|cpu| Path::new(cpu).exists()).collect();
        let mut used = 0;
        for cpu in &there {
            // The first CPU cannot be taken offline, and has no such file.
            let online = format!("{cpu}/online");
            let off = fs::read_to_string(&online).is_ok_and(|text| text.trim() == "0");
            if off && there.len() == wanted {
                match fs::write(&online, "1") {
                    // The file exists before the kernel considers the CPU present.
                    Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (),
                    result => result?,
                }
            }
            used += usize::from(!off);
        }
        if (there.len(), used) == (wanted, wanted) {
            return Ok(());
        }
        ensure!(start.elapsed() < PATIENCE, "the kernel uses {used} vCPUs of {}", there.len());
        sleep(BETWEEN);
    }
}

/// Samples. Returns the contents of the signals, and how many periods were merged by the module's
/// account.
fn sample(constants: &Constants, go_on: impl Fn(u64) -> bool + Sync) -> Result<Value> {
    let before = ModuleStats::read()?;
    let mut sampled = samples::take(constants, go_on)?;
    sampled["merged"] = ModuleStats::read()?.growth(&before, "overflows_merged")?.into();
    Ok(sampled)
}

/// Writes to memory, and checks that it keeps what was written the time before. Returns how often.
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
