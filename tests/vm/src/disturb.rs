// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The scheduler's worst moods: moves threads between vCPUs and vCPUs between physical CPUs.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use crate::rng::Rng;
use crate::threads::run_on;
use crate::xen::{CONTROL_DOMAIN, TOOLS, Xen};
use anyhow::ensure;
use nix::unistd::Pid;

/// Streams of random numbers that no worker uses.
const STREAM_THREADS: u64 = 1 << 32;
const STREAM_VCPUS: u64 = 2 << 32;

/// Moves one after another, until it is stopped.
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

/// Moves a random vCPU of a domain to a random physical CPU every 1 to 5 ms, and lets all go in the
/// end.
pub fn vcpus(xen: &Xen, domain: u16, cpus: &[usize], pcpus: u32, seed: u64, stop: &AtomicBool) {
    let mut rng = Rng::new(seed, STREAM_VCPUS + u64::from(domain));
    while !stop.load(Ordering::Relaxed) {
        let vcpu = *rng.pick(cpus) as u32;
        if let Err(error) = xen.set_affinity(domain, vcpu, 1 << rng.between(0, pcpus.into())) {
            eprintln!("domain {domain}: vCPU {vcpu} cannot be moved: {error}");
            return;
        }
        sleep(Duration::from_micros(rng.between(1000, 5000)));
    }
    for &vcpu in cpus {
        let _ = xen.set_affinity(domain, vcpu as u32, (1 << pcpus) - 1);
    }
}

/// How long a physical CPU is away, and how long it is back before it goes again.
const AWAY: Duration = Duration::from_millis(50);
const BACK: Duration = Duration::from_millis(400);

/// Takes the last of the machine's `pcpus` physical CPUs away and gives it back, again and again,
/// and moves this domain's vCPUs meanwhile.  Gives how often it was back.
///
/// # Errors
///
/// Debian's tool fails.
pub fn pcpus(
    xen: &Xen,
    cpus: &[usize],
    pcpus: u32,
    seed: u64,
    stop: &AtomicBool,
) -> anyhow::Result<u64> {
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        hotplug("cpu-offline", pcpus - 1)?;
        sleep(AWAY);
        hotplug("cpu-online", pcpus - 1)?;
        rounds += 1;
        let enough = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| vcpus(xen, CONTROL_DOMAIN, cpus, pcpus, seed + rounds, &enough));
            sleep(BACK);
            enough.store(true, Ordering::Relaxed);
        });
    }
    Ok(rounds)
}

/// Debian's tool for physical CPUs, which knows `cpu-online` and `cpu-offline`.
///
/// # Errors
///
/// It fails, with what it has said.
pub fn hotplug(command: &str, pcpu: u32) -> anyhow::Result<()> {
    let tool = Path::new(TOOLS).join("xen-hptool");
    let said = Command::new(tool).args([command, &pcpu.to_string()]).output()?;
    ensure!(said.status.success(), "{command}: {}", String::from_utf8_lossy(&said.stderr));
    Ok(())
}
