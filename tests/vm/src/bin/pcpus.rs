// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests a physical CPU without counters that comes up in a machine that counts. A thread that
//! executes there gets an error and no numbers. A thread that executes elsewhere notices nothing.
//! Then another CPU is taken offline, and the machine is suspended to RAM.
//!
//! The machine has three physical CPUs, of which the last has no counters and is still down. With
//! `--some` it has two, both are up, and the last one has other counters than the first; only the
//! first part is tested then.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use perf_event_open_sys::bindings::PERF_COUNT_HW_INSTRUCTIONS;
use shared_abi::hypercall::HvStats;
use vm_tests::disturb::{hotplug, suspend_to_ram};
use vm_tests::perf::{Event, Whose, generic};
use vm_tests::region::{self, Region};
use vm_tests::tally::Tally;
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::witness::Witness;
use vm_tests::xen::{CONTROL_DOMAIN, Xen};

/// The vCPU that is moved. The others stay.
const MOVED: usize = 1;
/// The physical CPU without counters that comes up, and all others as a mask.
const UNFIT: u32 = 2;
const FIT: u64 = 0b11;
/// The physical CPU with counters that goes and comes back.
const DEPARTING: u32 = 1;
/// What perf's events count, and the region by which the cost of a reading is found.
const REGION: Region = Region { first: 1_000_000, second: 1 };
const SHORTEST: Region = Region { first: 1, second: 1 };
/// The physical CPU that is reset when the machine sleeps, and does not come up anew then.
const BOOT: u32 = 0;
/// How long it may take until the vCPU has been moved.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> Result<ExitCode> {
    let xen = Xen::open().context("this is not Xen's control domain")?;
    let is_up = std::env::args().nth(1).as_deref() == Some("--some");
    // The machine whose CPUs are all up has one CPU fewer.
    let (unfit, fit) = if is_up { (UNFIT - 1, FIT >> 1) } else { (UNFIT, FIT) };
    for cpu in cpus()? {
        xen.set_affinity(CONTROL_DOMAIN, cpu as u32, fit)?;
    }
    // A process without other threads is stepped.
    region::overhead()?;
    if !is_up {
        hotplug("cpu-online", unfit)?;
    }
    let (mut tally, stop) = (Tally::default(), AtomicBool::new(false));
    let beside = thread::scope(|scope| -> Result<_> {
        let beside = scope.spawn(|| count_until(&stop));
        let done = away(&xen, unfit, fit, &mut tally);
        stop.store(true, Ordering::Relaxed);
        let beside = beside.join().expect("it does not panic");
        done?;
        Ok(beside)
    })?;
    let beside = beside.map_err(|error| format!("{error:#}"));
    println!("readings beside: {beside:?}");
    tally.check("threads elsewhere go on counting exactly", beside.map(drop));
    if is_up {
        return Ok(tally.finish());
    }
    hotplug("cpu-offline", unfit)?;
    let kept = statistics_are_kept(&xen).map_err(|error| format!("{error:#}"));
    tally.check("statistics keep what a physical CPU has done that goes", kept);
    let awake = counts_after_sleep(&xen).map_err(|error| format!("{error:#}"));
    tally.check("a thread counts exactly on the boot CPU after the machine has slept", awake);
    let awake = events_after_sleep().map_err(|error| format!("{error:#}"));
    tally.check("perf's events count exactly after the machine has slept", awake);
    Ok(tally.finish())
}

/// Counts on another vCPU until `stop`. Returns how often the counts were checked and exact.
fn count_until(stop: &AtomicBool) -> Result<u64> {
    run_on(SELF, &[0])?;
    let witness = Witness::new()?;
    let mut exact = 0;
    while !stop.load(Ordering::Relaxed) || exact == 0 {
        witness.unchanged().map_err(anyhow::Error::msg)?;
        exact += 1;
    }
    Ok(exact)
}

/// Counts on a vCPU that is moved to the physical CPU without counters, and back to those of the
/// mask `fit`.
fn away(xen: &Xen, unfit: u32, fit: u64, tally: &mut Tally) -> Result<()> {
    run_on(SELF, &[MOVED])?;
    let witness = Witness::new()?;
    tally.check("threads count before", witness.unchanged());
    xen.set_affinity(CONTROL_DOMAIN, MOVED as u32, 1 << unfit)?;
    let outcome = until(|| witness.unchanged().err());
    println!("on a physical CPU without counters: {outcome:?}");
    // The page gives the reason, or the kernel, which is asked if the page cannot tell.
    let outcome = names(outcome.as_deref(), &["EPERM", "Operation not permitted"]);
    tally.check("a physical CPU without counters gives no numbers", outcome);
    drop(witness);
    let outcome = Witness::new().err().map(|error| format!("{error:#}"));
    println!("a new session there: {outcome:?}");
    tally.check("nor to a new session", names(outcome.as_deref(), &["No such device"]));
    xen.set_affinity(CONTROL_DOMAIN, MOVED as u32, fit)?;
    let again = until(|| Witness::new().ok());
    let again = again.map_or(Err("it does not".into()), |witness| witness.unchanged());
    tally.check("a new session elsewhere counts exactly", again);
    Ok(())
}

/// Checks that none of the host's statistics becomes smaller when a physical CPU goes or comes.
fn statistics_are_kept(xen: &Xen) -> Result<()> {
    let statistics = || -> Result<Vec<u64>> {
        let HvStats { hook, hypercalls, .. } = xen.stats()?;
        Ok(hook.iter().map(|hook| hook.calls).chain([hypercalls]).collect())
    };
    let mut before = statistics()?;
    for command in ["cpu-offline", "cpu-online"].repeat(2) {
        hotplug(command, DEPARTING)?;
        let after = statistics()?;
        let is_kept = before.iter().zip(&after).all(|(before, after)| before <= after);
        ensure!(is_kept, "{before:?} before {command}, {after:?} after it");
        before = after;
    }
    Ok(())
}

/// Checks a thread that counts on the boot CPU while the machine is suspended to RAM, which resets
/// the CPU. Nobody samples, because then the driver would write the register that enables counters.
fn counts_after_sleep(xen: &Xen) -> Result<()> {
    run_on(SELF, &[0])?;
    xen.set_affinity(CONTROL_DOMAIN, 0, 1 << BOOT)?;
    let witness = Witness::new()?;
    witness.exact().context("before it sleeps")?;
    suspend_to_ram()?;
    let awake = witness.exact();
    xen.set_affinity(CONTROL_DOMAIN, 0, FIT)?;
    awake
}

/// Checks perf's events of a thread and of the first virtual CPU that count while the machine is
/// suspended to RAM. Linux takes the other virtual CPUs offline for that time, which ends their
/// events.
fn events_after_sleep() -> Result<()> {
    let open = |whose| Event::open(generic(PERF_COUNT_HW_INSTRUCTIONS), whose, None);
    let thread = open(Whose::Thread(SELF))?;
    let of_cpu = open(Whose::Cpu(0))?;
    let exact = || -> Result<()> {
        counts_region(&thread, |found, executed| found == executed).context("a thread's event")?;
        // It also counts other programs.
        counts_region(&of_cpu, |found, executed| found >= executed).context("a CPU's event")
    };
    run_on(SELF, &[0])?;
    exact().context("before it sleeps")?;
    let witness = Witness::new()?;
    let before = (thread.count()?, witness.session().read::<1>()?);
    suspend_to_ram()?;
    let (inner, outer) = (witness.session().read::<1>()?, thread.count()?);
    // perf's two readings are around the library's.
    let (inner, outer) = (inner.counts[0] - before.1.counts[0], outer - before.0);
    ensure!(outer >= inner, "perf has counted {outer}, and the library {inner} within that");
    exact().context("after it has slept")
}

/// Checks what an event counts while this thread executes a region. What the two readings add is
/// found by a region of hardly any instruction.
fn counts_region(event: &Event, is_right: impl Fn(u64, u64) -> bool) -> Result<()> {
    // The first reading of all may execute what the others do not.
    let [_, least, found] =
        [SHORTEST, SHORTEST, REGION].map(|region| counted(event, region).context("it has none"));
    let (executed, found) = (least? + REGION.instructions() - SHORTEST.instructions(), found?);
    ensure!(is_right(found, executed), "{found} counted, {executed} executed");
    Ok(())
}

/// Returns what an event counts while this thread executes a region.
#[inline(never)]
fn counted(event: &Event, region: Region) -> Result<u64> {
    let before = event.count()?;
    region.execute(&mut 0);
    Ok(event.count()? - before)
}

/// Waits until `look` finds something, and returns it if it does in time.
fn until<T>(look: impl Fn() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(found) = look() {
            return Some(found);
        }
        sleep(Duration::from_millis(1));
    }
    None
}

/// Returns `Ok` if there was an error and its text contains one of these names.
fn names(message: Option<&str>, what: &[&str]) -> Result<(), String> {
    match message {
        Some(message) if what.iter().any(|what| message.contains(what)) => Ok(()),
        _ => Err(format!("{message:?} was the message, {what:?} expected")),
    }
}
