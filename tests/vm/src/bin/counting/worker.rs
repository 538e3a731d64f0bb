// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What each of the competing threads does.

use std::sync::{Barrier, Mutex};

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::{Pid, gettid};
use perfctr::{Event, PhysSlot, Provider, Reading, Session};
use shared_abi::sync::Ordering::Relaxed;
use vm_tests::histogram::Histogram;
use vm_tests::region::{FreshPages, Region, measure, measure_read};
use vm_tests::rng::Rng;
use vm_tests::threads::{SELF, run_on};

use vm_tests::time::{Elapsed, ThreadTime};

/// What a thread is to do.
pub struct Plan<'a> {
    pub id: usize,
    /// Measured regions per phase.
    pub regions: u64,
    /// Pairs of adjoining reads.
    pub reads: u64,
    pub seed: u64,
    pub cpus: &'a [usize],
    /// Where all threads and the main one meet between phases.
    pub gate: &'a Barrier,
    /// The threads that may be moved.
    pub movable: &'a Mutex<Vec<Pid>>,
}

/// What readings of one kind were, beside the truth.
#[derive(Clone, Debug, Default)]
pub struct Series {
    pub instructions: Histogram,
    pub branches: Histogram,
}

impl Series {
    fn merge(&mut self, other: &Self) {
        self.instructions.merge(&other.instructions);
        self.branches.merge(&other.branches);
    }
}

/// What a thread has seen.
#[derive(Debug, Default)]
pub struct Log {
    /// Regions of the phase with equal configurations.
    pub equal: Series,
    /// Regions of the phase with mixed configurations.
    pub mixed: Series,
    /// Pairs of reads of one counter.
    pub reads_1: Series,
    /// Pairs of reads of four counters.
    pub reads_4: Series,
    /// Regions measured.
    pub regions: u64,
    /// What happened in the middle of regions.
    pub inside: Inside,
    /// Attempts of reads that were thrown away.
    pub retries: u64,
    /// Readings for which a system call was needed.
    pub indirect: u64,
    /// Page faults that the kernel counted.
    pub faults: u64,
    /// How often the thread was resumed, and how often on another vCPU.
    pub switches: u64,
    pub migrations: u64,
    /// Time in the phase with equal configurations, and how often the thread was resumed in it.
    pub elapsed: Elapsed,
    pub equal_switches: u64,
}

impl Log {
    /// Adds what another thread has seen, except for its time, which is its own.
    pub fn merge(&mut self, other: &Self) {
        self.equal.merge(&other.equal);
        self.mixed.merge(&other.mixed);
        self.reads_1.merge(&other.reads_1);
        self.reads_4.merge(&other.reads_4);
        self.regions += other.regions;
        self.inside.add(&other.inside);
        self.retries += other.retries;
        self.indirect += other.indirect;
        self.faults += other.faults;
        self.switches += other.switches;
        self.migrations += other.migrations;
    }
}

/// Regions in whose middle something happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inside {
    /// A page fault.
    pub fault: u64,
    /// Several timer ticks, judged by the time that the thread executed.
    pub ticks: u64,
    /// The thread was preempted.
    pub switch: u64,
    /// The thread was moved to another vCPU.
    pub migration: u64,
}

impl Inside {
    pub fn add(&mut self, other: &Self) {
        self.fault += other.fault;
        self.ticks += other.ticks;
        self.switch += other.switch;
        self.migration += other.migration;
    }
}

/// A general counter.
const fn general(n: u32) -> PhysSlot {
    PhysSlot::general(n).expect("every page has two general counters")
}

/// What a counter should have counted.
#[derive(Clone, Copy)]
enum Truth {
    Instructions,
    Branches,
    /// Nobody knows.
    None,
}

/// The events of a thread, and the truth about each.
type Configuration = [(Event, Truth); 4];

const INSTRUCTIONS: Event = Event::INSTRUCTIONS.user();
const BRANCHES: Event = Event::BRANCHES.user();
const CYCLES: (Event, Truth) = (Event::CYCLES.user(), Truth::None);

/// The configuration of the first phase.
const EQUAL: Configuration = [
    (INSTRUCTIONS, Truth::Instructions),
    (INSTRUCTIONS.on(general(0)), Truth::Instructions),
    (BRANCHES.on(general(1)), Truth::Branches),
    CYCLES,
];

/// The configurations of the second phase, which cannot be loaded together.
const MIXED: [Configuration; 3] = [
    [
        (INSTRUCTIONS.on(general(0)), Truth::Instructions),
        (BRANCHES.on(general(1)), Truth::Branches),
        (INSTRUCTIONS, Truth::Instructions),
        CYCLES,
    ],
    [
        (BRANCHES.on(general(0)), Truth::Branches),
        CYCLES,
        (INSTRUCTIONS.on(general(1)), Truth::Instructions),
        (INSTRUCTIONS, Truth::Instructions),
    ],
    [
        CYCLES,
        (INSTRUCTIONS, Truth::Instructions),
        (BRANCHES.on(general(0)), Truth::Branches),
        (BRANCHES.on(general(1)), Truth::Branches),
    ],
];

/// Debian's kernels tick 250 times a second, so a region of this length has several in it.
const TICKS_MS: u64 = 12;

/// Measures in both phases.
pub fn run(plan: &Plan<'_>) -> Result<Log> {
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&EQUAL.map(|(event, _)| event))?;
    // Once the configuration is loaded on every vCPU no hypercall is needed any more.
    for &cpu in plan.cpus {
        run_on(SELF, &[cpu])?;
    }
    if plan.id.is_multiple_of(2) {
        run_on(SELF, &[plan.cpus[plan.id / 2 % plan.cpus.len()]])?;
    } else {
        run_on(SELF, plan.cpus)?;
        plan.movable.lock().expect("no worker panics").push(gettid());
    }
    let mut worker = Worker {
        rng: Rng::new(plan.seed, plan.id as u64),
        pages: FreshPages::new()?,
        warm: 0,
        ticks_tsc: TICKS_MS * u64::from(session.description().tsc_khz),
        log: Log::default(),
    };
    let page = session.thread_page().context("the process was forked")?;
    let (switches, migrations) = (page.switches.load(Relaxed), page.migrations.load(Relaxed));
    plan.gate.wait();
    plan.gate.wait();
    let faults = faults()?;
    let start = ThreadTime::take(&session)?;
    worker.equal_phase(&session, plan)?;
    worker.log.elapsed = ThreadTime::take(&session)?.since(&start);
    let page = session.thread_page().context("the process was forked")?;
    worker.log.equal_switches = page.switches.load(Relaxed) - switches;
    plan.gate.wait();
    plan.gate.wait();
    worker.mixed_phase(&mut session, plan)?;
    worker.log.faults = self::faults()? - faults;
    let page = session.thread_page().context("the process was forked")?;
    worker.log.switches = page.switches.load(Relaxed) - switches;
    worker.log.migrations = page.migrations.load(Relaxed) - migrations;
    plan.gate.wait();
    // The counters stay loaded until the last mark is taken.
    plan.gate.wait();
    Ok(worker.log)
}

/// Page faults of this thread that needed no disk.
fn faults() -> Result<u64> {
    Ok(getrusage(UsageWho::RUSAGE_THREAD)?.minor_page_faults() as u64)
}

struct Worker {
    rng: Rng,
    pages: FreshPages,
    /// Where regions without a page fault store.
    warm: u8,
    ticks_tsc: u64,
    log: Log,
}

impl Worker {
    fn equal_phase(&mut self, session: &Session, plan: &Plan<'_>) -> Result<()> {
        let mut equal = Series::default();
        self.regions(session, plan, &EQUAL, &mut equal)?;
        self.log.equal = equal;
        for _ in 0..plan.reads {
            let reading = measure_read::<1>(session)?;
            self.note(&reading);
            self.log.reads_1.instructions.add(reading.retries, reading.counts[0], 0);
            let reading = measure_read::<4>(session)?;
            self.note(&reading);
            self.log.reads_4.instructions.add(reading.retries, reading.counts[0], 0);
            self.log.reads_4.branches.add(reading.retries, reading.counts[2], 0);
        }
        Ok(())
    }

    fn note<const N: usize>(&mut self, reading: &Reading<N>) {
        self.log.retries += u64::from(reading.retries);
        self.log.indirect += u64::from(!reading.direct);
    }

    fn mixed_phase(&mut self, session: &mut Session, plan: &Plan<'_>) -> Result<()> {
        let configuration = &MIXED[plan.id % MIXED.len()];
        session.start(&configuration.map(|(event, _)| event))?;
        let mut mixed = Series::default();
        self.regions(session, plan, configuration, &mut mixed)?;
        self.log.mixed = mixed;
        Ok(())
    }

    fn regions(
        &mut self,
        session: &Session,
        plan: &Plan<'_>,
        configuration: &Configuration,
        series: &mut Series,
    ) -> Result<()> {
        for n in 0..plan.regions {
            let (region, reading) = self.region(session, n, plan.regions)?;
            for (count, (_, truth)) in reading.counts.into_iter().zip(configuration) {
                let (histogram, truth) = match truth {
                    Truth::Instructions => (&mut series.instructions, region.instructions()),
                    Truth::Branches => (&mut series.branches, region.branches()),
                    Truth::None => continue,
                };
                histogram.add(reading.retries, count, truth);
            }
        }
        Ok(())
    }

    /// Measures the `n`th of `regions` random regions, and notes what happened in its middle.
    fn region(&mut self, session: &Session, n: u64, regions: u64) -> Result<(Region, Reading<4>)> {
        // Mostly short ones, whose readings are close together and so often retried; some that a
        // switch is likely to hit; eight that outlast several ticks.
        let iterations = match self.rng.between(0, 10) {
            _ if n.is_multiple_of((regions / 8).max(1)) => 4_000_000,
            0..=5 => 40,
            6..=8 => 10_000,
            _ => 200_000,
        };
        let region = Region::random(&mut self.rng, iterations);
        let page = session.thread_page().context("the process was forked")?;
        let moved = || (page.switches.load(Relaxed), page.migrations.load(Relaxed));
        let fault = self.rng.between(0, 10) == 0;
        let store = if fault { self.pages.byte()? } else { &mut self.warm };
        let before = moved();
        let reading = measure(session, region, store)?;
        let after = moved();
        self.log.regions += 1;
        self.note(&reading);
        self.log.inside.add(&Inside {
            fault: u64::from(fault),
            ticks: u64::from(reading.tsc > self.ticks_tsc),
            switch: u64::from(before.0 != after.0),
            migration: u64::from(before.1 != after.1),
        });
        Ok((region, reading))
    }
}
