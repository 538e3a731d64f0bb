// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests events that a process and its child share, where the child belongs to another user.

use std::hint::black_box;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};

use anyhow::{Context, Result, ensure};
use perf_event_open_sys::bindings::PERF_COUNT_HW_INSTRUCTIONS;
use vm_tests::perf::{Event, Whose, generic};
use vm_tests::region::Region;
use vm_tests::stats::ModuleStats;
use vm_tests::threads::{SELF, run_on};
use vm_tests::users::{Child, SOMEBODY, become_user};

use crate::Machine;
use crate::counted::ENABLED_AND_RUNNING;

/// How often each of the two wakes the other one.
const TURNS: u64 = 300;
const SHORT: Region = Region { first: 100, second: 300 };
const LONG: Region = Region { first: 2_000, second: 7_000 };

/// Executes the region at each turn, and then waits for the other process.
fn take_turns(region: Region, from: &mut PipeReader, to: &mut PipeWriter) -> Result<()> {
    for _ in 0..TURNS {
        region.execute(&mut black_box(0));
        to.write_all(&[1])?;
        from.read_exact(&mut [0])?;
    }
    Ok(())
}

/// Counts this process and a child of another user, which take turns on one CPU.
fn count(region: Region) -> Result<u64> {
    let mut instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
    instructions.set_inherit(1);
    instructions.read_format = ENABLED_AND_RUNNING;
    let event = Event::open(instructions, Whose::Thread(SELF), None)?;
    let ((mut from_child, mut to_parent), (mut from_parent, mut to_child)) = (pipe()?, pipe()?);
    let child = Child::fork(|| {
        become_user(SOMEBODY)?;
        take_turns(region, &mut from_parent, &mut to_parent)
    })?;
    let turns = take_turns(region, &mut from_child, &mut to_child);
    child.join()?;
    turns?;
    event.disable()?;
    let [counted, enabled, running] = event.read()?;
    ensure!(enabled > 0 && running == enabled, "{running} ns of {enabled}, alone on its CPU");
    Ok(counted)
}

/// Checks that the counts are exact. The two processes switch to each other directly, so perf
/// exchanges their contexts and leaves their events on the CPU. Meanwhile the page there must not
/// be shown to the other user.
pub fn by_another_user(machine: &Machine) -> Result<()> {
    let cpu = *machine.cpus.last().context("there is no CPU")?;
    run_on(SELF, &[cpu])?;
    // This executes everything that is executed only once.
    count(SHORT)?;
    let before = ModuleStats::read()?;
    let [short, long, again] = [count(SHORT)?, count(LONG)?, count(SHORT)?];
    let registers = ModuleStats::read()?.growth(&before, "registers")?;
    run_on(SELF, &machine.cpus)?;
    ensure!(short == again, "{short} instructions, and then {again}");
    let truth = 2 * TURNS * (LONG.instructions() - SHORT.instructions());
    let counted = long.wrapping_sub(short).cast_signed();
    ensure!(counted == truth.cast_signed(), "{counted} instructions more, not {truth}");
    ensure!(registers >= TURNS, "pages were exchanged {registers} times only");
    Ok(())
}
