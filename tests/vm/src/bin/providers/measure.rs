// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests measurements of closures, which leave out what the measurement itself executes.

use anyhow::{Result, ensure};
use perfctr::{Counting, Event, start};
use vm_tests::region::{KNOWN_LOOP, known_loop};

use crate::Test;

pub const TESTS: &[Test] = &[
    ("a closure of nothing measures 0 and a loop what it executes", both_events),
    ("so does a session of one event, and of another one after it", one_event),
];

const INSTRUCTIONS: Event = Event::INSTRUCTIONS.user();
const BRANCHES: Event = Event::BRANCHES.user();
/// The number of measurements of each closure.
const ROUNDS: usize = 2_000;

fn both_events() -> Result<()> {
    exact(start([INSTRUCTIONS, BRANCHES])?, KNOWN_LOOP)?;
    let [instructions, branches] = KNOWN_LOOP;
    exact(start([BRANCHES, INSTRUCTIONS])?, [branches, instructions])
}

fn one_event() -> Result<()> {
    let [instructions, branches] = KNOWN_LOOP;
    exact(start([INSTRUCTIONS])?, [instructions])?;
    exact(start([BRANCHES])?, [branches])
}

/// Checks that every undisturbed measurement is exact, and that few are disturbed.
fn exact<const N: usize>(mut counting: Counting<N>, expected: [u64; N]) -> Result<()> {
    let mut undisturbed = 0;
    for round in 0..ROUNDS {
        for (what, measured, expected) in [
            ("nothing", counting.measure(|| {})?, [0; N]),
            ("a loop", counting.measure(known_loop_in_a_closure())?, expected),
        ] {
            ensure!(measured.direct, "round {round}: {what} needed a system call");
            if measured.retries == 0 {
                undisturbed += 1;
                let counts = measured.counts;
                ensure!(
                    counts == expected,
                    "round {round}: {what} is {counts:?}, not {expected:?}"
                );
            }
        }
    }
    ensure!(undisturbed > ROUNDS, "{undisturbed} of {} measurements undisturbed", 2 * ROUNDS);
    Ok(())
}

/// Returns a closure with a known loop. The loop is in the closure itself, since a function of its
/// own would be called.
fn known_loop_in_a_closure() -> impl FnMut() {
    || known_loop()
}
