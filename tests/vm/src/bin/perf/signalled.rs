// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests events that send signals when they overflow, opened as rr opens them: pinned, with a whole
//! select word, and with a period that does not end until another one is set.

use std::iter::repeat_n;

use anyhow::{Result, ensure};
use shared_abi::caps::VENDOR_AMD;
use vm_tests::perf::{Event, Whose, raw};
use vm_tests::region::Region;
use vm_tests::signalled::{prepare, take_count};
use vm_tests::threads::SELF;

use crate::Machine;

/// A period that does not end.
const NEVER: u64 = 1 << 60;

/// The periods, each of which is set several times, and the longest of them in between.
const PERIODS: [u64; 12] = [1, 2, 3, 7, 25, 60, 102, 500, 999, 1_000, 1_001, 10_007];
const TIMES: usize = 5;

/// A region with more instructions, and more conditional branches, than the longest period.
const WORK: Region = Region { first: 20_000, second: 20_000 };

/// The bits that a register of the PMU needs for user mode with an interrupt.
const WORD: u64 = 0x51_0000;

fn open(select: u64) -> Result<Event> {
    let mut attributes = raw(WORD | select);
    attributes.__bindgen_anon_1.sample_period = NEVER;
    attributes.set_pinned(1);
    attributes.set_exclude_guest(1);
    attributes.set_disabled(1);
    let event = Event::open(attributes, Whose::Thread(SELF), None)?;
    prepare(&event)?;
    Ok(event)
}

/// Instructions and conditional branches.
fn selects(machine: &Machine) -> [u64; 2] {
    [0xc0, if machine.caps.vendor == VENDOR_AMD { 0xd1 } else { 0x01_c4 }]
}

/// Checks that the handler counts the same number of events beyond each period, which are those of
/// its own execution.
///
/// The function that counts them is compiled once, so that it executes the same instructions each
/// time. Otherwise a compiler might copy a loop's first round.
#[inline(never)]
fn check(select: u64, count_beyond: &mut dyn FnMut(u64) -> Result<u64>) -> Result<()> {
    let mut expected = None;
    for period in PERIODS.into_iter().flat_map(|period| repeat_n(period, TIMES)) {
        let beyond = count_beyond(period)?;
        let expected = *expected.get_or_insert(beyond);
        ensure!(
            beyond == expected,
            "{select:#x}: {beyond} events beyond a period of {period}, not {expected}"
        );
    }
    Ok(())
}

/// Makes the event continue to count while no period ends.
fn count_without_end(event: &Event) -> Result<()> {
    event.set_period(NEVER)?;
    event.enable()?;
    WORK.execute(&mut 0);
    ensure!(take_count() == 0, "a signal before the period's end");
    Ok(())
}

/// Checks that a signal comes after exactly one period, before the next instruction, and none comes
/// while the period does not end.
pub fn exactly(machine: &Machine) -> Result<()> {
    for select in selects(machine) {
        let event = open(select)?;
        check(select, &mut |period| {
            count_without_end(&event)?;
            event.disable()?;
            event.reset()?;
            event.set_period(period)?;
            event.enable()?;
            WORK.execute(&mut 0);
            event.disable()?;
            let count = take_count();
            ensure!(count > period, "{count} events counted at the end of {period}");
            Ok(count - period)
        })?;
    }
    Ok(())
}

/// Checks the same for a period that is set while the event counts.
pub fn while_it_counts(machine: &Machine) -> Result<()> {
    for select in selects(machine) {
        let event = open(select)?;
        check(select, &mut |period| {
            count_without_end(&event)?;
            let before = event.count()?;
            event.set_period(period)?;
            WORK.execute(&mut 0);
            event.disable()?;
            let count = take_count();
            ensure!(count > before + period, "{count} at the end of {period} after {before}");
            Ok(count - before - period)
        })?;
    }
    Ok(())
}
