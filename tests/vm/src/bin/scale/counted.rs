// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Locks that are taken, and interrupts that are sent, while sessions come and go.

use anyhow::Result;
use perfctr::{Provider, Session};
use vm_tests::interrupts::{Interrupt, received};
use vm_tests::threads::{SELF, cpus, run_on};

use crate::mutexes::Mutexes;
use crate::{At, COUNTERS};

/// The number of sessions that are opened, started, stopped and closed.
const SESSIONS: u32 = 100;

/// Opens and closes sessions one after the other. Each is started and stopped, too.
fn come_and_go() -> Result<()> {
    for _ in 0..SESSIONS {
        let mut session = Session::open_with(Provider::Paravirt)?;
        session.start(&COUNTERS[..1])?;
        session.stop()?;
    }
    Ok(())
}

/// Measures how many of the locks that the whole module has only one of a session takes.
pub fn mutexes(at: At, whose: &str) -> Result<()> {
    let mutexes = Mutexes::watch()?;
    come_and_go()?;
    let taken = mutexes.taken()? as f64 / f64::from(SESSIONS);
    at.print(&format!("locks of the module for a session {whose}"), taken);
    Ok(())
}

/// Measures how many interrupts vCPUs send each other for 100 sessions on one vCPU.
pub fn interrupts(at: At) -> Result<()> {
    let all = cpus()?;
    run_on(SELF, &all[..1])?;
    let before = received(Interrupt::Call)?;
    come_and_go()?;
    let sent = received(Interrupt::Call)? - before;
    run_on(SELF, &all)?;
    at.print("interrupts of vCPUs for 100 sessions", sent as f64);
    Ok(())
}
