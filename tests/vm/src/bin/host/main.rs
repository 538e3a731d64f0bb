// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs on the host of a KVM guest until the guest has ended. It lets the guest count if its
//! options say so, moves the guest's vCPUs between the physical CPUs, takes CPUs from them, and
//! executes the requests of the guest's tests.

mod domains;
mod nmis;
mod perf;
mod qmp;
mod reused;
mod sampled;
mod serve;

use std::fs;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use nix::errno::Errno;
use nix::unistd::Pid;
use vm_tests::disturb;
use vm_tests::rng::Rng;
use vm_tests::threads::{SELF, cpus};

use serve::{Guest, Server};

/// The files that say whom the driver lets count. The number of the process that has made a machine
/// is written to them.
const ALLOW: &str = "/sys/module/kvm/parameters/perfctr_allow";
const FORBID: &str = "/sys/module/kvm/parameters/perfctr_forbid";
/// The time between looks for the process.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// The number of threads that compete with the vCPUs for a part of the time.
const COMPETITORS: u64 = 2;
/// After this many moves, the program looks again which vCPUs there are.
const MOVES: u32 = 1000;

/// Disturbs a guest.
#[derive(Debug, Parser)]
struct Options {
    /// Neither compete with the guest's vCPUs nor move them.
    #[arg(long)]
    calm: bool,
    /// Let the guest count.
    #[arg(long)]
    allow: bool,
    /// Print how many non-maskable interrupts came, and how many of them counters have raised.
    #[arg(long)]
    nmis: bool,
    /// The socket that is the other end of the port by which the guest asks.
    #[arg(long)]
    socket: String,
    /// The socket of the monitor of the program that runs the guest.
    #[arg(long)]
    monitor: String,
    /// Seed of all random sequences.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let cpus = cpus()?;
    let competitors = if options.calm { 0 } else { COMPETITORS };
    for number in 0..competitors {
        let rng = Rng::new(options.seed, number);
        thread::spawn(move || compete(rng));
    }
    let guest = &Guest::default();
    while guest.process() == SELF {
        match process()? {
            Some(process) => guest.process.store(process.as_raw(), Relaxed),
            None => thread::sleep(BETWEEN_LOOKS),
        }
    }
    if options.allow {
        allow(guest.process()).context(ALLOW)?;
    }
    let mut server = Server::new(guest, &options.socket, &options.monitor)?;
    let mut rng = Rng::new(options.seed, COMPETITORS);
    thread::scope(|scope| {
        let served = scope.spawn(move || server.run());
        let go_on = || !options.calm && !guest.ended.load(Relaxed) && !guest.moves.load(Relaxed);
        while go_on() {
            let vcpus = vcpus(guest.process());
            if vcpus.is_empty() {
                thread::sleep(BETWEEN_LOOKS);
                continue;
            }
            for _ in (0..MOVES).take_while(|_| go_on()) {
                disturb::one_thread(&vcpus, &cpus, &mut rng);
            }
        }
        served.join().expect("no thread panics")
    })?;
    // These messages go to the console, since the guest cannot see them.
    for message in perf::messages()? {
        println!("the host's kernel says: {message}");
    }
    if options.nmis {
        println!("{}", nmis::count(&cpus)?);
    }
    Ok(ExitCode::SUCCESS)
}

/// Lets the machines of a process count.
fn allow(process: Pid) -> Result<(), Errno> {
    write(ALLOW, &process.to_string())
}

/// Writes to a file of the kernel's.
fn write(path: &str, text: &str) -> Result<(), Errno> {
    fs::write(path, text).map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
}

/// Returns the process that has the guest's vCPUs, once it has them.
fn process() -> Result<Option<Pid>> {
    for process in fs::read_dir("/proc")? {
        let number = process?.file_name().to_string_lossy().parse();
        if let Some(pid) = number.ok().map(Pid::from_raw).filter(|pid| !vcpus(*pid).is_empty()) {
            return Ok(Some(pid));
        }
    }
    Ok(None)
}

/// Returns the threads that QEMU has named after its vCPUs, in the order of their numbers. There
/// are none if the process has ended.
fn vcpus(process: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let is_vcpu = |thread: &fs::DirEntry| {
        let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        name.starts_with("CPU ") && name.trim_end().ends_with("/KVM")
    };
    let number = |thread: fs::DirEntry| thread.file_name().to_string_lossy().parse().ok();
    // QEMU creates them one after another.
    let mut numbers: Vec<i32> = threads.filter(is_vcpu).filter_map(number).collect();
    numbers.sort_unstable();
    numbers.into_iter().map(Pid::from_raw).collect()
}

/// Executes for 1 to 5 ms, and sleeps for 2 to 10, again and again.
fn compete(mut rng: Rng) {
    loop {
        let (start, end) = (Instant::now(), Duration::from_micros(rng.between(1000, 5000)));
        while start.elapsed() < end {
            std::hint::spin_loop();
        }
        thread::sleep(Duration::from_micros(rng.between(2000, 10_000)));
    }
}
