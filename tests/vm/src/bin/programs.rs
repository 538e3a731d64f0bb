// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts whole programs that are not the project's, from their first instruction to their last.
//! Prints how many instructions, branches and cycles each took in user mode.
//!
//! On the bare machine Linux' perf counts them one after the other. Under Xen the module counts
//! them all at once and several times, while they are moved between vCPUs, and vCPUs between
//! physical CPUs. Both have to print the same.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use perfctr::{Provider, Session};
use vm_tests::disturb;
use vm_tests::host::host;
use vm_tests::programs::{self, Attached, EVENTS, Perf, Running, count};
use vm_tests::rng::Rng;
use vm_tests::stats::ModuleStats;
use vm_tests::threads::{SELF, cpus, or_exit, run_on};
use vm_tests::time::{VcpuElapsed, VcpuTimes};

/// The number of the testbed's physical CPUs.
const PCPUS: u32 = 2;
const SEED: u64 = 1;
/// How often each disturbance has to occur in a storm, and how long that may take on any machine. A
/// quick machine has executed all programs before many disturbances have occurred.
const DISTURBANCES_MIN: u64 = 200;
const PATIENCE: Duration = Duration::from_secs(240);

/// Counts programs.
#[derive(Debug, Parser)]
struct Options {
    /// A command on each line: a program and its arguments, with blanks in between.
    commands: PathBuf,
    /// Count with the module, all at once, this many times at least, and move everything meanwhile.
    #[arg(long)]
    storm: Option<usize>,
}

/// The times of vCPUs and the module's statistics at one moment.
type Moment = (VcpuTimes, ModuleStats);

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    programs::prepare()?;
    let text = fs::read_to_string(&options.commands)?;
    let commands: Vec<&str> = text.lines().collect();
    match options.storm {
        Some(times) => storm(&commands, times)?,
        None => {
            for command in commands {
                print_counts(command, &count(command, Perf::attach, &Running::default())?);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the counts of [`EVENTS`], and the command.
fn print_counts(command: &str, counts: &[u64]) {
    let counts: String = counts.iter().map(|count| format!("{count} ")).collect();
    println!("{counts}{command}");
}

/// Runs all programs at once, this many times and until they were disturbed often enough.
fn storm(commands: &[&str], times: usize) -> Result<()> {
    let host = &*host()?;
    let cpus = &cpus()?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[])?;
    let look = || -> Result<Moment> {
        let vcpus = VcpuTimes::take(host, &session, cpus)?;
        run_on(SELF, cpus)?;
        Ok((vcpus, ModuleStats::read()?))
    };
    let (stop, running, before) = (&AtomicBool::new(false), &Running::default(), look()?);
    let start = Instant::now();
    let seen = thread::scope(|scope| {
        scope.spawn(move || disturb::vcpus(host, cpus, PCPUS, SEED, stop));
        scope.spawn(move || move_all(running, cpus, stop));
        let one = move |command| {
            or_exit(0, count(command, |pid| Attached::attach(pid, &EVENTS), running))
        };
        let mut rounds = 0;
        let seen = loop {
            let threads: Vec<_> =
                commands.iter().map(|&command| scope.spawn(move || one(command))).collect();
            for (command, thread) in commands.iter().zip(threads) {
                print_counts(command, &thread.join().expect("no thread panics"));
            }
            rounds += 1;
            let seen = or_exit(0, look().and_then(|now| Disturbances::between(&before, &now)));
            if rounds >= times && (seen.are_enough() || start.elapsed() > PATIENCE) {
                break seen;
            }
        };
        stop.store(true, Ordering::Relaxed);
        seen
    });
    eprintln!("{seen:?} in {:?}", start.elapsed());
    ensure!(seen.are_enough(), "{DISTURBANCES_MIN} of each are wanted");
    Ok(())
}

/// How often programs were disturbed in a storm.
#[derive(Debug)]
struct Disturbances {
    /// The number of switches of threads that count.
    thread_switches: u64,
    vcpu_switches: u64,
    vcpu_migrations: u64,
}

impl Disturbances {
    fn between(before: &Moment, after: &Moment) -> Result<Self> {
        let vcpus = after.0.since(&before.0);
        let sum = |part: fn(&VcpuElapsed) -> u64| vcpus.iter().map(part).sum();
        Ok(Self {
            thread_switches: after.1.growth(&before.1, "switches_in")?,
            vcpu_switches: sum(|vcpu| vcpu.switches),
            vcpu_migrations: sum(|vcpu| vcpu.migrations),
        })
    }

    fn are_enough(&self) -> bool {
        let all = [self.thread_switches, self.vcpu_switches, self.vcpu_migrations];
        all.into_iter().all(|times| times >= DISTURBANCES_MIN)
    }
}

/// Moves what is running between CPUs.
fn move_all(running: &Running, cpus: &[usize], stop: &AtomicBool) {
    let mut rng = Rng::new(SEED, 0);
    while !stop.load(Ordering::Relaxed) {
        let pids = running.pids();
        if pids.is_empty() {
            thread::sleep(Duration::from_millis(1));
        } else {
            disturb::one_thread(&pids, cpus, &mut rng);
        }
    }
}
