// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that the CPUs' counts add up to the counts of all threads.

use std::fs;
use std::hint::black_box;
use std::thread::{sleep, yield_now};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use perf_event_open_sys::bindings::PERF_COUNT_HW_INSTRUCTIONS;
use vm_tests::perf::{Event, Whose, generic};
use vm_tests::region::Region;
use vm_tests::rng::Rng;
use vm_tests::stats::ModuleStats;
use vm_tests::threads::{SELF, run_on};
use vm_tests::users::{Child, NOBODY, SOMEBODY, User, admit, become_user};
use vm_tests::witness::Witness;

use crate::{Machine, ROUNDS_MAX, SEED};

const THREADS: usize = 8;
const ROUNDS: usize = 50;
const ITERATIONS: u64 = 400_000;

/// How many readings in a row have to find that no other program executes, and how many readings
/// there may be.
const SILENT_READINGS: u32 = 5;
const READINGS_MAX: u32 = 500;

/// How often each user yields the CPU, and how often pages have to be exchanged for that.
const TURNS: u32 = 500;
const EXCHANGES_MIN: u64 = 100;

/// The CPUs' events, and an event that this thread and all its children share.
struct Both {
    cpus: Vec<Event>,
    threads: Event,
}

impl Both {
    fn open(machine: &Machine) -> Result<Self> {
        let instructions = || generic(PERF_COUNT_HW_INSTRUCTIONS);
        let open = |&cpu: &usize| Event::open(instructions(), Whose::Cpu(cpu), None);
        let cpus = machine.cpus.iter().map(open).collect::<Result<_, _>>()?;
        let mut inherited = instructions();
        inherited.set_inherit(1);
        Ok(Self { cpus, threads: Event::open(inherited, Whose::Thread(SELF), None)? })
    }

    /// Returns how much more the CPUs have counted than the threads.
    #[inline(never)]
    fn more(&self) -> Result<u64> {
        let mut cpus = 0;
        for cpu in &self.cpus {
            cpus += cpu.count()?;
        }
        Ok(cpus - self.threads.count()?)
    }

    /// Waits until no other program executes in user mode. The program that has started this one
    /// forwards the output of the test before, which takes a while on a busy machine.
    ///
    /// Between the reading of its own CPU and the reading of itself, this thread executes the same
    /// each time, once memory was touched.
    fn wait_for_silence(&self) -> Result<()> {
        let (mut silent, mut last) = (0, 0);
        for _ in 0..READINGS_MAX {
            let before = self.more()?;
            last = self.more()?.wrapping_sub(before);
            silent = if last == 0 { silent + 1 } else { 0 };
            if silent == SILENT_READINGS {
                return Ok(());
            }
            sleep(Duration::from_millis(10));
        }
        bail!("still {last} instructions from one reading to the next")
    }
}

/// Checks that both are equal after `act`. No other program executes in user mode, since the
/// program that has started this one waits for it.
fn equal(machine: &Machine, act: impl FnOnce() -> Result<()>) -> Result<()> {
    run_on(SELF, &machine.cpus[..1])?;
    let both = Both::open(machine)?;
    both.wait_for_silence()?;
    let before = both.more()?;
    act()?;
    let more = both.more()?.wrapping_sub(before).cast_signed();
    ensure!(more == 0, "the CPUs have counted {more} instructions more");
    Ok(run_on(SELF, &machine.cpus)?)
}

pub fn equal_to_threads(machine: &Machine) -> Result<()> {
    equal(machine, || {
        machine.disturbed(|| {
            machine.scattered(THREADS, |id| {
                let mut rng = Rng::new(SEED, id as u64);
                for _ in 0..ROUNDS {
                    Region::random(&mut rng, ITERATIONS).execute(&mut black_box(0));
                    yield_now();
                }
                Ok(())
            })
        })
    })
}

/// Takes one CPU offline below its event, and brings it back.
pub fn equal_until_unplugged(machine: &Machine) -> Result<()> {
    let cpu = *machine.cpus.last().context("there is no CPU")?;
    let online = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    let work = |id: usize| {
        let mut rng = Rng::new(SEED, id as u64);
        for round in 0..ROUNDS {
            Region::random(&mut rng, ITERATIONS).execute(&mut black_box(0));
            if id == 0 && round == ROUNDS / 2 {
                fs::write(&online, "0")?;
            }
        }
        Ok(())
    };
    let outcome = equal(machine, || machine.scattered(THREADS, work));
    fs::write(&online, "1")?;
    outcome?;
    equal(machine, || {
        run_on(SELF, &[cpu])?;
        Region { first: ITERATIONS, second: ITERATIONS }.execute(&mut black_box(0));
        run_on(SELF, &machine.cpus[..1]).map_err(anyhow::Error::from)
    })
}

/// Makes two users count on one CPU, each in pages of its own. The pages are exchanged while the
/// CPU's event counts.
pub fn equal_to_users(machine: &Machine) -> Result<()> {
    admit(0o660)?;
    let cpu = *machine.cpus.last().context("there is no CPU")?;
    let before = ModuleStats::read()?;
    let mut registers = 0;
    for _ in 0..ROUNDS_MAX {
        equal(machine, || two_users(cpu))?;
        registers = ModuleStats::read()?.growth(&before, "registers")?;
        if registers >= EXCHANGES_MIN {
            return Ok(());
        }
    }
    bail!("pages were exchanged {registers} times only")
}

fn two_users(cpu: usize) -> Result<()> {
    let count = |user: User| {
        Child::fork(move || {
            become_user(user)?;
            run_on(SELF, &[cpu])?;
            let witness = Witness::new()?;
            for _ in 0..TURNS {
                witness.unchanged().map_err(anyhow::Error::msg)?;
                yield_now();
            }
            Ok(())
        })
    };
    let users = [NOBODY, SOMEBODY].map(count);
    users.into_iter().try_for_each(|user| user?.join())
}
