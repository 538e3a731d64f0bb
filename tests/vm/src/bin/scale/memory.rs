// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The memory that counters, mappings and users take, by the kernel's account of free pages.

use std::fs;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread::{self, Builder};

use anyhow::{Context, Result};
use perfctr::raw::{Device, Pages};
use shared_abi::limits::PAGE_BYTES;
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::users::{Child, become_user_alone};

use crate::At;
use crate::sleepers::STACK_BYTES;

/// The number of threads that get counters.
const THREADS: usize = 1_000;
/// The number of users that get counters, each in a thread of its own.
const USERS: usize = 200;
/// The first of these users.
const FIRST_USER: u32 = 6_000;
/// The bytes of a thread's stack that may be used.
const USED_STACK_BYTES: usize = STACK_BYTES / 2;

/// Memory in bytes: what is free, and what a process has.
#[derive(Clone, Copy, Debug)]
struct Memory {
    free: f64,
    resident: f64,
}

/// Measures in another process, whose memory is free again when it ends.
pub fn measure(at: At) -> Result<()> {
    let vcpus = Device::open()?.info()?.vcpus;
    Child::fork(|| {
        let [_, opened, created, mapped] = steps(vcpus, THREADS, |_| 0)?;
        let each = |before: f64, after: f64| (before - after) / THREADS as f64;
        at.print("bytes of a thread's counters", each(opened.free, created.free));
        at.print("bytes of the kernel for a mapping", each(created.free, mapped.free));
        let resident = each(mapped.resident, created.resident);
        at.print("bytes of a mapping in the resident set", resident);
        Ok(())
    })?
    .join()?;
    Child::fork(|| {
        let each_user = |thread| FIRST_USER + thread as u32;
        let [_, opened, created, _] = steps(vcpus, USERS, each_user)?;
        let each = (opened.free - created.free) / USERS as f64;
        at.print("bytes of a user with one thread's counters", each);
        Ok(())
    })?
    .join()
}

/// Has threads of these users open the device, create their counters, and map them, all on one
/// vCPU. Returns the memory before and after each step.
fn steps(vcpus: u32, threads: usize, user: fn(usize) -> u32) -> Result<[Memory; 4]> {
    run_on(SELF, &cpus()?[..1])?;
    let step = &Barrier::new(threads + 1);
    thread::scope(|scope| {
        for thread in 0..threads {
            let thread = move || execute_steps(vcpus, user(thread), step);
            let builder = Builder::new().stack_size(STACK_BYTES);
            builder.spawn_scoped(scope, thread).unwrap_or_else(|error| fail(error.into()));
        }
        let mut memory = [(); 4].map(|()| Memory { free: 0.0, resident: 0.0 });
        for moment in &mut memory {
            step.wait();
            *moment = Memory::now()?;
            step.wait();
        }
        Ok(memory)
    })
}

/// Ends the process, since others would wait for the thread that has failed.
fn fail(error: anyhow::Error) -> ! {
    eprintln!("a thread of the measurement of memory: {error:#}");
    std::process::exit(1)
}

/// Executes the steps of one thread, each when all threads have got there.
fn execute_steps(vcpus: u32, user: u32, step: &Barrier) {
    touch_stack();
    if user != 0 {
        become_user_alone(user).unwrap_or_else(|error| fail(error));
    }
    let next = || {
        step.wait();
        step.wait();
    };
    next();
    let device = Device::open().unwrap_or_else(|error| fail(error.into()));
    next();
    device.create_for(0).unwrap_or_else(|error| fail(error.into()));
    next();
    let pages = Pages::new(&device, vcpus).unwrap_or_else(|error| fail(error.into()));
    next();
    drop(pages);
    device.unlink().unwrap_or_else(|error| fail(error.into()));
}

/// Makes the kernel give the thread the memory of its stack.
#[inline(never)]
fn touch_stack() {
    black_box([0_u8; USED_STACK_BYTES]);
}

impl Memory {
    fn now() -> Result<Self> {
        // The kernel adds up what each CPU has counted.
        fs::write("/proc/sys/vm/stat_refresh", "1")?;
        let zones = fs::read_to_string("/proc/zoneinfo")?;
        let own = fs::read_to_string("/proc/self/statm")?;
        let resident = own.split_whitespace().nth(1).context("no resident pages")?;
        let bytes = |pages: u64| (pages * PAGE_BYTES as u64) as f64;
        Ok(Self { free: bytes(free_pages(&zones)), resident: bytes(resident.parse()?) })
    }
}

/// Returns the pages that are free, by the kernel's list of zones. Those that a CPU keeps for
/// itself are not among those that it calls free.
fn free_pages(zones: &str) -> u64 {
    let number = |line: &str| line.split_whitespace().last()?.parse::<u64>().ok();
    let is_free = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("pages free") || line.starts_with("count:")
    };
    zones.lines().filter(is_free).filter_map(number).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_pages_are_those_of_zones_and_of_their_cpus() {
        let zones = "Node 0, zone      DMA\n  pages free     3840\n        boost    0\n  \
                     pagesets\n    cpu: 0\n              count: 5\n              high:  0\n\
                     Node 0, zone    DMA32\n  pages free     100\n      nr_free_pages 99\n\
                     cpu: 1\n              count: 7\n";
        assert_eq!(free_pages(zones), 3840 + 5 + 7 + 100);
    }
}
