// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Two threads that wait for each other, so that each turn is two switches.

use std::io::{Read, Write, pipe};
use std::thread;

use anyhow::{Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};

use crate::threads::{SELF, cpus, run_on};
use crate::work::Work;

/// The number of times that two threads wait for each other in one attempt.
pub const TURNS: u64 = 500;
/// The number of switches in a turn: one to the other thread, and one back.
pub const SWITCHES_IN_TURN: u64 = 2;
/// How often they do so before anything is measured.
pub const FIRST_TURNS: u64 = 100;

/// Executes a program in the calling thread, which may count meanwhile.
pub type Around<'a> = &'a (dyn Fn(&mut dyn FnMut()) -> Result<()> + Sync);

/// Has two threads take turns, each on a CPU of its own if there are two. Returns what the machine
/// did in each turn.
///
/// # Errors
///
/// Those of the threads' `Around`; too few turns were switches.
///
/// # Panics
///
/// A thread's pipe fails.
pub fn take([here, there]: [Around<'_>; 2]) -> Result<Vec<Work>> {
    let ((mut ball, mut away), (mut back, mut home)) = (pipe()?, pipe()?);
    let all = cpus()?;
    let (first, last) = (all.first().copied().unwrap_or(0), all.last().copied().unwrap_or(0));
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            run_on(SELF, &[last])?;
            there(&mut || {
                for _ in 0..FIRST_TURNS + TURNS {
                    ball.read_exact(&mut [0]).expect("the first thread writes");
                    home.write_all(&[0]).expect("the first thread reads");
                }
            })
        });
        let (mut turns, mut switches) = (Vec::with_capacity(TURNS as usize), 0);
        run_on(SELF, &[first])?;
        here(&mut || {
            let mut turn = || {
                away.write_all(&[0]).expect("the other thread reads");
                back.read_exact(&mut [0]).expect("the other thread writes");
            };
            // From then on the other thread counts, too.
            (0..FIRST_TURNS).for_each(|_| turn());
            let first = context_switches();
            for _ in 0..TURNS {
                let before = Work::read();
                turn();
                turns.push(Work::read() - before);
            }
            switches = context_switches() - first;
        })?;
        other.join().expect("no thread panics")?;
        run_on(SELF, &all)?;
        // Where each thread has a vCPU, a few of them have not gone to sleep when their turn comes.
        let expected = SWITCHES_IN_TURN * TURNS * 9 / 10;
        ensure!(switches >= expected, "{switches} switches, at least {expected} expected");
        Ok(turns)
    })
}

/// Returns the sum over all threads of this process so far.
fn context_switches() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("a process knows its usage");
    let switches = usage.voluntary_context_switches() + usage.involuntary_context_switches();
    switches.unsigned_abs()
}
