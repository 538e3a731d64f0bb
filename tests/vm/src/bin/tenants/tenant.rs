// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs as the first and only program of a tenant, which talks to the control domain on its
//! console.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Subcommand;
use perfctr::overflow::Ring;
use perfctr::rdpmc::Hardware;
use perfctr::{Event, Provider, Session};
use serde_json::{Value, json};
use shared_abi::read::Counters;
use vm_tests::module;
use vm_tests::region::Region;
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::toolstack::{live, receive, send};

use crate::counting::{self, Domain};
use crate::{demo, events, frames, held, inside, limited, peek, program, roam, samples, successor};

/// The period of the storm's samples. Unit: instructions.
const STORM_PERIOD: u64 = 1_000;

/// The region that is executed where nothing is measured.
const LONG: Region = Region { first: 100_000, second: 100_000 };

/// The number of regions in each thread that samples.
pub const SAMPLED: u64 = 40;

/// The time between two attempts to load the module.
const BETWEEN_TRIALS: Duration = Duration::from_millis(500);

/// What the control domain wants a tenant to do.
#[derive(Debug, Subcommand)]
pub enum Role {
    /// Counts beside the control domain, as soon as that tells it to.
    Count {
        /// Regions that each thread measures.
        regions: u64,
    },
    /// Says what it is, counts, and samples beside the control domain.
    Demo {
        /// Regions that each thread measures.
        regions: u64,
    },
    /// Names frames as its vCPU's page, as it is told to.
    Frames,
    /// Says what it may use, counts, and counts until it may not go on with what it has loaded.
    Limited,
    /// Tests its kernel's counts, and its module.
    Inside {
        /// How often the module is unloaded.
        reloads: u32,
    },
    /// Counts on whatever host it is, until a reading is refused. It does so again and again, and
    /// begins with perf's events.
    Travel,
    /// Counts until it is on a host where it may not, and once more when it is told to.
    Emigrate,
    /// Counts and samples whenever it is told to, until it is told to stop.
    Roam,
    /// Counts in a kernel that was started by another one.
    Successor,
    /// Executes on all vCPUs, for some time without sampling, then with the shortest period.
    Storm {
        /// How long nothing is sampled.
        quiet_ms: u64,
    },
    /// Executes a program, and reports what it has printed.
    Run {
        /// Its path.
        program: PathBuf,
        /// Whether the module is not loaded.
        #[arg(long)]
        without_module: bool,
    },
    /// Executes RDPMC without opening a session.
    Rdpmc,
    /// Has its kernel read everything that it can, again and again, without a hypercall.
    Peek,
}

/// Executes the role, and switches the domain off.
pub fn run(role: &Role) -> Result<ExitCode> {
    if let Role::Rdpmc = role {
        println!("{}", Hardware.counter(0));
        return Ok(ExitCode::SUCCESS);
    }
    live(|| act(role))
}

fn act(role: &Role) -> Result<()> {
    match *role {
        Role::Count { regions } => count(regions, |_| execute_until_told()),
        Role::Demo { regions } => {
            count(regions, |domain| {
                send(&demo::describe(domain)?);
                Ok(())
            })?;
            send(&samples::take(&samples::prepare()?, |measured| measured < SAMPLED)?);
            Ok(())
        }
        Role::Travel => {
            load()?;
            send(&json!("ready"));
            events::watch()?;
            module::unload_when_idle()?;
            loop {
                travel()?;
                module::unload_when_idle()?;
            }
        }
        Role::Emigrate => {
            travel()?;
            let asked = receive()?;
            ensure!(asked == "again", "{asked} is asked");
            module::unload_when_idle()?;
            travel()
        }
        Role::Frames => frames::tenant(),
        Role::Limited => limited::tenant(),
        Role::Inside { reloads } => inside::tenant(reloads),
        Role::Roam => roam::tenant(),
        Role::Successor => successor::tenant(),
        Role::Storm { quiet_ms } => storm(Duration::from_millis(quiet_ms)),
        Role::Peek => peek::tenant(),
        Role::Run { ref program, without_module } => program::tenant(program, without_module),
        Role::Rdpmc => unreachable!("it needs no system"),
    }
}

/// Counts with the tenant's counters of each choice, after `first` was called.
fn count(regions: u64, first: impl FnOnce(&Domain) -> Result<()>) -> Result<()> {
    load()?;
    let [disjoint, crossed] = [counting::DISJOINT, counting::CROSSED].map(|places| places[1]);
    let go_on = |measured| measured < regions;
    let domain = Domain::new(disjoint)?;
    first(&domain)?;
    send(&json!("ready"));
    send(&domain.count(2, go_on)?);
    drop(domain);
    send(&Domain::new(crossed)?.count(2, go_on)?);
    Ok(())
}

/// Executes on all vCPUs, until the control domain tells it to stop.
fn execute_until_told() -> Result<()> {
    let (cpus, stop) = (cpus()?, &AtomicBool::new(false));
    thread::scope(|scope| {
        let execute = |cpu| move || execute_on(cpu, stop);
        let threads: Vec<_> = cpus.into_iter().map(|cpu| scope.spawn(execute(cpu))).collect();
        send(&json!("ready"));
        let asked = receive();
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))?;
        let asked = asked?;
        ensure!(asked == "count", "{asked} is asked");
        Ok(())
    })
}

fn execute_on(cpu: usize, stop: &AtomicBool) -> Result<()> {
    run_on(SELF, &[cpu])?;
    while !stop.load(Ordering::Relaxed) {
        LONG.execute(&mut 0);
    }
    Ok(())
}

/// Counts until the host does not allow it any more. Then reports why a session cannot be opened.
fn travel() -> Result<()> {
    load()?;
    let domain = Domain::new(counting::DISJOINT[1])?;
    let held = held::reader()?;
    send(&json!("ready"));
    let mut seen = domain.count(2, |_| true)?;
    seen["held"] = held.join().expect("no thread panics")?.into();
    send(&seen);
    drop(domain);
    send(&match Session::open_with(Provider::Paravirt) {
        Ok(_) => json!("a session"),
        Err(error) => json!(error.to_string()),
    });
    Ok(())
}

/// Loads the module. If the module and the CPU refuse, reports how, and waits until they do not
/// refuse.
fn load() -> Result<()> {
    let Some(refusal) = refusal()? else { return Ok(()) };
    send(&refusal);
    while module::load().is_err() {
        thread::sleep(BETWEEN_TRIALS);
    }
    Ok(())
}

/// Tries to load the module. Returns how the module and the CPU refuse, if they do.
pub fn refusal() -> Result<Option<Value>> {
    let Err(refusal) = module::load() else { return Ok(None) };
    let child = Command::new("/proc/self/exe").arg("rdpmc").status()?;
    Ok(Some(json!({ "module": format!("{refusal:#}"), "signal": child.signal() })))
}

/// Raises a storm that ends with the domain.
fn storm(quiet: Duration) -> Result<()> {
    module::load()?;
    let start = Instant::now();
    send(&json!("quiet"));
    let threads: Vec<_> = cpus()?
        .into_iter()
        .map(|cpu| thread::spawn(move || spin_then_sample(cpu, start, quiet)))
        .collect();
    // A thread ends only if it has failed.
    threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
}

fn spin_then_sample(cpu: usize, start: Instant, quiet: Duration) -> Result<()> {
    run_on(SELF, &[cpu])?;
    while start.elapsed() < quiet {
        LONG.execute(&mut 0);
    }
    // The samples are not used, but their signals have to be handled.
    let _ring = Ring::new(libc::SIGURG, 0)?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    let instructions = Event::INSTRUCTIONS.user().every(STORM_PERIOD);
    session.start_sampling(&[instructions], libc::SIGURG)?;
    if cpu == 0 {
        send(&json!("storm"));
    }
    loop {
        LONG.execute(&mut 0);
    }
}
