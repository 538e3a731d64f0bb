// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! On the host of a KVM guest: lets it count if it is to, moves its vCPUs between the physical
//! CPUs, and takes these from them, until it has ended.

use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use nix::unistd::Pid;
use perf_event_open_sys::bindings::PERF_COUNT_HW_INSTRUCTIONS;
use vm_tests::disturb;
use vm_tests::perf::{Event, Whose, generic};
use vm_tests::rng::Rng;
use vm_tests::threads::{SELF, cpus};

/// Whom the driver lets count: written with the number of the process that has made a machine.
const ALLOW: &str = "/sys/module/kvm/parameters/perfctr_allow";
/// After how many moves to look what vCPUs there are.
const MOVES: u32 = 1000;

/// Disturbs a guest.
#[derive(Debug, Parser)]
struct Options {
    /// Threads that compete with the vCPUs, a part of the time.
    #[arg(long, default_value_t = 2)]
    competitors: u64,
    /// Let the guest count.
    #[arg(long)]
    allow: bool,
    /// Start of all random sequences.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let cpus = cpus()?;
    for number in 0..options.competitors {
        let rng = Rng::new(options.seed, number);
        thread::spawn(move || compete(rng));
    }
    let guest = loop {
        match guest()? {
            Some(guest) => break guest,
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    if options.allow {
        fs::write(ALLOW, guest.to_string()).context(ALLOW)?;
    }
    // To the console: the guest cannot know.
    let instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
    match Event::open(instructions, Whose::Thread(SELF), None) {
        Ok(_) => println!("the host's perf: counts"),
        Err(errno) => println!("the host's perf: {errno:?}"),
    }
    let mut rng = Rng::new(options.seed, options.competitors);
    loop {
        let vcpus = vcpus(guest);
        if vcpus.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        for _ in 0..MOVES {
            disturb::one_thread(&vcpus, &cpus, &mut rng);
        }
    }
}

/// The process that has the guest's vCPUs, once it has them.
fn guest() -> Result<Option<Pid>> {
    for process in fs::read_dir("/proc")? {
        let number = process?.file_name().to_string_lossy().parse();
        if let Some(pid) = number.ok().map(Pid::from_raw).filter(|pid| !vcpus(*pid).is_empty()) {
            return Ok(Some(pid));
        }
    }
    Ok(None)
}

/// The threads that QEMU has named after its vCPUs; none of a process that has ended since.
fn vcpus(process: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let is_vcpu = |thread: &fs::DirEntry| {
        let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        name.starts_with("CPU ") && name.trim_end().ends_with("/KVM")
    };
    let number = |thread: fs::DirEntry| thread.file_name().to_string_lossy().parse().ok();
    threads.filter(is_vcpu).filter_map(number).map(Pid::from_raw).collect()
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
