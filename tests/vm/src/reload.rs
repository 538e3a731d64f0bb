// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that the module can be unloaded and loaded again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use perfctr::{Cause, Error};
use shared_abi::hypercall::OP_UNREGISTER;

use crate::host::Host;
use crate::module;
use crate::raw::Argument;
use crate::rng::Rng;
use crate::stats::until_threads;
use crate::threads::{SELF, cpus, run_on};
use crate::witness::Witness;

/// The number of threads that open and close sessions meanwhile.
const THREADS: u64 = 4;

/// How long a thread does not use the module between two sessions, in ms. It is so long that there
/// are moments in which nobody uses the module, even on a slow machine.
const PAUSE_MS: std::ops::Range<u64> = 100..600;

/// How many times more rounds there may be until a session is opened. A busy machine may execute
/// none of the threads for a while.
const ROUNDS_FACTOR: u32 = 20;

/// Checks that the module cannot be unloaded while a thread counts.
///
/// # Errors
///
/// The module can be unloaded, or the thread does not count exactly.
pub fn in_use() -> Result<()> {
    let witness = Witness::new()?;
    let refusal = module::unload();
    ensure!(refusal == Err(Errno::EAGAIN), "unloading gave {refusal:?}");
    witness.exact()
}

/// Unloads and loads the module `rounds` times while threads open and close sessions. A guest that
/// is its own host asks it each time whether a page is left.
///
/// # Errors
///
/// The module cannot be unloaded or loaded, a thread does not count exactly, or something is left:
/// a thread's state in the module, or a vCPU's page in the hypervisor.
///
/// # Panics
///
/// One of the threads panics.
pub fn comes_and_goes(rounds: u32, host: Option<&dyn Host>) -> Result<()> {
    let stop = AtomicBool::new(false);
    let sessions = AtomicU64::new(0);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|id| {
                let (stop, sessions) = (&stop, &sessions);
                scope.spawn(move || open_and_close(id, stop, sessions))
            })
            .collect();
        let reloaded = reload(rounds, host, &sessions);
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().expect("workers do not panic")?;
        }
        reloaded
    })?;
    let sessions = sessions.load(Ordering::Relaxed);
    ensure!(sessions > 0, "no session was opened meanwhile");
    until_threads(0)
}

/// Reloads the module this often, and then until a session was opened.
fn reload(rounds: u32, host: Option<&dyn Host>, sessions: &AtomicU64) -> Result<()> {
    let is_over = |round| round >= rounds && sessions.load(Ordering::Relaxed) > 0;
    for _ in (0..rounds * ROUNDS_FACTOR).take_while(|&round| !is_over(round)) {
        thread::sleep(Duration::from_millis(20));
        module::unload_when_idle().context("cannot unload the module")?;
        let none_left = host.map_or(Ok(()), no_page_is_registered);
        module::load()?;
        none_left?;
    }
    Ok(())
}

/// Checks that the hypervisor has no page of any vCPU, by asking it to give each one back.
///
/// # Errors
///
/// It has one, or answers otherwise.
pub fn no_page_is_registered(host: &dyn Host) -> Result<()> {
    let cpus = cpus()?;
    for &cpu in &cpus {
        run_on(SELF, &[cpu])?;
        let outcome = host.perfctr_op(OP_UNREGISTER, Argument::Null, 0);
        ensure!(
            outcome == Err(Errno::ENXIO),
            "the module is unloaded, and giving vCPU {cpu}'s page back is answered by \
             {outcome:?}, where ENXIO says that there is none"
        );
    }
    run_on(SELF, &cpus)?;
    Ok(())
}

fn open_and_close(id: u64, stop: &AtomicBool, sessions: &AtomicU64) -> Result<()> {
    let mut rng = Rng::new(1, id);
    while !stop.load(Ordering::Relaxed) {
        match Witness::new() {
            Ok(witness) => {
                witness.exact()?;
                sessions.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => match error.downcast_ref() {
                // The module is not loaded at this moment.
                Some(Error::Refused(refusal)) if refusal.cause == Cause::NoModule => {}
                _ => return Err(error),
            },
        }
        thread::sleep(Duration::from_millis(rng.between(PAUSE_MS.start, PAUSE_MS.end)));
    }
    Ok(())
}
