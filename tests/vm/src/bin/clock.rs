// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that the logical time-stamp counters of threads and vCPUs agree with the accounts of Linux
//! and the host.
//!
//! The test is for a machine whose clock counts the instructions that it executes. On other
//! machines, the accounts differ by the time that the emulator's host takes away in the middle of a
//! switch.

use std::io::stdout;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use perfctr::{Event, Provider, Session};
use vm_tests::host::{Host, host};
use vm_tests::in_tenant::{Moves, Tests};
use vm_tests::module;
use vm_tests::region::Region;
use vm_tests::tally::Tally;
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::time::{Elapsed, ThreadTime, TimeCheck, VcpuMoment, VcpuTimes};
use vm_tests::toolstack::{Kind, Tenant, Tsc, Wanted, live};

/// The number of threads on each vCPU.
const THREADS: usize = 2;
/// The region that each thread executes before it yields its CPU, and how often it does so.
const REGION: Region = Region { first: 100_000, second: 100_000 };
const TURNS: usize = 20;
/// The number of files that a thread opens and closes each time. The kernel locks the process'
/// table of files, and a vCPU that waits for a lock may yield its CPU.
const FILES: usize = 300;
/// The least number of switches. Fewer show nothing.
const SWITCHES_MIN: u64 = 10;

/// The number of the machine's physical CPUs, on which a tenant's vCPUs wait for each other.
const PCPUS: u32 = 1;
const SEED: u64 = 1;
/// The vCPUs of a tenant.
const VCPUS: usize = 2;
/// The module by which a tenant asks Xen how long its vCPUs have executed.
const PRIVCMD: &str = "/lib/perfctr/xen-privcmd.ko";

/// The roles of this program.
#[derive(Debug, Parser)]
enum Role {
    /// Tests in this guest.
    Test,
    /// Creates a tenant of Xen that tests.
    Control {
        /// How it is virtualised.
        kind: Kind,
    },
    /// Is the first program of this tenant.
    Tenant,
}

/// The tests of every kind of guest.
const TESTS: Tests<fn() -> Result<()>> = Tests {
    at_rest: &[("the TSCs of threads on one vCPU are what is accounted", || {
        let outcome = compete_on(&cpus()?[..1])?;
        judge("threads", &outcome.threads)
    })],
    moved: &[(
        "the TSCs of vCPUs that wait for each other, and of their threads, are, too",
        || {
            let outcome = compete_on(&cpus()?)?;
            judge("threads", &outcome.threads)?;
            judge("vCPUs", &outcome.vcpus)
        },
    )],
    saved: &[],
};

fn main() -> Result<ExitCode> {
    match Role::parse() {
        Role::Test => {
            let mut tally = Tally::default();
            for (name, test) in TESTS.at_rest.iter().chain(TESTS.moved) {
                tally.check(name, test().map_err(|error| format!("{error:#}")));
            }
            Ok(tally.finish())
        }
        Role::Control { kind } => {
            let wanted = Wanted::usual(kind, "clock", VCPUS, Tsc::Native, "tenant");
            let moves = Moves { pcpus: PCPUS, seed: SEED, switches_min: SWITCHES_MIN };
            TESTS.control(&wanted, moves, Tenant::receive)
        }
        Role::Tenant => live(|| {
            module::load()?;
            // Without this parameter, the module lets only the control domain ask.
            module::load_file(PRIVCMD, c"unrestricted=1")?;
            TESTS.run_in_tenant(|test| test());
            Ok(())
        }),
    }
}

/// Lets threads compete for these CPUs.
fn compete_on(some: &[usize]) -> Result<Outcome> {
    let host = &*host()?;
    let all = cpus()?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    // A vCPU keeps its page while threads that count are switched to it.
    session.start(&[])?;
    let outcome = compete(host, &session, &all, some);
    run_on(SELF, &all)?;
    outcome
}

/// How far the clocks of threads and vCPUs were off, and how often threads and vCPUs were switched
/// in.
struct Outcome {
    threads: (TimeCheck, u64),
    vcpus: (TimeCheck, u64),
}

/// Lets threads compete for some of the CPUs, each thread for its own CPU.
fn compete(host: &dyn Host, session: &Session, all: &[usize], some: &[usize]) -> Result<Outcome> {
    let before = VcpuTimes::take(host, session, all)?;
    run_on(SELF, some)?;
    let logs = thread::scope(|scope| -> Result<Vec<Vec<_>>> {
        let spawn =
            |&cpu: &usize| [(); THREADS].map(|()| scope.spawn(move || take_turns(host, cpu)));
        let threads: Vec<_> = some.iter().map(spawn).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no panic");
        threads.into_iter().map(|of_one| of_one.into_iter().map(join).collect()).collect()
    })?;
    let vcpus = VcpuTimes::take(host, session, all)?.since(&before);
    let tsc_khz = session.description().tsc_khz;
    let mut outcome = Outcome { threads: Default::default(), vcpus: Default::default() };
    for (cpu, threads) in some.iter().zip(logs) {
        // Linux also charges a thread for the time that its own vCPU is away (Debian's kernel has
        // no steal clock). Our counter excludes that time.
        let moments: Vec<_> = threads.iter().flat_map(|one| one.between).collect();
        let away_ns = VcpuMoment::away_ns(&moments);
        let elapsed = threads.iter().fold(Elapsed::default(), |sum, one| sum.and(&one.elapsed));
        let switches: u64 = threads.iter().map(|one| one.switches).sum();
        // When the thread's vCPU is switched out and in, the host's account also begins and ends a
        // little earlier than ours.
        let of_vcpu = all.iter().zip(&vcpus).find(|(one, _)| *one == cpu);
        let of_vcpu = of_vcpu.map_or(0, |(_, vcpu)| vcpu.switches);
        outcome.threads.0.add(&elapsed, tsc_khz, switches + of_vcpu, away_ns);
        outcome.threads.1 += switches;
    }
    for vcpu in &vcpus {
        outcome.vcpus.0.add(&vcpu.running, tsc_khz, vcpu.switches, 0);
        outcome.vcpus.1 += vcpu.switches;
    }
    Ok(outcome)
}

/// The turns that one thread has taken.
struct Turns {
    elapsed: Elapsed,
    /// How often it was resumed.
    switches: u64,
    /// The moments of its vCPU before and after.
    between: [VcpuMoment; 2],
}

/// Executes for a while, among other threads.
fn take_turns(host: &dyn Host, cpu: usize) -> Result<Turns> {
    run_on(SELF, &[cpu])?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[Event::INSTRUCTIONS.user()])?;
    let switches = || -> Result<u64> {
        Ok(session.thread_page().context("this is no forked child")?.switches.load(Relaxed))
    };
    let from = VcpuMoment::take(host, cpu as u32)?;
    let (start, first) = (ThreadTime::take(&session)?, switches()?);
    for _ in 0..TURNS {
        REGION.execute(&mut 0);
        for _ in 0..FILES {
            drop(stdout().as_fd().try_clone_to_owned()?);
        }
        thread::yield_now();
    }
    let elapsed = ThreadTime::take(&session)?.since(&start);
    let switches = switches()? - first;
    Ok(Turns { elapsed, switches, between: [from, VcpuMoment::take(host, cpu as u32)?] })
}

/// Fails if they were off, or were not switched in often enough to show anything.
fn judge(whose: &str, (check, switches): &(TimeCheck, u64)) -> Result<()> {
    ensure!(*switches >= SWITCHES_MIN, "only {switches} switches of {whose}");
    ensure!(!check.is_off, "{whose} are off by up to {} ns: {check:?}", check.worst_ns);
    Ok(())
}
