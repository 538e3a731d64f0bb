// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What single operations cost, in instructions of the whole machine.

use std::hint::black_box;
use std::io::{Read, Write, pipe};

use anyhow::{Context, Result, ensure};
use perfctr::{Event, Provider, Session};
use vm_tests::region::Region;
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::turns::{self, Around, SWITCHES_IN_TURN};
use vm_tests::users::{Child, become_user_alone};
use vm_tests::work::{Work, median};

use crate::At;

/// How often an operation is measured. The median is what counts.
const TIMES: usize = 51;
/// The number of reads that are measured together.
const READS: usize = 100;
/// The number of samples that are measured together, and the instructions between two.
const SAMPLES: u64 = 50;
const PERIOD: u64 = 100_003;
/// A period that is too long to end.
const NEVER: u64 = 1 << 30;
/// The number of records in a ring.
const ROOM: usize = 256;
/// How often each process opens a session when many do so at once.
const ROUNDS: usize = 40;
/// A user who has no sleeping thread.
const ANOTHER: u32 = 4_999;

/// Checks that the emulator counts this program's instructions.
pub fn check_tally() -> Result<()> {
    let region = Region { first: 5_000, second: 5_000 };
    let execute = || {
        let before = Work::read();
        region.execute(&mut 0);
        (Work::read() - before).outside_ring0()
    };
    let least = (0..100).map(|_| execute()).min().unwrap_or_default();
    let expected = region.instructions()..region.instructions() + 200;
    ensure!(expected.contains(&least), "{least} instructions by the emulator's tally");
    Ok(())
}

/// Measurements of a thread that counts these events.
#[derive(Clone, Copy, Debug)]
pub struct Operations<'a> {
    /// Where the results belong.
    pub at: At,
    /// The events.
    pub events: &'a [Event],
}

impl Operations<'_> {
    /// Measures everything that a thread and another one of its user do.
    pub fn measure(self) -> Result<()> {
        // All that is measured executes on one vCPU, so that no other one is woken for it.
        let all = cpus()?;
        run_on(SELF, &all[..1])?;
        self.at.print("a session: opened, started, closed", each(|| self.session().map(drop))?);
        let mut session = self.session()?;
        self.at.print("a start and a stop", each(|| start_and_stop(&mut session, self.events))?);
        self.at.print("a read", self.read(&session)?);
        drop(session);
        self.at.print("a sample, a record for each", self.sample()?);
        let counting = |program: &mut dyn FnMut()| self.count(program);
        self.at.print("a switch, both threads count", switch([&counting; 2])?);
        self.at.print("a switch, neither thread counts", switch([&nothing; 2])?);
        Ok(run_on(SELF, &all)?)
    }

    /// Measures a switch to another user's thread. Both threads count.
    pub fn switch_users(self) -> Result<()> {
        let all = cpus()?;
        run_on(SELF, &all[..1])?;
        let here = |program: &mut dyn FnMut()| self.count(program);
        let there = |program: &mut dyn FnMut()| {
            become_user_alone(ANOTHER)?;
            self.count(program)
        };
        self.at.print("a switch, threads of two users count", switch([&here, &there])?);
        Ok(run_on(SELF, &all)?)
    }

    fn session(self) -> Result<Session> {
        let mut session = Session::open_with(Provider::Paravirt)?;
        session.start(self.events)?;
        Ok(session)
    }

    fn count(self, program: &mut dyn FnMut()) -> Result<()> {
        let _session = self.session()?;
        program();
        Ok(())
    }

    fn read(self, session: &Session) -> Result<f64> {
        let mut counts = [0; crate::COUNTERS.len()];
        let counts = &mut counts[..self.events.len()];
        let reads = each(|| {
            for _ in 0..READS {
                black_box(session.read_into(counts)?);
            }
            Ok(())
        })?;
        Ok(reads / READS as f64)
    }

    fn sample(self) -> Result<f64> {
        // The work is half a period more than the samples take. An iteration is two instructions.
        let half = (2 * SAMPLES + 1) * PERIOD / 8;
        let region = Region { first: half, second: half };
        let attempt = |period, expected| -> Result<u64> {
            let mut events = self.events.to_vec();
            events[0] = events[0].every(period);
            let mut session = Session::open_with(Provider::Paravirt)?;
            let mut records = session.records(ROOM, 0)?;
            session.start_recording(&events)?;
            let before = Work::read();
            region.execute(&mut 0);
            let work = Work::read() - before;
            session.stop()?;
            let mut taken = 0;
            while records.take()?.is_some() {
                taken += 1;
            }
            ensure!(taken == expected, "{taken} samples, {expected} expected");
            Ok(work.instructions())
        };
        // The first time, memory and code are not mapped yet.
        attempt(PERIOD, SAMPLES)?;
        let compare = || Ok(attempt(PERIOD, SAMPLES)? as f64 - attempt(NEVER, 0)? as f64);
        let all = (0..7).map(|_| compare()).collect::<Result<Vec<_>>>()?;
        Ok(median(all) / SAMPLES as f64)
    }
}

fn start_and_stop(session: &mut Session, events: &[Event]) -> Result<()> {
    session.start(events)?;
    Ok(session.stop()?)
}

fn nothing(program: &mut dyn FnMut()) -> Result<()> {
    program();
    Ok(())
}

fn switch(threads: [Around<'_>; 2]) -> Result<f64> {
    let turns = turns::take(threads)?;
    // Xen's scheduler takes one of two ways at a switch, which differ by some 1,300 instructions.
    let least = turns.iter().map(Work::instructions).min().context("there are no turns")?;
    Ok(least as f64 / SWITCHES_IN_TURN as f64)
}

/// Measures an operation, less what an empty one costs.
fn each(mut operation: impl FnMut() -> Result<()>) -> Result<f64> {
    let times = |operation: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
        let mut once = || -> Result<f64> {
            let before = Work::read();
            operation()?;
            Ok((Work::read() - before).instructions() as f64)
        };
        // What is executed only once is over by then.
        once()?;
        Ok(median((0..TIMES).map(|_| once()).collect::<Result<_>>()?))
    };
    Ok(times(&mut operation)? - times(&mut || Ok(()))?)
}

/// Measures what a session costs if a process on each vCPU opens one after the other. The processes
/// share no memory, so that they meet in the module only.
pub fn at_once(at: At, cpus: &[usize]) -> Result<()> {
    let ((mut go, mut to_all), (mut ready, mut to_parent)) = (pipe()?, pipe()?);
    let mut open = |&cpu: &usize| {
        Child::fork(|| {
            let placed = run_on(SELF, &[cpu]);
            to_parent.write_all(&[0])?;
            go.read_exact(&mut [0])?;
            placed?;
            (0..ROUNDS).try_for_each(|_| {
                let mut session = Session::open_with(Provider::Paravirt)?;
                Ok(session.start(&crate::COUNTERS[..1])?)
            })
        })
    };
    let children = cpus.iter().map(&mut open).collect::<Result<Vec<_>>>()?;
    let mut each = vec![0; cpus.len()];
    ready.read_exact(&mut each)?;
    let before = Work::read();
    to_all.write_all(&each)?;
    children.into_iter().try_for_each(Child::join)?;
    let work = Work::read() - before;
    let sessions = cpus.len() * ROUNDS;
    let cost = work.instructions() as f64 / sessions as f64;
    at.print("a session, all vCPUs open some at once", cost);
    Ok(())
}
