// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests CPUs that go offline and come back while threads count.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use perfctr::{Cause, Error, Refusal};
use vm_tests::host::Host;
use vm_tests::stats::{threads, until_threads};
use vm_tests::threads::{SELF, cpus, run_on, take_away_and_give_back};
use vm_tests::witness::Witness;
use vm_tests::{module, reload};

use crate::ends::{elsewhere, exact};

/// The number of threads for each CPU.
const THREADS_PER_CPU: usize = 2;

/// Takes every CPU but the first offline and brings it back, `rounds` times, while threads count.
pub fn come_and_go(rounds: u32) -> Result<()> {
    let cpus = cpus()?;
    ensure!(cpus.len() > 1, "there is only one CPU");
    let before = threads()?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS_PER_CPU * cpus.len())
            .map(|_| {
                scope.spawn(|| -> Result<u64> {
                    let witness = Witness::new()?;
                    let mut checks = 0;
                    while !stop.load(Ordering::Relaxed) {
                        exact(&witness)?;
                        checks += 1;
                    }
                    Ok(checks)
                })
            })
            .collect();
        let plugged = take_away_and_give_back(&cpus[1..], rounds);
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            let checks = worker.join().expect("workers do not panic")?;
            ensure!(checks > 0, "a thread has checked nothing");
        }
        Ok(plugged?)
    })?;
    until_threads(before)
}

/// Brings a CPU online while the hypervisor refuses to publish its counters. Threads there get an
/// error. They count there as soon as the host allows it, and also after the CPU has come online
/// again.
pub fn come_online_without_counters(host: &dyn Host) -> Result<()> {
    let cpu = *cpus()?.last().context("there is no CPU")?;
    let online = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    let before = threads()?;
    fs::write(&online, "0")?;
    host.allow(false)?;
    let came = fs::write(&online, "1");
    let refused = elsewhere(|| -> Result<_> {
        run_on(SELF, &[cpu])?;
        Ok(Witness::new().err().and_then(|error| error.downcast::<Error>().ok()))
    });
    host.allow(true)?;
    came.context("the CPU does not come online")?;
    let refused = refused?;
    ensure!(
        matches!(refused, Some(Error::Refused(Refusal { cause: Cause::Forbidden, .. }))),
        "a thread there is told {refused:?}"
    );
    let counts = || {
        elsewhere(|| -> Result<()> {
            run_on(SELF, &[cpu])?;
            exact(&Witness::new()?)
        })
    };
    for _ in 0..2 {
        counts().context("the host allows it again")?;
    }
    fs::write(&online, "0")?;
    fs::write(&online, "1")?;
    counts().context("the CPU comes online where it may count")?;
    until_threads(before)
}

/// Unloads the module while a CPU is offline on which a thread has counted, and brings the CPU
/// back. By then the module's memory is somebody else's, so no page of it may be registered.
pub fn absent_while_the_module_goes(host: &dyn Host) -> Result<()> {
    let cpu = *cpus()?.last().context("there is no CPU")?;
    let online = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    elsewhere(|| -> Result<()> {
        run_on(SELF, &[cpu])?;
        let witness = Witness::new()?;
        exact(&witness)?;
        fs::write(&online, "0")?;
        Ok(())
    })?;
    let unloaded = module::unload_when_idle();
    fs::write(&online, "1")?;
    unloaded.context("cannot unload the module")?;
    let none_left = reload::no_page_is_registered(host);
    module::load()?;
    none_left
}
