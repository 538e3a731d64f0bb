// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Who executes in a profile, in the form of perf's files: a process, a thread, and a mode.
//!
//! In the profile of a host, perf's host is the hypervisor together with the control domain. All
//! other domains are its guests. A domain is a process, and its virtual CPUs are the threads. If a
//! domain has said which threads they executed, these threads and their processes are as well.
//!
//! In the profile of a KVM host, perf's host is the host, and its guests are the virtual machines.
//! What the host executes for a machine is in the kernel or in a program of the host.

use anyhow::{Result, ensure};
use shared_abi::arch::is_kernels_address;

use super::super::perf;
use crate::host::{CONTROL_DOMAIN, kernel_of};
use crate::profile::{Frame, Layer, Module, Profile, Thread};

/// The difference between the process numbers of two domains whose numbers are consecutive. A
/// domain's process and its virtual CPU 0 have the same number, and each further virtual CPU has
/// the next one, since perf needs a different number for each thread. The process of domain 0 has
/// number 1, because perf uses 0 for the idle thread.
const THREADS: u32 = 10_000;
/// The numbers of domains have to be below this. Xen's are below 2^15.
const DOMAINS: u32 = 100_000;

/// The number of the first process of a domain that is known by its own number. All domains have
/// lower numbers.
const PROCESSES: u32 = DOMAINS * THREADS;

/// Returns the number of a thread's process.
pub fn process(profile: &Profile, thread: &Thread) -> u32 {
    match (&profile.host, &thread.task) {
        (Some(_), Some(task)) => first(profile, |other| {
            other
                .task
                .as_ref()
                .is_some_and(|other| (other.pid, &other.process) == (task.pid, &task.process))
                && other.pid == thread.pid
        }),
        (Some(_), None) => domain(profile, thread).wrapping_mul(THREADS).wrapping_add(1),
        (None, _) => thread.pid,
    }
}

/// Returns the number of a thread's domain. The machines of a KVM host have the numbers of
/// processes, which can be very large, so that their order among the threads numbers them.
fn domain(profile: &Profile, thread: &Thread) -> u32 {
    let first = || profile.threads.iter().position(|other| other.pid == thread.pid);
    if profile.is_of_kvm_host() { first().map_or(0, |index| index as u32) } else { thread.pid }
}

/// Returns the number that the first of these threads gives them all. The numbers that domains give
/// their processes would conflict with each other.
fn first(profile: &Profile, is_like: impl Fn(&Thread) -> bool) -> u32 {
    let index = profile.threads.iter().position(is_like).unwrap_or(0);
    PROCESSES.saturating_add(index as u32)
}

/// Returns whether this is the number of a process that is known by its own number, and not that of
/// a domain.
pub fn is_known(process: u32) -> bool {
    process >= PROCESSES
}

/// Returns a thread's number.
pub fn thread(profile: &Profile, thread: &Thread) -> u32 {
    match (&profile.host, &thread.task) {
        (Some(_), Some(_)) => {
            first(profile, |other| (other.pid, &other.task) == (thread.pid, &thread.task))
        }
        (Some(_), None) => process(profile, thread).wrapping_add(thread.tid),
        (None, _) => thread.tid,
    }
}

/// Checks that all threads have different numbers, and that the hypervisor has places of its own.
pub fn check(profile: &Profile) -> Result<()> {
    ensure!(
        !profile.host.as_ref().is_some_and(|host| host.at_guests),
        "the profile was recorded with --at-guests, so its samples of the hypervisor are in \
         several domains' kernels, which a file of perf's cannot say"
    );
    for thread in profile.threads.iter().filter(|thread| thread.task.is_none()) {
        let (domain, vcpu) = (domain(profile, thread), thread.tid);
        ensure!(
            profile.host.is_none() || (domain < DOMAINS && vcpu < THREADS - 1),
            "virtual CPU {vcpu} of domain {domain} found, in a file of perf's they are below \
             {} and {DOMAINS}",
            THREADS - 1
        );
    }
    Ok(())
}

/// Returns the mode of a frame, as records encode it.
pub fn mode(profile: &Profile, thread: &Thread, frame: Frame) -> u32 {
    let layer = frame.module.and_then(|module| profile.modules[module as usize].layer);
    let is_guest = profile.host.is_some() && thread.pid != CONTROL_DOMAIN;
    match layer {
        Some(Layer::Hypervisor)
            if profile.is_of_kvm_host() && !is_kernels_address(frame.address) =>
        {
            perf::PERF_RECORD_MISC_USER
        }
        Some(Layer::Kernel) if is_guest => perf::PERF_RECORD_MISC_GUEST_KERNEL,
        Some(Layer::Hypervisor | Layer::Kernel) => perf::PERF_RECORD_MISC_KERNEL,
        Some(Layer::User) if is_guest => perf::PERF_RECORD_MISC_GUEST_USER,
        Some(Layer::User) | None => perf::PERF_RECORD_MISC_USER,
    }
}

/// Returns the mode in which a process has mapped a module.
pub fn map_mode(module: &Module, mode: u32) -> u32 {
    match module.layer {
        // The process of a KVM host's machine executes for it in the host's user mode.
        Some(Layer::Hypervisor) if mode == perf::PERF_RECORD_MISC_GUEST_USER => {
            perf::PERF_RECORD_MISC_USER
        }
        _ => mode,
    }
}

/// Returns the mode in which a process executes.
pub fn user_mode(profile: &Profile, thread: &Thread) -> u32 {
    match profile.host {
        Some(_) if thread.pid != CONTROL_DOMAIN => perf::PERF_RECORD_MISC_GUEST_USER,
        _ => perf::PERF_RECORD_MISC_USER,
    }
}

/// Returns the word that is before addresses of this mode among callers.
pub fn context(mode: u32) -> u64 {
    match mode {
        perf::PERF_RECORD_MISC_KERNEL => perf::PERF_CONTEXT_KERNEL,
        perf::PERF_RECORD_MISC_GUEST_KERNEL => perf::PERF_CONTEXT_GUEST_KERNEL,
        perf::PERF_RECORD_MISC_GUEST_USER => perf::PERF_CONTEXT_GUEST_USER,
        _ => perf::PERF_CONTEXT_USER,
    }
}

/// Returns the name of a function of the hypervisor or of the control domain's kernel. The
/// hypervisor's names are marked, in the form in which Linux writes the functions of its modules.
pub fn function(module: &Module, name: &str) -> String {
    match module.layer {
        Some(Layer::Hypervisor) if module.path != kernel_of(CONTROL_DOMAIN) => {
            format!("{name} {}", module.path)
        }
        _ => name.to_owned(),
    }
}
