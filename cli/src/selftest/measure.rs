// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Measures on this machine.

use std::cell::RefCell;
use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::sched_getcpu;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use perfctr::host::Xen;
use perfctr::watch::Watch;
use perfctr::{Event, Provider, Session};
use shared_abi::sync::Ordering::Relaxed;

use super::bodies::{self, PAGE, Round, STRAIGHT_ROUND};
use super::measured::{Interrupts, Known, Measured, Reads, Samples, Spread, Surplus, Taken};
use crate::machine::run_on;

const INTERRUPTS: &str = "/proc/interrupts";

/// What is counted: retired instructions and branches of user mode.
pub const EVENTS: [Event; 2] = [Event::INSTRUCTIONS.user(), Event::BRANCHES.user()];

const EMPTY_REGIONS: usize = 1_000;
const SHORT: (u64, usize) = (1_000, 200);
/// How long a long loop takes, so that interrupts come, and the number of such loops.
const LONG: (Duration, usize) = (Duration::from_millis(100), 20);
const FAULTS: u64 = 256;
const EXITS: u64 = 200;
/// The longest time that a loop past 2^32 may take.
const WRAP_AT_MOST: Duration = Duration::from_secs(10);
const SAMPLES: u64 = 300;
/// The shortest period. A sample that is late by less than this has a definite place.
const PERIOD: u64 = 20_011;
/// The least time between two samples, so that neither Linux nor the hypervisor puts them off.
const BETWEEN_SAMPLES: Duration = Duration::from_micros(150);

/// Keeps this thread on the CPU where it is, whose interrupts are counted.
pub fn stay() -> Result<usize> {
    let cpu = sched_getcpu()?;
    run_on(cpu)?;
    Ok(cpu)
}

/// Measures everything with this thread, which stays on `cpu`.
///
/// # Errors
///
/// Nothing can be counted here.
pub fn all(cpu: usize) -> Result<Measured> {
    let mut session = Session::open()?;
    let provider = session.description().provider;
    session.start(&EVENTS)?;
    let meter = Meter { session: &session, cpu };
    let speed = speed();
    let rounds = |time: Duration| (speed * time.as_secs_f64()) as u64;
    let reads = meter.reads().into();
    let short_loops = meter.loops(SHORT.0, SHORT.1).into();
    let long_loops = meter.loops(rounds(LONG.0).max(SHORT.0), LONG.1).into();
    let page_faults = meter.page_faults().into();
    let exits = meter.known(bodies::IDENTIFY, EXITS, 1, &mut |rounds| bodies::identify(rounds));
    let exits = exits.map(|known| Known { causes: EXITS, ..known }).into();
    let wrap = meter.wrap(rounds(WRAP_AT_MOST)).into();
    session.stop()?;
    let period = period(rounds(BETWEEN_SAMPLES) * bodies::COUNT_DOWN.instructions);
    let (samples, interrupts) = match provider {
        Provider::Paravirt => recorded(session, period),
        _ => {
            drop(session);
            sampled(period)
        }
    };
    Ok(Measured {
        reads,
        short_loops,
        long_loops,
        wrap,
        page_faults,
        exits,
        samples: samples.into(),
        interrupts: interrupts.into(),
    })
}

/// Returns how many rounds of a loop this machine executes in a second.
fn speed() -> f64 {
    let (mut rounds, at_least) = (1 << 16, Duration::from_millis(20));
    loop {
        let start = Instant::now();
        bodies::count_down(rounds);
        let took = start.elapsed();
        if took >= at_least {
            return rounds as f64 / took.as_secs_f64();
        }
        rounds *= 4;
    }
}

/// Returns a period of at least this many instructions, whose multiples fall everywhere in a round.
fn period(at_least: u64) -> u64 {
    PERIOD + at_least.saturating_sub(PERIOD).div_ceil(STRAIGHT_ROUND) * STRAIGHT_ROUND
}

/// Counts with a session that has started.
struct Meter<'a> {
    session: &'a Session,
    cpu: usize,
}

impl Meter<'_> {
    fn reads(&self) -> Result<Reads> {
        let (mut instructions, mut branches, mut direct) = (Vec::new(), Vec::new(), true);
        for _ in 0..EMPTY_REGIONS {
            let first = self.session.counts::<2>()?;
            let region = self.session.counts::<2>()? - first;
            direct &= region.direct;
            if region.retries == 0 {
                instructions.push(region.counts[0] as i64);
                branches.push(region.counts[1] as i64);
            }
        }
        let start = Instant::now();
        for _ in 0..EMPTY_REGIONS {
            black_box(self.session.counts::<2>()?);
        }
        let ns = start.elapsed().as_secs_f64() * 1e9 / EMPTY_REGIONS as f64;
        let spread = |numbers: &[i64]| Spread::of(numbers.iter().copied()).context("disturbed");
        Ok(Reads {
            regions: instructions.len() as u64,
            instructions: spread(&instructions)?,
            branches: spread(&branches)?,
            direct,
            ns,
        })
    }

    fn loops(&self, rounds: u64, runs: usize) -> Result<Known> {
        self.known(bodies::COUNT_DOWN, rounds, runs, &mut |rounds| bodies::count_down(rounds))
    }

    fn wrap(&self, rounds_at_most: u64) -> Result<Known> {
        let rounds = (1 << 32) / bodies::COUNT_DOWN.instructions + (1 << 20);
        ensure!(
            rounds <= rounds_at_most,
            "this machine needs more than {} s for 2^32 instructions",
            WRAP_AT_MOST.as_secs()
        );
        self.loops(rounds, 1)
    }

    fn page_faults(&self) -> Result<Known> {
        // The kernel gives each page of this memory only when it is touched.
        let pages = RefCell::new(vec![0; (1 + FAULTS as usize) * PAGE]);
        let mut touch = |rounds| bodies::touch(&mut pages.borrow_mut(), rounds);
        let before = usage()?.minor_page_faults();
        let known = self.known(bodies::TOUCH, FAULTS, 1, &mut touch)?;
        let faults = (usage()?.minor_page_faults() - before) as u64;
        ensure!(faults >= FAULTS / 2, "{FAULTS} fresh pages had {faults} faults only");
        Ok(Known { causes: faults.min(FAULTS), ..known })
    }

    /// Runs the program `runs` times with `rounds` rounds each.
    fn known(
        &self,
        round: Round,
        rounds: u64,
        runs: usize,
        body: &mut dyn FnMut(u64),
    ) -> Result<Known> {
        let mut one = [i64::MAX; 2];
        for _ in 0..16 {
            if let Some(counts) = self.once(1, body)? {
                one = [one[0].min(counts[0]), one[1].min(counts[1])];
            }
        }
        ensure!(one[0] < i64::MAX, "every reading was disturbed");
        let (instructions, branches) =
            (round.instructions * (rounds - 1), round.branches * (rounds - 1));
        let (interrupts, switched) = (interrupted(self.cpu), switches()?);
        let mut surplus = Vec::new();
        for _ in 0..runs {
            if let Some(counts) = self.once(rounds, body)? {
                surplus.push(Surplus {
                    instructions: counts[0] - one[0] - instructions as i64,
                    branches: counts[1] - one[1] - branches as i64,
                });
            }
        }
        ensure!(!surplus.is_empty(), "every reading was disturbed");
        let interrupts = interrupts.zip(interrupted(self.cpu)).map(|(before, now)| now - before);
        let switches = switches()? - switched;
        Ok(Known { instructions, branches, causes: 0, surplus, interrupts, switches })
    }

    /// Counts one run. Returns `None` if a reading was disturbed, because its attempts are
    /// counted, too.
    #[inline(never)]
    fn once(&self, rounds: u64, body: &mut dyn FnMut(u64)) -> Result<Option<[i64; 2]>> {
        let mut counts = [0; 2];
        let rounds = black_box(rounds);
        let region = self.session.measure([&mut || body(rounds), &mut || ()], &mut counts)?;
        Ok((region.retries == 0).then(|| counts.map(|count| count as i64)))
    }
}

fn usage() -> Result<Usage> {
    getrusage(UsageWho::RUSAGE_THREAD).context("cannot ask for page faults and switches")
}

fn switches() -> Result<u64> {
    let usage = usage()?;
    Ok((usage.voluntary_context_switches() + usage.involuntary_context_switches()) as u64)
}

/// Returns how often this CPU was interrupted since the machine started, if the kernel says so.
fn interrupted(cpu: usize) -> Option<u64> {
    on_cpu(&fs::read_to_string(INTERRUPTS).ok()?, cpu, |_| true)
}

/// Adds up the interrupts of these kinds on a CPU, from the text of `/proc/interrupts`. Returns
/// `None` if the text is not understood.
fn on_cpu(text: &str, cpu: usize, kinds: impl Fn(&str) -> bool) -> Option<u64> {
    let mut lines = text.lines();
    let cpus: Vec<&str> = lines.next()?.split_whitespace().collect();
    let column = cpus.iter().position(|name| *name == format!("CPU{cpu}"))?;
    let number = |line: &str| {
        let (kind, numbers) = line.split_once(':')?;
        // Lines of the whole machine have one number.
        let numbers = numbers.split_whitespace().map_while(|word| word.parse::<u64>().ok());
        let numbers: Vec<u64> = numbers.take(cpus.len()).collect();
        let is_complete = numbers.len() == cpus.len() && kinds(kind.trim());
        is_complete.then(|| numbers[column])
    };
    Some(lines.filter_map(number).sum())
}

/// Samples the straight block by records of the module.
fn recorded(mut session: Session, period: u64) -> (Result<Samples>, Result<Interrupts>) {
    let before = driver(&session);
    let samples = record(&mut session, period);
    let interrupts = before.and_then(|before| {
        let now = driver(&session)?;
        Ok(Interrupts {
            by: "the hypervisor's driver",
            overflows: now.overflows - before.overflows,
            interrupts: now.interrupts - before.interrupts,
        })
    });
    (samples, interrupts)
}

fn record(session: &mut Session, period: u64) -> Result<Samples> {
    let mut records = session.records(2 * SAMPLES as usize, 0)?;
    let rounds = rounds(period);
    let put_off = sum(session, |page| page.throttled.load(Relaxed));
    session.start_recording(&[Event::INSTRUCTIONS.user().every(period)])?;
    bodies::straight(rounds);
    session.stop()?;
    let put_off = sum(session, |page| page.throttled.load(Relaxed)) - put_off;
    let mut taken = Vec::new();
    while let Some(record) = records.take()? {
        taken.push(Taken { count: record.count, place: bodies::place(record.ip) });
    }
    let instructions = rounds * STRAIGHT_ROUND;
    let lost = records.lost();
    Ok(Samples { period, round: STRAIGHT_ROUND, instructions, lost, put_off, taken })
}

/// Returns how many rounds of the straight block contain all samples.
fn rounds(period: u64) -> u64 {
    (SAMPLES * period).div_ceil(STRAIGHT_ROUND)
}

/// Sums up a number of all vCPUs.
fn sum(session: &Session, number: impl Fn(&perfctr::VcpuPage) -> u64) -> u64 {
    let pages = (0..session.description().vcpus).filter_map(|n| session.vcpu_page(n));
    pages.map(number).sum()
}

/// The driver's statistics until now.
struct Driver {
    overflows: u64,
    interrupts: u64,
}

fn driver(session: &Session) -> Result<Driver> {
    let asked = Xen::open().and_then(|xen| xen.interrupts());
    let interrupts = asked.context("only root of Xen's control domain may ask for them")?;
    Ok(Driver { overflows: sum(session, |page| page.overflows.load(Relaxed)), interrupts })
}

/// Samples the straight block with Linux' own perf.
fn sampled(period: u64) -> (Result<Samples>, Result<Interrupts>) {
    let before = nmis();
    let samples = watch(period);
    let interrupts = match (before.zip(nmis()), &samples) {
        (_, Err(_)) => Err(anyhow::anyhow!("no samples were taken")),
        (None, _) => Err(anyhow::anyhow!("{INTERRUPTS} does not say how many NMIs there were")),
        (Some((before, now)), Ok(samples)) => Ok(Interrupts {
            by: INTERRUPTS,
            overflows: samples.taken.len() as u64 + samples.lost,
            interrupts: now - before,
        }),
    };
    (samples, interrupts)
}

fn nmis() -> Option<u64> {
    let cpu = sched_getcpu().ok()?;
    on_cpu(&fs::read_to_string(INTERRUPTS).ok()?, cpu, |kind| kind == "NMI")
}

fn watch(period: u64) -> Result<Samples> {
    let rounds = rounds(period);
    let event = Event::INSTRUCTIONS.user().every(period);
    let mut samples = Watch::this_thread().counts().sample(event)?;
    bodies::straight(rounds);
    let mut taken = Vec::new();
    while let Some(sample) = samples.take()? {
        let Some(count) = sample.count else { bail!("a sample has no count") };
        // The code after the block is this loop.
        if taken.len() < 2 * SAMPLES as usize {
            taken.push(Taken { count, place: bodies::place(sample.ip) });
        }
    }
    let (lost, put_off) = (samples.lost(), samples.throttled());
    let instructions = rounds * STRAIGHT_ROUND;
    Ok(Samples { period, round: STRAIGHT_ROUND, instructions, lost, put_off, taken })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_those_of_one_cpu() {
        let text = "           CPU0       CPU2\n  0:         10        200   IO-APIC 2-edge 7\n\
                    NMI:          3          4   Non-maskable interrupts\nERR:          9\n";
        assert_eq!(on_cpu(text, 0, |_| true), Some(13));
        assert_eq!(on_cpu(text, 2, |_| true), Some(204));
        assert_eq!(on_cpu(text, 2, |kind| kind == "NMI"), Some(4));
        assert_eq!(on_cpu(text, 1, |_| true), None, "there is no such CPU");
        assert_eq!(on_cpu("", 0, |_| true), None);
    }

    #[test]
    fn periods_are_long_enough_and_meet_every_place() {
        for (at_least, expected) in
            [(0, 20_011), (20_011, 20_011), (20_012, 36_397), (36_397, 36_397), (36_398, 52_783)]
        {
            assert_eq!(period(at_least), expected, "{at_least}");
        }
        let places: std::collections::HashSet<u64> =
            (1..=STRAIGHT_ROUND).map(|n| n * PERIOD % STRAIGHT_ROUND).collect();
        assert_eq!(places.len() as u64, STRAIGHT_ROUND);
    }
}
