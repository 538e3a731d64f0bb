// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests a thread that samples itself while other events of perf's come and go.
//!
//! Whenever a sampling event of perf's begins to count, the module loads the thread's counters
//! again, with interrupts disabled. If one of them has overflowed just before, the module finds
//! that there. It tells the thread by irq_work, which the kernel does when perf has released its
//! locks.

use anyhow::{Result, ensure};
use perf_event_open_sys::bindings::PERF_COUNT_HW_BRANCH_INSTRUCTIONS;
use perfctr::Event;
use vm_tests::interrupts::{Interrupt, received};
use vm_tests::perf::{self, Whose, generic};
use vm_tests::sampled::{self, Noted, SIGNAL};
use vm_tests::stats::ModuleStats;
use vm_tests::threads::{SELF, run_on};

use crate::Machine;

/// The period. It is longer than the way of a signal through the kernel, so that the thread makes
/// progress between two signals. Unit: instructions of both modes.
const PERIOD: u64 = 20_011;

/// The period of perf's event, which does not end.
const NEVER: u64 = 1 << 60;

/// How often an event of perf's comes and goes.
const CHANGES: u32 = 4_000;

/// The least number of times that the kernel has to do irq_work. Without the module's work there
/// are fewer in this test.
const FOUND_MIN: u64 = 50;

struct Outcome {
    noted: Noted,
    /// How often the period fits into the thread's count.
    expected: u64,
    /// The number of overflows that were reported together with the one before.
    merged: u64,
    /// How often the kernel has done work.
    works: u64,
}

/// Checks that each overflow is reported once, or together with the one before.
pub fn found(machine: &Machine) -> Result<()> {
    run_on(SELF, &machine.cpus[..1])?;
    sampled::handle()?;
    let outcome = sample_beside_changes();
    sampled::close_all();
    run_on(SELF, &machine.cpus)?;
    let Outcome { noted, expected, merged, works } = outcome?;
    println!("{} overflows delivered, work was done {works} times", noted.overflows);
    ensure!(noted.extra == 0, "overflows are delivered that were none: {noted:?}");
    ensure!(noted.lost == merged, "{merged} overflows merged, but {noted:?}");
    // The last period may end while the kernel stops the counters.
    let passed = noted.passed();
    ensure!((passed..=passed + 1).contains(&expected), "{expected} periods, {passed} delivered");
    ensure!(works >= FOUND_MIN, "work was done only {works} times in {CHANGES} changes");
    Ok(())
}

fn sample_beside_changes() -> Result<Outcome> {
    let mut session = sampled::open()?;
    let mut branches = generic(PERF_COUNT_HW_BRANCH_INSTRUCTIONS);
    branches.__bindgen_anon_1.sample_period = NEVER;
    branches.set_disabled(1);
    let branches = perf::Event::open(branches, Whose::Thread(SELF), None)?;
    let (stats, works) = (ModuleStats::read()?, received(Interrupt::Work)?);
    sampled::expect(&[PERIOD], 0);
    session.start_sampling(&[Event::INSTRUCTIONS.every(PERIOD), Event::INSTRUCTIONS], SIGNAL)?;
    let changed =
        (0..CHANGES).try_for_each(|_| branches.enable().and_then(|()| branches.disable()));
    session.stop()?;
    let noted = sampled::finish();
    changed?;
    Ok(Outcome {
        noted,
        expected: session.read::<1>()?.counts[0] / PERIOD,
        merged: ModuleStats::read()?.growth(&stats, "overflows_merged")?,
        works: received(Interrupt::Work)? - works,
    })
}
