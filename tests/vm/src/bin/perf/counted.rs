// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Threads that count with perf's events.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, sleep, yield_now};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_BRANCH_INSTRUCTIONS, PERF_COUNT_HW_INSTRUCTIONS,
};
use vm_tests::module;
use vm_tests::perf::{Event, Whose, generic, raw};
use vm_tests::region::Region;
use vm_tests::rng::Rng;
use vm_tests::step::{Executed, Kind, Trace};
use vm_tests::threads::{SELF, take_away_and_give_back};
use vm_tests::users::Child;
use vm_tests::witness::Witness;

use crate::{Machine, SEED};

const THREADS: usize = 8;
const ROUNDS: usize = 50;
const ITERATIONS: u64 = 400_000;

/// The module looks for contexts of perf's more often.
const LOOK: Duration = Duration::from_millis(1_500);

/// Instructions and branches of the calling thread, as a group.
struct Group {
    instructions: Event,
    branches: Event,
}

impl Group {
    fn open() -> Result<Self> {
        let mut instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
        instructions.set_disabled(1);
        let instructions = Event::open(instructions, Whose::Thread(SELF), None)?;
        let branches = generic(PERF_COUNT_HW_BRANCH_INSTRUCTIONS);
        let branches = Event::open(branches, Whose::Thread(SELF), Some(&instructions))?;
        Ok(Self { instructions, branches })
    }

    /// The one copy of the code that counts.
    #[inline(never)]
    fn count(&self, region: Region) -> Result<()> {
        self.instructions.enable()?;
        region.execute(&mut 0);
        Ok(self.instructions.disable()?)
    }

    fn counts(&self) -> Result<[u64; 2]> {
        Ok([self.instructions.count()?, self.branches.count()?])
    }

    /// What is counted beside a region, known from the machine code.
    fn constant() -> Result<Executed> {
        let region = Region { first: 50, second: 50 };
        let trace = Trace::of(Self::open, |group| group.count(region), |_| ())?;
        let calls = trace.places(Kind::SystemCall);
        let [start, stop, ..] = calls[..] else { anyhow::bail!("{} calls", calls.len()) };
        Ok(trace.between(start + 1, stop + 1).less(region.executed()))
    }
}

/// Counts regions, each from where the last has stopped.
fn regions(id: usize, constant: Executed, mut between: impl FnMut() -> Result<()>) -> Result<()> {
    let group = Group::open()?;
    let mut rng = Rng::new(SEED, id as u64);
    let mut before = group.counts()?;
    for round in 0..ROUNDS {
        let region = Region::random(&mut rng, ITERATIONS);
        group.count(region)?;
        between()?;
        let now = group.counts()?;
        let counted = [0, 1].map(|n| now[n] - before[n]);
        let truth = region.executed().plus(constant);
        ensure!(
            counted == [truth.instructions, truth.branches],
            "thread {id}, round {round}: {counted:?} counted, {truth:?} executed"
        );
        before = now;
        yield_now();
    }
    Ok(())
}

pub fn threads(machine: &Machine) -> Result<()> {
    let constant = Group::constant()?;
    machine.disturbed(|| machine.scattered(THREADS, |id| regions(id, constant, || Ok(()))))
}

/// CPUs are unplugged, and plugged in again, below threads and below events of their own.
pub fn hotplug(machine: &Machine) -> Result<()> {
    const ROUNDS: u32 = 3;
    let constant = Group::constant()?;
    let done = &AtomicBool::new(false);
    thread::scope(|scope| {
        let unplugs = scope.spawn(move || {
            let unplugged = take_away_and_give_back(&machine.cpus[1..], ROUNDS);
            done.store(true, Relaxed);
            unplugged
        });
        let each = |id: usize| {
            while !done.load(Relaxed) {
                regions(id, constant, || Ok(()))?;
            }
            Ok(())
        };
        let counted = machine.scattered(THREADS, each);
        unplugs.join().expect("no thread panics").context("a CPU cannot be unplugged")?;
        counted
    })
}

/// An event holds the module, and so does whoever had one; then it goes, and comes again.
pub fn unload(_: &Machine) -> Result<()> {
    let open = || Event::open(generic(PERF_COUNT_HW_INSTRUCTIONS), Whose::Thread(SELF), None);
    let counts = || -> Result<()> {
        let event = open()?;
        let before = event.count()?;
        ensure!(event.count()? > before, "the event counts nothing");
        let refused = module::unload().err();
        ensure!(refused == Some(Errno::EAGAIN), "{refused:?} while an event counts");
        drop(event);
        sleep(LOOK);
        let refused = module::unload().err();
        ensure!(refused == Some(Errno::EAGAIN), "{refused:?} while its thread has a context");
        Ok(())
    };
    for _ in 0..2 {
        Child::fork(counts)?.join()?;
        module::unload_when_idle()?;
        let refused = open().err();
        ensure!(refused == Some(Errno::ENOENT), "{refused:?} without the module");
        module::load()?;
    }
    module::reload_unharmed()
}

/// Both kinds at once, and a CPU's event with another select word beside.
pub fn beside(machine: &Machine) -> Result<()> {
    let constant = Group::constant()?;
    let wide = machine.cpus.iter().map(|&cpu| Event::open(raw(0x3c), Whose::Cpu(cpu), None));
    let wide: Vec<_> = wide.collect::<Result<_, _>>()?;
    let each = |id: usize| {
        if id.is_multiple_of(2) {
            return regions(id, constant, || Ok(()));
        }
        let witness = Witness::new()?;
        regions(id, constant, || witness.unchanged().map_err(anyhow::Error::msg))
    };
    machine.disturbed(|| machine.scattered(THREADS, each))?;
    for (cpu, event) in machine.cpus.iter().zip(&wide) {
        let cycles = event.count()?;
        ensure!(cycles > 0, "CPU {cpu} has counted no cycles");
    }
    Ok(())
}

/// More events than counters: perf says for how long each has counted.
pub fn in_turns(_: &Machine) -> Result<()> {
    const ENABLED_AND_RUNNING: u64 = 3;
    /// Counters that count select words, in the testbed.
    const GENERAL: u64 = 4;
    let attributes = (0..8).map(|n| {
        // Counter masks make them different, and no event is at most once in a cycle.
        let mut attributes = raw(0xc0 | n << 24);
        attributes.read_format = ENABLED_AND_RUNNING;
        attributes
    });
    let begin = Instant::now();
    let events = attributes.map(|attributes| Event::open(attributes, Whose::Thread(SELF), None));
    let events: Vec<_> = events.collect::<Result<_, _>>()?;
    let times = || -> Result<Vec<[u64; 3]>> { events.iter().map(|one| Ok(one.read()?)).collect() };
    while times()?.iter().any(|[_, _, running]| *running == 0) {
        Region { first: ITERATIONS, second: ITERATIONS }.execute(&mut 0);
    }
    events.iter().try_for_each(Event::disable)?;
    let (times, longest) = (times()?, begin.elapsed().as_nanos() as u64);
    let (enabled, running): (Vec<_>, Vec<_>) = times.iter().map(|one| (one[1], one[2])).unzip();
    let all: u64 = running.iter().sum();
    ensure!(running.iter().zip(&enabled).all(|(running, enabled)| running < enabled), "{times:?}");
    ensure!(all <= GENERAL * longest, "{all} ns of {longest}: {times:?}");
    Ok(())
}
