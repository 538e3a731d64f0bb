// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests two guests of KVM on the same physical CPUs. Neither must notice the other.
//!
//! Both execute this program. The first one makes the host start the second one, which knows its
//! role by its kernel's arguments. The host gives the first one the numbers that the second has
//! printed.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use perfctr::rdpmc::Hardware;
use perfctr::{CAPS_SAMPLING, Event, Provider, Session};
use serde_json::Value;
use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_USR};
use shared_abi::hypercall::{HvLoad, OP_LOAD};
use shared_abi::read::Counters;
use vm_tests::host::Host as _;
use vm_tests::kvm::{HostPerf, Kvm, NEIGHBOUR, SAMPLED};
use vm_tests::module;
use vm_tests::raw::{Argument, Refusal};
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, cpus, run_on};
use zerocopy::IntoBytes;

use crate::control::exact;
use crate::counting::{CROSSED, Domain};
use crate::pinned::{self, PAGE_KIB};
use crate::sampled;

/// The number of regions that each of the second guest's threads measures.
const REGIONS: u64 = 500;
/// How often a guest is refused that asks again and again.
const REFUSALS: u64 = 5_000;
/// The select word of retired instructions in user mode (APM volume 2, PerfEvtSeln).
const INSTRUCTIONS_OF_USER: u64 = 0xc0 | EVNTSEL_USR | EVNTSEL_EN;
/// How long it may take until a vCPU counts.
const PATIENCE: Duration = Duration::from_secs(20);
/// The number of general counters of the processor.
const COUNTERS: u32 = 6;
/// The state of the host's perf when it has the counters, and the watchdog runs.
const PERFS: Result<HostPerf, Refusal> = Ok(HostPerf { errno: 0, error: 0, watchdog: true });
/// The time between looks at the host.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// Threads that have begun to count certainly do so after this time.
const SETTLED: Duration = Duration::from_secs(2);

/// Runs in either guest.
pub fn run() -> Result<ExitCode> {
    let arguments = fs::read_to_string("/proc/cmdline")?;
    let role = arguments.split_whitespace().find(|role| [NEIGHBOUR, SAMPLED].contains(role));
    if let Some(role) = role {
        if role == NEIGHBOUR { neighbour() } else { sampled::passive() }?;
        return Ok(ExitCode::SUCCESS);
    }
    module::load()?;
    let (kvm, mut tally) = (Kvm::open()?, Tally::default());
    turns(&mut tally, &kvm)?;
    policy(&mut tally, &kvm)?;
    accounted(&mut tally, &kvm)?;
    pinned::run(&mut tally, &kvm)?;
    is_not_switched_while_stopped(&mut tally, &kvm)?;
    loses_a_cpu(&mut tally, &kvm)?;
    let errors = kvm.allow_after_reuse()?;
    let [allowed @ .., forbidden] = &errors[..] else { anyhow::bail!("no error") };
    let expected = [0, Errno::ESRCH as u64, Errno::ESRCH as u64];
    let name = "a process that has got the number of a machine's process does not stand for it";
    tally.check(name, equal(allowed, &expected[..]));
    tally.check("a machine whose process is gone can be forbidden", equal(*forbidden, 0));
    let whose = "a guest of KVM beside one that may not count";
    let answer = count_beside_neighbour(&mut tally, &kvm, whose, false)?;
    let [errno, signal] = answer[..] else { anyhow::bail!("the neighbour says {answer:?}") };
    let refused = Errno::from_raw(errno as i32);
    tally.check("a guest of KVM that nobody allows gets EPERM", equal(refused, Errno::EPERM));
    let outcome = equal(signal, libc::SIGSEGV as u64);
    tally.check("a guest of KVM that nobody allows cannot execute RDPMC", outcome);

    let clears = kvm.stats()?.residue_clears;
    let whose = "a guest of KVM beside another one that counts";
    let answer = count_beside_neighbour(&mut tally, &kvm, whose, true)?;
    let [regions, error_max, refusals, switches] = answer[..] else {
        anyhow::bail!("the neighbour says {answer:?}")
    };
    println!("the neighbour: {regions} regions, {switches} switches of its vCPUs");
    tally.check("the other one: counts are exact", equal([error_max, refusals], [0, 0]));
    let hard = regions >= REGIONS && switches > 0;
    tally.check("the other one: its vCPUs were preempted", equal(hard, true));
    let cleared = kvm.stats()?.residue_clears > clears;
    tally.check("counters were cleared of what the one before had counted", equal(cleared, true));
    wait_for_perf(&kvm);
    sampled::run(&mut tally, &kvm)?;
    Ok(tally.finish())
}

/// Checks that perf has the host's counters while nobody counts in a guest, and that nobody counts
/// while perf uses them.
fn turns(tally: &mut Tally, kvm: &Kvm) -> Result<()> {
    let guests = Ok(HostPerf { errno: Errno::EBUSY as u64, error: 0, watchdog: false });
    let name = "perf counts on the host before a guest does, and the watchdog runs";
    tally.check(name, equal([kvm.count_host(), kvm.count_host()], [PERFS; 2]));
    let whose = "a guest of KVM whose host uses perf";
    for end in ["forbidden", "idle"] {
        let (seen, counted) = count_while(REGIONS, || {
            thread::sleep(SETTLED);
            [kvm.count_host(), kvm.count_host()]
        })?;
        exact(tally, whose, &seen);
        let name = "perf gets EBUSY while a guest counts, and the watchdog is stopped";
        tally.check(name, equal(counted, [guests; 2]));
        let name = format!("perf has the counters when the guest is {end}, and the watchdog runs");
        if end == "forbidden" {
            // This keeps the vCPUs' pages registered.
            let domain = Domain::new(CROSSED[0])?;
            kvm.allow_by_name(false)?;
            tally.check(&name, equal(kvm.count_host(), PERFS));
            let name = "a guest with pages reads nothing of what perf counts on the host";
            tally.check(name, equal(largest_beside_perf(kvm)?, 0));
            drop(domain);
            kvm.allow_by_name(true)?;
        } else {
            wait_for_perf(kvm);
            tally.check(&name, equal([kvm.count_host(), kvm.count_host()], [PERFS; 2]));
        }
    }
    kvm.hold_perf(true)?;
    let mut errors = Vec::new();
    for _ in 0..2 {
        let mut session = Session::open_with(Provider::Paravirt)?;
        let started = session.start(&[Event::INSTRUCTIONS.user()]);
        let errno = started.and_then(|()| session.read::<1>().map(drop)).err();
        errors.push(errno.and_then(|error| error.errno()));
    }
    let name = "a guest gets EBUSY while perf counts on the host";
    tally.check(name, equal(errors, vec![Some(libc::EBUSY); 2]));
    let name = "perf is exact while a guest is refused, and the watchdog runs";
    tally.check(name, equal(kvm.count_host(), PERFS));
    let outcome = insists(kvm).map_err(|error| format!("{error:#}"));
    tally.check("a guest that is refused keeps nobody busy by asking again", outcome);
    kvm.hold_perf(false)?;
    Ok(())
}

/// Checks a guest whose kernel asks for the counters as often as it can, while its host's perf has
/// them. The host tries to take them only once in a second. A vCPU for which it tries waits for the
/// worker that does it, or is preempted by the worker before it waits.
fn insists(kvm: &Kvm) -> Result<()> {
    let all = cpus()?;
    let cpu = *all.first().context("there is no CPU")?;
    run_on(SELF, &[cpu])?;
    // The module registers the vCPU's page for it.
    let mut session = Session::open_with(Provider::Paravirt)?;
    let _ = session.start(&[Event::INSTRUCTIONS.user()]);
    let mut load = HvLoad { counters: 1, ..HvLoad::default() };
    load.counter[0].evntsel = INSTRUCTIONS_OF_USER;
    let bytes = &mut load.as_mut_bytes()[..HvLoad::bytes(1)];
    let (start, before) = (Instant::now(), kvm.context_switches(cpu as u32)?);
    for _ in 0..REFUSALS {
        let argument = Argument::Bytes(bytes);
        let refused = kvm.perfctr_op(OP_LOAD, argument, HvLoad::bytes(1) as u32);
        ensure!(refused == Err(Refusal::EBUSY), "{refused:?} in place of EBUSY");
    }
    let switches = kvm.context_switches(cpu as u32)? - before;
    let seconds = start.elapsed().as_secs();
    run_on(SELF, &all)?;
    println!(
        "{REFUSALS} refusals in {seconds} s: the vCPU's thread has left its CPU {switches} times"
    );
    // The thread also leaves its CPU for other threads of the host, some hundred times in a second.
    ensure!(switches < REFUSALS / 2, "the vCPU's thread has left its CPU {switches} times");
    Ok(())
}

/// Waits until the host's perf has the counters, since no guest counts.
fn wait_for_perf(kvm: &Kvm) {
    let deadline = Instant::now() + PATIENCE;
    while kvm.count_host() != PERFS && Instant::now() < deadline {
        thread::sleep(BETWEEN_LOOKS);
    }
}

/// Returns the largest value that this guest, which may not count, finds in a counter while the
/// host's perf counts.
fn largest_beside_perf(kvm: &Kvm) -> Result<u64> {
    kvm.hold_perf(true)?;
    let (all, mut largest) = (cpus()?, 0);
    for &cpu in all.iter().chain(&all) {
        run_on(SELF, &[cpu])?;
        largest = (0..COUNTERS).map(|counter| Hardware.counter(counter)).fold(largest, u64::max);
    }
    run_on(SELF, &all)?;
    kvm.hold_perf(false)?;
    Ok(largest)
}

/// Makes the host's administrator list this guest, forbid it to count, and allow it again.
fn policy(tally: &mut Tally, kvm: &Kvm) -> Result<()> {
    let caps = Session::open_with(Provider::Paravirt)?.description().caps;
    let caps = caps.context("no counters")?;
    let samples = u64::from(caps.can(CAPS_SAMPLING));
    let expected = vec![caps.general.into(), caps.fixed.into(), samples];
    tally.check("the host's limits are what its guest has", equal(kvm.limits()?, expected));
    let mut seen = vec![kvm.domains()?];
    kvm.allow_by_name(false)?;
    seen.push(kvm.domains()?);
    let forbidden = Session::open_with(Provider::Paravirt).err().map(|error| error.to_string());
    kvm.allow_by_name(true)?;
    seen.push(kvm.domains()?);
    let allowed = Session::open_with(Provider::Paravirt).is_ok();
    let words = forbidden.unwrap_or_default();
    let is_right = words.contains("the host does not let this domain count") && allowed;
    let outcome = is_right.then_some(()).ok_or(format!("{words}; then allowed: {allowed}"));
    tally.check("the host forbids its guest by its name, and allows it again", outcome);
    let expected = [[1, 1], [1, 0], [1, 1]].map(Vec::from);
    tally.check("the host's list says who may count", equal(seen, Vec::from(expected)));
    let refused = kvm.allow_nobody()?;
    tally.check("a process that runs no guest is named", equal(refused, vec![125]));
    Ok(())
}

/// Counts while this happens, and in each thread at least this many regions. Returns the results,
/// and the result of `act`.
fn count_while<T: Send>(regions: u64, act: impl FnOnce() -> T + Send) -> Result<(Value, T)> {
    let (domain, stop) = (Domain::new(CROSSED[0])?, &AtomicBool::new(false));
    thread::scope(|scope| {
        let acting = scope.spawn(move || {
            let done = act();
            stop.store(true, Ordering::Relaxed);
            done
        });
        let seen = domain.count(1, |measured| measured < regions || !stop.load(Ordering::Relaxed));
        let done = acting.join().expect("no thread panics");
        Ok((seen?, done))
    })
}

/// Checks that the page of each vCPU that counts is memory that the machine's process has locked.
fn accounted(tally: &mut Tally, kvm: &Kvm) -> Result<()> {
    let (seen, locked) = count_while(REGIONS, || {
        let deadline = Instant::now() + PATIENCE;
        let mut locked = kvm.locked_kib();
        while locked == Ok(0) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
            locked = kvm.locked_kib();
        }
        locked
    })?;
    exact(tally, "a guest of KVM whose pages are looked at", &seen);
    let locked = locked?;
    let vcpus = thread::available_parallelism()?.get() as u64;
    let bounded = locked != 0 && locked <= PAGE_KIB * vcpus && locked.is_multiple_of(PAGE_KIB);
    let outcome = bounded.then_some(()).ok_or(format!("{locked} KiB of {vcpus} vCPUs"));
    tally.check("the host counts vCPUs' pages as memory that the machine has locked", outcome);
    Ok(())
}

/// Checks that a stopped vCPU is not switched. A machine's process may load and put it as often as
/// it likes. Then the driver does not switch the vCPU, so it does not write to the vCPU's page,
/// which KVM would have to report.
fn is_not_switched_while_stopped(tally: &mut Tally, kvm: &Kvm) -> Result<()> {
    let (seen, switches) = count_while(0, || {
        // The vCPUs have pages as soon as the threads count.
        thread::sleep(SETTLED);
        [kvm.switches_of_a_stopped_guest(), kvm.switches_of_a_stopped_guest()]
    })?;
    exact(tally, "a guest of KVM that is stopped meanwhile", &seen);
    let name = "a vCPU that does not enter the guest is not switched";
    tally.check(name, equal(switches, [Ok(0), Ok(0)]));
    Ok(())
}

/// Takes a physical CPU of the host offline and online while vCPUs that count execute there. They
/// continue elsewhere, and on that CPU when it is back. The statistics still have the driver's work
/// there, and perf has the CPU's counters in the end.
fn loses_a_cpu(tally: &mut Tally, kvm: &Kvm) -> Result<()> {
    let (seen, switches) = count_while(REGIONS, || {
        thread::sleep(SETTLED);
        [kvm.unplug(), kvm.unplug(), kvm.unplug()]
    })?;
    exact(tally, "a guest of KVM whose host loses a CPU and gets it back", &seen);
    let mut all = Vec::new();
    for seen in switches {
        all.extend(seen?);
    }
    let grows = all.is_sorted_by(|before, after| before < after);
    let outcome = grows.then_some(()).ok_or_else(|| format!("{all:?} switches"));
    tally.check("the statistics keep what a CPU has done that goes offline", outcome);
    wait_for_perf(kvm);
    let name = "perf has the counters of a CPU that was offline, and the watchdog runs";
    tally.check(name, equal(kvm.count_host(), PERFS));
    Ok(())
}

/// Counts as long as the neighbour is there. Returns what the neighbour says.
fn count_beside_neighbour(
    tally: &mut Tally,
    kvm: &Kvm,
    whose: &str,
    allowed: bool,
) -> Result<Vec<u64>> {
    let (seen, answer) = count_while(0, || kvm.neighbour(allowed))?;
    println!("{whose}: {seen:#}");
    exact(tally, whose, &seen);
    Ok(answer?)
}

/// Runs in the second guest, and prints how it is refused, or what it has counted.
fn neighbour() -> Result<()> {
    if let Err(error) = module::load() {
        let errno = error.downcast_ref::<Errno>().context("no error of the kernel's")?;
        let child = Command::new("/proc/self/exe").arg("rdpmc").status()?;
        println!("{} {}", *errno as i32, child.signal().unwrap_or_default());
        return Ok(());
    }
    let seen = Domain::new(CROSSED[1])?.count(2, |measured| measured < REGIONS)?;
    let number = |key: &str| seen[key].as_u64().with_context(|| format!("{key} in {seen}"));
    let refusals = u64::from(!seen["refusal"].is_null());
    ensure!(number("regions")? > 0, "{seen}");
    let [regions, error_max, switches] =
        [number("regions")?, number("error_max")?, number("vcpu_switches")?];
    println!("{regions} {error_max} {refusals} {switches}");
    Ok(())
}
