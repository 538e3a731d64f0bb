// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs each of the competing threads.

use std::sync::atomic::AtomicU64;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::{Pid, gettid};
use perfctr::raw::Device;
use perfctr::{Event, PhysSlot, Provider, Reading, Session};
use shared_abi::ioctl::Create;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::version::ABI_MAJOR;
use vm_tests::bodies::{Body, Does};
use vm_tests::histogram::Histogram;
use vm_tests::region::{
    FreshPages, Region, measure, measure_body, measure_counts, measure_into, measure_read, total,
};
use vm_tests::rng::Rng;
use vm_tests::step::Executed;
use vm_tests::threads::{SELF, run_on};
use vm_tests::time::{Elapsed, ThreadTime};

use crate::predicted::Totals;

/// The work of a thread.
pub struct Plan<'a> {
    pub id: usize,
    /// Measured regions per phase. The second has more if hard cases are rare on this machine.
    pub regions: u64,
    /// What happened in the middle of all threads' regions so far.
    pub hard_cases: &'a HardCases,
    /// Pairs of adjoining reads.
    pub reads: u64,
    pub seed: u64,
    pub cpus: &'a [usize],
    /// Where all threads and the main one meet between phases.
    pub gate: &'a Barrier,
    /// The threads that may be moved.
    pub movable: &'a Mutex<Vec<Pid>>,
    /// What is executed from start to stop, without regions.
    pub totals: Totals,
    /// Whether the hypervisor notices everything that the kernel does in the middle of a read, so
    /// that the read starts over.
    pub is_pv: bool,
}

/// The readings of one kind, each compared with the truth.
#[derive(Clone, Debug, Default)]
pub struct Series {
    pub instructions: Histogram,
    pub branches: Histogram,
    pub cycles: Histogram,
}

impl Series {
    pub fn merge(&mut self, other: &Self) {
        self.instructions.merge(&other.instructions);
        self.branches.merge(&other.branches);
        self.cycles.merge(&other.cycles);
    }

    /// Adds the counters of a reading, whose events `configuration` names.
    pub fn add(&mut self, configuration: &Configuration, reading: &Reading<4>, truth: Executed) {
        for (&count, (_, counts)) in reading.counts.iter().zip(configuration) {
            let (histogram, truth) = match counts {
                Counts::Instructions => (&mut self.instructions, truth.instructions),
                Counts::Branches => (&mut self.branches, truth.branches),
                Counts::Cycles => (&mut self.cycles, truth.cycles()),
            };
            histogram.add(reading.retries, count, truth);
        }
    }
}

/// Readings of regions, by what happens in them.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    /// Regions that ask the kernel for nothing, though some have a page fault.
    pub plain: Series,
    /// System calls.
    pub system_calls: Series,
    /// REP instructions.
    pub strings: Series,
    /// Signals.
    pub signals: Series,
    /// A page fault between two RDPMCs of the later read.
    pub faulting_reads: Series,
}

impl Kinds {
    pub fn merge(&mut self, other: &Self) {
        self.plain.merge(&other.plain);
        self.system_calls.merge(&other.system_calls);
        self.strings.merge(&other.strings);
        self.signals.merge(&other.signals);
        self.faulting_reads.merge(&other.faulting_reads);
    }
}

/// What a thread has seen.
#[derive(Debug, Default)]
pub struct Log {
    /// Regions of the phase with equal configurations.
    pub equal: Kinds,
    /// Regions of the phase with mixed configurations.
    pub mixed: Kinds,
    /// What was counted from a start to a stop, with retries of all reads.
    pub totals: Series,
    /// Pairs of reads of one counter.
    pub reads_1: Series,
    /// Pairs of reads of one counter without the TSC.
    pub counts_1: Series,
    /// Pairs of reads of four counters.
    pub reads_4: Series,
    /// The number of regions that were measured.
    pub regions: u64,
    /// How often each of [`CASES`] happened in the middle of regions.
    pub inside: Inside,
    /// The number of attempts to read that were thrown away.
    pub retries: u64,
    /// The number of readings for which a system call was needed.
    pub indirect: u64,
    /// The number of page faults that the kernel counted.
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
        self.totals.merge(&other.totals);
        self.reads_1.merge(&other.reads_1);
        self.counts_1.merge(&other.counts_1);
        self.reads_4.merge(&other.reads_4);
        self.regions += other.regions;
        add(&mut self.inside, &other.inside);
        self.retries += other.retries;
        self.indirect += other.indirect;
        self.faults += other.faults;
        self.switches += other.switches;
        self.migrations += other.migrations;
    }
}

/// What may happen in the middle of a region: a page fault; several timer ticks, judged by the time
/// that the thread executed; a preemption of the thread, or its move to another vCPU; a preemption
/// of the vCPU on which it stays, or that vCPU's move to another physical CPU.
pub const CASES: [&str; 6] =
    ["page_fault", "ticks", "thread_switch", "thread_migration", "vcpu_switch", "vcpu_migration"];

/// In how many regions each of [`CASES`] happened.
pub type Inside = [u64; CASES.len()];

/// How often each hard case has to occur in the middle of regions.
pub const HARD_CASES_MIN: u64 = 100;

/// How often hard cases have occurred in all threads.
#[derive(Debug, Default)]
pub struct HardCases([AtomicU64; CASES.len()]);

impl HardCases {
    fn add(&self, inside: &Inside) {
        for (sum, &times) in self.0.iter().zip(inside) {
            sum.fetch_add(times, Relaxed);
        }
    }

    fn are_enough(&self) -> bool {
        self.0.iter().all(|times| times.load(Relaxed) >= HARD_CASES_MIN)
    }
}

fn add(sums: &mut Inside, more: &Inside) {
    for (sum, times) in sums.iter_mut().zip(more) {
        *sum += times;
    }
}

/// How often a thread was switched in and moved so far, and the vCPU on which it is.
struct Moves {
    thread: [u64; 2],
    vcpu: [u64; 2],
}

impl Moves {
    fn now(session: &Session) -> Result<Self> {
        let thread = session.thread_page().context("the process was forked")?;
        let vcpu = session.vcpu_page(thread.vcpu.load(Relaxed)).context("it has no page")?;
        Ok(Self {
            thread: [thread.switches.load(Relaxed), thread.migrations.load(Relaxed)],
            vcpu: [vcpu.switches.load(Relaxed), vcpu.migrations.load(Relaxed)],
        })
    }

    /// Returns whether each of the last four of [`CASES`] has happened since `before`.
    fn since(&self, before: &Self) -> [bool; 4] {
        let [switch, migration] = [0, 1].map(|n| self.thread[n] != before.thread[n]);
        let vcpu = [0, 1].map(|n| !migration && self.vcpu[n] != before.vcpu[n]);
        [switch, migration, vcpu[0], vcpu[1]]
    }
}

/// Returns a general counter's slot.
const fn general(n: u32) -> PhysSlot {
    PhysSlot::general(n).expect("every page has two general counters")
}

/// What a counter counts.
#[derive(Clone, Copy)]
pub enum Counts {
    Instructions,
    Branches,
    Cycles,
}

/// The events of a thread.
pub type Configuration = [(Event, Counts); 4];

const INSTRUCTIONS: Event = Event::INSTRUCTIONS.user();
const BRANCHES: Event = Event::BRANCHES.user();
const CYCLES: (Event, Counts) = (Event::CYCLES.user(), Counts::Cycles);

/// The configuration of the first phase.
pub const EQUAL: Configuration = [
    (INSTRUCTIONS, Counts::Instructions),
    (INSTRUCTIONS.on(general(0)), Counts::Instructions),
    (BRANCHES.on(general(1)), Counts::Branches),
    CYCLES,
];

/// The configurations of the second phase, which cannot be loaded together.
const MIXED: [Configuration; 3] = [
    [
        (INSTRUCTIONS.on(general(0)), Counts::Instructions),
        (BRANCHES.on(general(1)), Counts::Branches),
        (INSTRUCTIONS, Counts::Instructions),
        CYCLES,
    ],
    [
        (BRANCHES.on(general(0)), Counts::Branches),
        CYCLES,
        (INSTRUCTIONS.on(general(1)), Counts::Instructions),
        (INSTRUCTIONS, Counts::Instructions),
    ],
    [
        CYCLES,
        (INSTRUCTIONS, Counts::Instructions),
        (BRANCHES.on(general(0)), Counts::Branches),
        (BRANCHES.on(general(1)), Counts::Branches),
    ],
];

/// The number of times that each thread counts from a start to a stop.
const TOTALS: u64 = 3;

/// How long the second phase may continue until each hard case has occurred often enough. A quick
/// machine measures its regions before many have occurred.
const PATIENCE: Duration = Duration::from_secs(240);

/// Debian's kernels tick 250 times a second, so a region of this length has several in it.
const TICKS_MS: u64 = 12;

/// The kind of a region that does nothing special. No number of a special kind is equal to it.
const PLAIN: u64 = u64::MAX;

/// The length of regions that should last for several ticks: at first, and at most.
const LONG_ITERATIONS: u64 = 4_000_000;
const LONG_ITERATIONS_MAX: u64 = 64 * LONG_ITERATIONS;

/// Measures in both phases.
pub fn run(plan: &Plan<'_>) -> Result<Log> {
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&EQUAL.map(|(event, _)| event))?;
    // Once every vCPU has loaded the configuration, no hypercall is needed any more.
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
        long: LONG_ITERATIONS,
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

/// Returns the number of page faults of this thread that needed no disk.
fn faults() -> Result<u64> {
    Ok(getrusage(UsageWho::RUSAGE_THREAD)?.minor_page_faults() as u64)
}

struct Worker {
    rng: Rng,
    pages: FreshPages,
    /// The memory to which regions without a page fault store.
    warm: u8,
    /// The iterations of a region that should last for several ticks.
    long: u64,
    ticks_tsc: u64,
    log: Log,
}

impl Worker {
    fn equal_phase(&mut self, session: &Session, plan: &Plan<'_>) -> Result<()> {
        let mut equal = Kinds::default();
        for n in 0..plan.regions {
            self.region(session, n, plan, &EQUAL, &mut equal)?;
        }
        self.log.equal = equal;
        for _ in 0..plan.reads {
            let reading = measure_read::<1>(session)?;
            self.note(&reading);
            self.log.reads_1.instructions.add(reading.retries, reading.counts[0], 0);
            let reading = measure_counts::<1>(session)?;
            self.note(&reading);
            self.log.counts_1.instructions.add(reading.retries, reading.counts[0], 0);
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
        let mut mixed = Kinds::default();
        let (mut n, start) = (0, Instant::now());
        let is_enough = || plan.hard_cases.are_enough() || start.elapsed() > PATIENCE;
        while n < plan.regions || !is_enough() {
            self.region(session, n, plan, configuration, &mut mixed)?;
            n += 1;
        }
        self.log.mixed = mixed;
        session.stop()?;
        for _ in 0..TOTALS {
            self.total(session, plan, configuration)?;
        }
        Ok(())
    }

    /// Counts many regions, from a start to a stop.
    fn total(
        &mut self,
        session: &mut Session,
        plan: &Plan<'_>,
        configuration: &Configuration,
    ) -> Result<()> {
        let regions: Vec<_> = (0..plan.regions / TOTALS)
            .map(|n| self.random_region(n, plan.regions / TOTALS))
            .collect();
        // The kernel's numbers are compared with what the library reads.
        let device = Device::open()?;
        device.open_existing(&Create { abi_major: ABI_MAJOR.into(), ..Create::default() })?;
        let before = device.sums()?;
        let retries = total::<4>(session, &regions, self.pages.byte()?)?;
        let mut reading = session.read::<4>()?;
        reading.retries = retries;
        for (count, before) in reading.counts.iter_mut().zip(before.counter) {
            *count = count.wrapping_sub(before);
        }
        let executed = regions.iter().map(|region| region.executed());
        let truth = executed.fold(plan.totals.of(regions.len()), Executed::plus);
        self.log.totals.add(configuration, &reading, truth);
        Ok(())
    }

    /// Picks a region at random. Most are short: their readings are close together, so they are
    /// often retried. Some are long enough to be hit by a switch, and eight last for several ticks.
    fn random_region(&mut self, n: u64, regions: u64) -> Region {
        let iterations = match self.rng.between(0, 10) {
            _ if is_long(n, regions) => self.long,
            0..=5 => 40,
            6..=8 => 10_000,
            _ => 200_000,
        };
        Region::random(&mut self.rng, iterations)
    }

    /// Measures a region, or something that enters the kernel, and notes what happened in the
    /// middle.
    fn region(
        &mut self,
        session: &Session,
        n: u64,
        plan: &Plan<'_>,
        configuration: &Configuration,
        kinds: &mut Kinds,
    ) -> Result<()> {
        let region = self.random_region(n, plan.regions);
        let long = is_long(n, plan.regions);
        let kind = if long { PLAIN } else { self.rng.between(0, 20) };
        let fault = kind < 2;
        let before = Moves::now(session)?;
        let (reading, truth, series) = match kind {
            0..=1 => {
                let reading = measure(session, region, self.pages.byte()?)?;
                (reading, region.executed(), &mut kinds.plain)
            }
            2 => {
                let mut warm = 0;
                let counts = self.pages.counts::<4>()?;
                let reading = measure_into(session, region, &mut warm, counts);
                let reading = reading.map_err(|error| anyhow::anyhow!("{error:?}"))?;
                let noticed = reading.retries > 0 || !plan.is_pv;
                ensure!(noticed, "a page fault in a read's middle went unnoticed");
                (reading, region.executed(), &mut kinds.faulting_reads)
            }
            3..=5 => {
                let (does, rounds, series) = match kind {
                    3 => (Does::SystemCall, 20, &mut kinds.system_calls),
                    4 => (Does::Strings, 60, &mut kinds.strings),
                    _ => (Does::Signal, 5, &mut kinds.signals),
                };
                let body = Body::new(does, self.rng.between(1, rounds));
                let reading = measure_body(session, &body, self.pages.take(2)?)?;
                (reading, body.executed(), series)
            }
            _ => {
                let reading = measure(session, region, &mut self.warm)?;
                (reading, region.executed(), &mut kinds.plain)
            }
        };
        let moved = Moves::now(session)?.since(&before);
        series.add(configuration, &reading, truth);
        self.log.regions += 1;
        self.note(&reading);
        let ticks = reading.tsc > self.ticks_tsc;
        let [switch, migration, vcpu_switch, vcpu_migration] = moved;
        let inside = [fault, ticks, switch, migration, vcpu_switch, vcpu_migration];
        let inside = inside.map(u64::from);
        if long && !ticks {
            self.long = (self.long * 2).min(LONG_ITERATIONS_MAX);
        }
        add(&mut self.log.inside, &inside);
        plan.hard_cases.add(&inside);
        Ok(())
    }
}

/// Returns whether the `n`th of this many regions should last for several ticks.
fn is_long(n: u64, regions: u64) -> bool {
    n.is_multiple_of((regions / 8).max(1))
}
