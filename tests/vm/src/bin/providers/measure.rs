// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests measurements of closures, which exclude the cost of the measurement itself.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use anyhow::{Result, bail, ensure};
use perfctr::{Counting, Counts, Error, Event, Polls, shared, start};
use vm_tests::region::{KNOWN_LOOP, known_loop};

use crate::Test;

pub const TESTS: &[Test] = &[
    ("a closure of nothing measures 0 and a loop what it executes", both_events),
    ("so does a session of one event, and of another one after it", one_event),
    ("a library and its caller share a session, and either is exact", two_users),
    ("futures that take turns are counted each by itself", futures),
];

const INSTRUCTIONS: Event = Event::INSTRUCTIONS.user();
const BRANCHES: Event = Event::BRANCHES.user();
/// The number of measurements of each closure.
const ROUNDS: usize = 2_000;

fn both_events() -> Result<()> {
    exact(&start([INSTRUCTIONS, BRANCHES])?, KNOWN_LOOP)?;
    let [instructions, branches] = KNOWN_LOOP;
    exact(&start([BRANCHES, INSTRUCTIONS])?, [branches, instructions])
}

fn one_event() -> Result<()> {
    let [instructions, branches] = KNOWN_LOOP;
    exact(&start([INSTRUCTIONS])?, [instructions])?;
    exact(&start([BRANCHES])?, [branches])
}

fn two_users() -> Result<()> {
    let events = [INSTRUCTIONS, BRANCHES];
    let (library, caller) = (shared(events)?, shared(events)?);
    let other = shared([BRANCHES, INSTRUCTIONS]);
    ensure!(matches!(other, Err(Error::AlreadyOpen)), "{other:?}");
    exact(&library, KNOWN_LOOP)?;
    drop(library);
    exact(&caller, KNOWN_LOOP)?;
    drop(caller);
    exact(&*shared([INSTRUCTIONS])?, [KNOWN_LOOP[0]])
}

/// Checks that every undisturbed measurement is exact, and that few are disturbed.
fn exact<const N: usize>(counting: &Counting<N>, expected: [u64; N]) -> Result<()> {
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

/// Checks that futures which take turns get the counts of their own polls.
fn futures() -> Result<()> {
    let counting = start([INSTRUCTIONS, BRANCHES])?;
    let mut undisturbed = 0;
    for round in 0..ROUNDS {
        let Turns { short, long, third } = take_turns(&counting)?;
        if [short, long, third].iter().any(|counts| counts.retries > 0) {
            continue;
        }
        undisturbed += 1;
        for (n, known) in KNOWN_LOOP.into_iter().enumerate() {
            let [short, long, third] = [short, long, third].map(|counts| counts.counts[n]);
            let least = known..known + 100;
            ensure!(
                least.contains(&third),
                "round {round}: {third} in a poll, {known} in its loop"
            );
            // Both had the same polls, except for two polls that were not the last.
            ensure!(long - short == 2 * third, "round {round}: {short}, {long}, {third} in a poll");
        }
    }
    ensure!(undisturbed > ROUNDS / 2, "{undisturbed} of {ROUNDS} undisturbed");
    Ok(())
}

/// The counts of two futures, and of a poll of the longer one that was not its last.
struct Turns {
    short: Counts<2>,
    long: Counts<2>,
    third: Counts<2>,
}

/// Polls two futures of the same code in turns, the first one three times and the other one five
/// times, until they are ready. The thread executes more between the polls.
fn take_turns(counting: &Counting<2>) -> Result<Turns> {
    let future = |polls: usize| {
        let mut left = polls;
        counting.polls(poll_fn(move |_| {
            known_loop();
            left -= 1;
            if left == 0 { Poll::Ready(()) } else { Poll::Pending }
        }))
    };
    let (mut short, mut long) = (pin!(future(3)), pin!(future(5)));
    let mut context = Context::from_waker(Waker::noop());
    let mut poll = |future: &mut Pin<&mut Polls<'_, _, 2>>| future.as_mut().poll(&mut context);
    for _ in 0..2 {
        ensure!(poll(&mut short).is_pending() && poll(&mut long).is_pending());
        known_loop();
    }
    let after_two = long.counts();
    ensure!(poll(&mut long).is_pending());
    let third = long.counts() - after_two;
    ensure!(poll(&mut long).is_pending());
    match (poll(&mut short), poll(&mut long)) {
        (Poll::Ready(short), Poll::Ready(long)) => {
            Ok(Turns { short: short?.1, long: long?.1, third })
        }
        _ => bail!("a future is not ready"),
    }
}
