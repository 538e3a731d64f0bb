// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Disturbs threads and vCPUs: moves threads between vCPUs and vCPUs between physical CPUs.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::unistd::Pid;

use crate::host::Host;
use crate::raw::Refusal;
use crate::rng::Rng;
use crate::tally::Tally;
use crate::threads::run_on;
use crate::xen::{TOOLS, Xen};

/// Streams of random numbers that no worker uses.
const STREAM_THREADS: u64 = 1 << 32;
const STREAM_VCPUS: u64 = 2 << 32;

/// Moves one thread after another, until it is stopped.
pub fn threads(threads: &[Pid], cpus: &[usize], seed: u64, stop: &AtomicBool) {
    let mut rng = Rng::new(seed, STREAM_THREADS);
    while !stop.load(Ordering::Relaxed) {
        one_thread(threads, cpus, &mut rng);
    }
}

/// Moves a random one of `threads` to a random CPU, and waits for 0.25 to 1.5 ms.
pub fn one_thread(threads: &[Pid], cpus: &[usize], rng: &mut Rng) {
    // A thread that has ended meanwhile does not matter.
    let _ = run_on(*rng.pick(threads), &[*rng.pick(cpus)]);
    sleep(Duration::from_micros(rng.between(250, 1500)));
}

/// Moves a random vCPU of the calling guest to a random physical CPU every 1 to 5 ms, and lets all
/// vCPUs run anywhere in the end.
pub fn vcpus(host: &dyn Host, cpus: &[usize], pcpus: u32, seed: u64, stop: &AtomicBool) {
    let place = |vcpu, pcpus| host.set_affinity(vcpu, pcpus);
    place_at_random(&place, cpus, pcpus, seed, stop);
}

/// Does the same as [`vcpus`] with a domain of Xen's.
pub fn domain(xen: &Xen, domain: u16, cpus: &[usize], pcpus: u32, seed: u64, stop: &AtomicBool) {
    let place = |vcpu, pcpus| xen.set_affinity(domain, vcpu, pcpus);
    place_at_random(&place, cpus, pcpus, seed + u64::from(domain), stop);
}

/// Checks that vCPUs were moved: the driver has switched vCPUs in `before` times at the beginning,
/// and at least `least` times since.
///
/// # Errors
///
/// The driver does not say how often.
pub fn check(tally: &mut Tally, host: &dyn Host, before: u64, least: u64) -> Result<(), Refusal> {
    let found = host.switches()? - before;
    let few = || format!("{found} times found, at least {least} expected");
    tally.check("vCPUs were switched meanwhile", (found >= least).then_some(()).ok_or_else(few));
    Ok(())
}

fn place_at_random(
    place: &dyn Fn(u32, u64) -> Result<(), Refusal>,
    cpus: &[usize],
    pcpus: u32,
    seed: u64,
    stop: &AtomicBool,
) {
    let mut rng = Rng::new(seed, STREAM_VCPUS);
    while !stop.load(Ordering::Relaxed) {
        let vcpu = *rng.pick(cpus) as u32;
        if let Err(error) = place(vcpu, 1 << rng.between(0, pcpus.into())) {
            eprintln!("vCPU {vcpu} cannot be moved: {error}");
            return;
        }
        sleep(Duration::from_micros(rng.between(1000, 5000)));
    }
    for &vcpu in cpus {
        let _ = place(vcpu as u32, (1 << pcpus) - 1);
    }
}

/// How long a physical CPU is offline, and how long it is back before it is taken offline again.
const AWAY: Duration = Duration::from_millis(50);
const BACK: Duration = Duration::from_millis(400);

/// How often physical CPUs came back so far.
#[derive(Debug, Default)]
pub struct Returns {
    /// Returns of the last physical CPU from being offline.
    pub last: AtomicU64,
    /// Returns of all of them from suspend to RAM while the disturbed threads still executed.
    pub all: AtomicU64,
}

/// Takes the last of the machine's `pcpus` physical CPUs offline and brings it back, again and
/// again. Meanwhile it moves this domain's vCPUs, and once it suspends the machine to RAM. Counts
/// in `returns`.
///
/// # Errors
///
/// Debian's tool fails, or the kernel does not suspend.
pub fn pcpus(
    host: &dyn Host,
    cpus: &[usize],
    pcpus: u32,
    seed: u64,
    stop: &AtomicBool,
    returns: &Returns,
) -> anyhow::Result<()> {
    let mut seed = seed;
    while !stop.load(Ordering::Relaxed) {
        hotplug("cpu-offline", pcpus - 1)?;
        sleep(AWAY);
        hotplug("cpu-online", pcpus - 1)?;
        if returns.last.fetch_add(1, Ordering::Relaxed) == 0 {
            suspend_to_ram()?;
            returns.all.fetch_add(u64::from(!stop.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
        seed += 1;
        let enough = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| vcpus(host, cpus, pcpus, seed, &enough));
            sleep(BACK);
            enough.store(true, Ordering::Relaxed);
        });
    }
    Ok(())
}

/// Suspends the machine to RAM, and returns when it is awake again. The program that runs the
/// emulator wakes it.
///
/// # Errors
///
/// The kernel does not suspend.
pub fn suspend_to_ram() -> anyhow::Result<()> {
    fs::write("/sys/power/mem_sleep", "deep").context("there is no suspend to RAM")?;
    fs::write("/sys/power/state", "mem").context("the kernel does not suspend")
}

/// Runs Debian's tool for physical CPUs, which knows `cpu-online` and `cpu-offline`.
///
/// # Errors
///
/// The tool fails. The error has what it printed.
pub fn hotplug(command: &str, pcpu: u32) -> anyhow::Result<()> {
    let tool = Path::new(TOOLS).join("xen-hptool");
    let output = Command::new(tool).args([command, &pcpu.to_string()]).output()?;
    ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
