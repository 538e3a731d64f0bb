// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests threads that count with perf's events.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, sleep, yield_now};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_BRANCH_INSTRUCTIONS, PERF_COUNT_HW_INSTRUCTIONS, perf_event_attr,
};
use perfctr::{Provider, Session};
use shared_abi::events::Generic;
use shared_abi::slot::slots_of;
use vm_tests::module;
use vm_tests::perf::{Event, Sampling, Whose, generic, raw};
use vm_tests::region::{Region, measure_undisturbed};
use vm_tests::rng::Rng;
use vm_tests::step::{Executed, Kind, Trace};
use vm_tests::threads::{SELF, run_on, take_away_and_give_back};
use vm_tests::users::Child;
use vm_tests::witness::Witness;

use crate::{Machine, SEED};

const THREADS: usize = 8;
const ROUNDS: usize = 50;
const ITERATIONS: u64 = 400_000;

/// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `..._RUNNING`.
pub const ENABLED_AND_RUNNING: u64 = 3;

/// The most regions until every event has had a turn, and has waited for one.
const TURNS_MAX: u32 = 1_000;

/// How long an event may wait for its turn.
const PATIENCE: Duration = Duration::from_secs(20);

/// After this time the module has looked for contexts of perf's again.
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

    /// Counts the region. This is the one copy of the code that counts.
    #[inline(never)]
    fn count(&self, region: Region) -> Result<()> {
        self.instructions.enable()?;
        region.execute(&mut 0);
        Ok(self.instructions.disable()?)
    }

    fn counts(&self) -> Result<[u64; 2]> {
        Ok([self.instructions.count()?, self.branches.count()?])
    }

    /// Returns what is counted in addition to a region, known from the machine code.
    fn constant() -> Result<Executed> {
        let region = Region { first: 50, second: 50 };
        let trace = Trace::of(Self::open, |group| group.count(region), |_| ())?;
        let calls = trace.places(Kind::SystemCall);
        let [start, stop, ..] = calls[..] else { anyhow::bail!("{} calls", calls.len()) };
        Ok(trace.between(start + 1, stop + 1).less(region.executed()))
    }
}

/// Counts regions, each from where the last one has stopped.
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

/// Checks that threads count exactly after events that sample on the same counters. These events
/// are closed before they overflow. So their counters overflow later, while others count with them.
pub fn after_samples(machine: &Machine) -> Result<()> {
    const PERIOD: u64 = 100_003;
    let constant = Group::constant()?;
    let sample = || -> Result<()> {
        let mut instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
        instructions.set_disabled(1);
        let sampling = Sampling::open(instructions, PERIOD, Whose::Thread(SELF))?;
        sampling.event.enable()?;
        Region { first: 100, second: 100 }.execute(&mut 0);
        Ok(sampling.event.disable()?)
    };
    machine.scattered(THREADS, |id| regions(id, constant, sample))
}

/// Takes CPUs offline and back, below threads and below events of their own.
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

/// Checks that an event holds the module, and so does a thread that had one. Then the module can be
/// unloaded, and is loaded again.
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

/// Counts with both kinds at once, and with a CPU's event that has another select word.
pub fn with_threads_counters(machine: &Machine) -> Result<()> {
    let constant = Group::constant()?;
    let cycles = Generic::Cycles.select(machine.caps.vendor).context("no cycles")?;
    let wide = machine.cpus.iter().map(|&cpu| Event::open(raw(cycles), Whose::Cpu(cpu), None));
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

/// Counts regions with events that begin and end at once, led by the first. After each region, it
/// demands that `agree` accepts their counts, and that all counts have grown.
fn together<const N: usize>(
    machine: &Machine,
    mut attributes: [perf_event_attr; N],
    agree: impl Fn([u64; N]) -> Result<()>,
) -> Result<()> {
    attributes[0].set_disabled(1);
    let mut events = Vec::new();
    for one in attributes {
        events.push(Event::open(one, Whose::Thread(SELF), events.first())?);
    }
    let mut rng = Rng::new(SEED, 0);
    let mut before = [0; N];
    machine.disturbed(|| {
        for _ in 0..ROUNDS {
            events[0].lead(true)?;
            Region::random(&mut rng, ITERATIONS).execute(&mut 0);
            yield_now();
            events[0].lead(false)?;
            let mut now = [0; N];
            for (now, event) in now.iter_mut().zip(&events) {
                *now = event.count()?;
            }
            agree(now)?;
            let grown = now.iter().zip(before).all(|(now, before)| *now > before);
            ensure!(grown, "{before:?} before, {now:?} now");
            before = now;
        }
        Ok(())
    })
}

/// Checks that events of user mode, of the kernel and of both agree, if they begin and end at once.
pub fn of_both_modes(machine: &Machine) -> Result<()> {
    let instructions = |(user, kernel): (bool, bool)| {
        let mut attributes = generic(PERF_COUNT_HW_INSTRUCTIONS);
        attributes.set_exclude_user(u64::from(!user));
        attributes.set_exclude_kernel(u64::from(!kernel));
        attributes
    };
    let modes = [(true, true), (true, false), (false, true)];
    together(machine, modes.map(instructions), |now| {
        let [both, user, kernel] = now;
        ensure!(both == user + kernel, "{now:?} of both, of user mode, of the kernel");
        Ok(())
    })
}

/// Tests that a program may write a whole select word, as for the register. The driver sets the
/// bits of both rings, of the interrupt and of the counter itself (0x53 in bits 16 to 23).
pub fn raw_words(machine: &Machine) -> Result<()> {
    together(machine, [raw(0xc0), raw(0x53_00c0)], |now| {
        let [event, word] = now;
        ensure!(event == word, "{now:?} by the event, by the select word");
        Ok(())
    })
}

/// Returns the number of counters that can count a select word.
pub fn general(machine: &Machine) -> usize {
    slots_of(machine.caps.slots()).filter(|slot| slot.fixed_number().is_none()).count()
}

/// Checks that an event which comes when all counters are in use is refused, or waits for a turn.
pub fn without_room(machine: &Machine) -> Result<()> {
    const REGION: Region = Region { first: ITERATIONS, second: ITERATIONS };
    run_on(SELF, &machine.cpus[..1])?;
    // No other event counts this.
    let mut attributes = raw(0xc0 | 1 << 24);
    attributes.read_format = ENABLED_AND_RUNNING;
    let mut session = Session::open_with(Provider::Paravirt)?;
    let all = vec![perfctr::Event::BRANCHES.user(); general(machine)];
    let branches = |session: &Session| -> Result<u64> {
        Ok(measure_undisturbed::<1>(session, REGION, &mut 0)?.counts[0])
    };
    session.start(&all)?;
    let truth = branches(&session)?;
    let event = Event::open(attributes, Whose::Thread(SELF), None)?;
    let counted = branches(&session)?;
    ensure!(counted == truth, "the thread has counted {counted}, not {truth}");
    // The kernel's clock does not advance while its tick is late.
    let begin = Instant::now();
    loop {
        let [_, enabled, running] = event.read()?;
        ensure!(running == 0, "{running} ns of {enabled} without a counter");
        if enabled > 0 {
            break;
        }
        ensure!(begin.elapsed() < PATIENCE, "the event's time does not begin");
        REGION.execute(&mut 0);
    }
    session.stop()?;
    let begin = Instant::now();
    while event.read::<3>()?[2] == 0 {
        ensure!(begin.elapsed() < PATIENCE, "the event gets no turn");
        REGION.execute(&mut 0);
    }
    let refused = session.start(&all).err().map(|error| error.to_string());
    let busy = refused.as_ref().is_some_and(|refused| refused.contains("os error 16"));
    ensure!(busy, "{refused:?} in place of EBUSY");
    drop(event);
    session.start(&all)?;
    let counted = branches(&session)?;
    ensure!(counted == truth, "the thread has counted {counted}, not {truth}");
    Ok(run_on(SELF, &machine.cpus)?)
}

/// Checks more events than counters: perf says how long each has counted.
pub fn in_turns(machine: &Machine) -> Result<()> {
    let general = general(machine) as u64;
    let attributes = (0..8).map(|n| {
        // Counter masks make the events different, and this one occurs at most once in a cycle.
        let mut attributes = raw(0xc0 | n << 24);
        attributes.read_format = ENABLED_AND_RUNNING;
        attributes
    });
    let begin = Instant::now();
    let events = attributes.map(|attributes| Event::open(attributes, Whose::Thread(SELF), None));
    let events: Vec<_> = events.collect::<Result<_, _>>()?;
    let times = || -> Result<Vec<[u64; 3]>> { events.iter().map(|one| Ok(one.read()?)).collect() };
    let had_turns = |[_, enabled, running]: &[u64; 3]| (1..*enabled).contains(running);
    for _ in 0..TURNS_MAX {
        if times()?.iter().all(had_turns) {
            break;
        }
        Region { first: ITERATIONS, second: ITERATIONS }.execute(&mut 0);
    }
    events.iter().try_for_each(Event::disable)?;
    let (times, longest) = (times()?, begin.elapsed().as_nanos() as u64);
    let all: u64 = times.iter().map(|one| one[2]).sum();
    ensure!(times.iter().all(had_turns), "{times:?}");
    ensure!(all <= general * longest, "{all} ns of {longest}: {times:?}");
    Ok(())
}
