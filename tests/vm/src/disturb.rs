// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The scheduler's worst moods: moves threads between vCPUs and vCPUs between physical CPUs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use crate::rng::Rng;
use crate::threads::run_on;
use crate::xen::Xen;
use nix::unistd::Pid;

/// Streams of random numbers that no worker uses.
const STREAM_THREADS: u64 = 1 << 32;
const STREAM_VCPUS: u64 = 2 << 32;

/// Moves a random one of `threads` to a random CPU every 0.25 to 1.5 ms.
pub fn threads(threads: &[Pid], cpus: &[usize], seed: u64, stop: &AtomicBool) {
    let mut rng = Rng::new(seed, STREAM_THREADS);
    while !stop.load(Ordering::Relaxed) {
        // A thread that has ended meanwhile does not matter.
        let _ = run_on(*rng.pick(threads), &[*rng.pick(cpus)]);
        sleep(Duration::from_micros(rng.between(250, 1500)));
    }
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
