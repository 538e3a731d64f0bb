// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! CPUs come and go while threads count.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use vm_tests::stats::{threads, until_threads};
use vm_tests::threads::{cpus, take_away_and_give_back};
use vm_tests::witness::Witness;

use crate::ends::exact;

/// Threads for each CPU.
const THREADS_PER_CPU: usize = 2;

/// Takes every CPU but the first away and gives it back, `rounds` times, while threads count.
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
