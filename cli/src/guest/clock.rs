// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Brings the time-stamp counter of the host's samples and the clock of a guest's records to one
//! axis.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use perfctr::rdpmc::Hardware;
use serde::{Deserialize, Serialize};
use shared_abi::read::Counters;

use crate::machine::{THIS_THREAD, run_on};

const NS_PER_SECOND: u128 = 1_000_000_000;

/// A moment by both clocks of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The time-stamp counter.
    pub tsc: u64,
    /// The clock of the kernel's records. Unit: ns.
    pub ns: u64,
    /// The moment of the counter may be earlier or later than that of the clock by so much. Unit:
    /// ticks of the counter.
    pub within: u64,
}

impl Moment {
    /// Reads both clocks so many times, and returns the time at which they were read in the
    /// shortest time.
    pub fn now(attempts: u32) -> Result<Self> {
        let read = |_| -> Result<Self> {
            let before = Hardware.clock();
            let time = clock_gettime(ClockId::CLOCK_MONOTONIC_RAW)?;
            let took = Hardware.clock().saturating_sub(before);
            let ns = NS_PER_SECOND as i64 * time.tv_sec() + time.tv_nsec();
            Ok(Self { tsc: before + took / 2, ns: ns as u64, within: took.div_ceil(2) })
        };
        let read: Vec<Self> = (0..attempts).map(read).collect::<Result<_>>()?;
        read.into_iter().min_by_key(|moment| moment.within).context("no attempts")
    }
}

/// How often both clocks are read in a row, at the beginning and at the end, and in between.
const ATTEMPTS: u32 = 100;
const ATTEMPTS_BETWEEN: u32 = 3;
/// How often they are read in a row on each CPU, in each second.
const ATTEMPTS_EACH: u32 = 30;
/// The time between two moments that are kept. Of all that were read meanwhile, the most exact one
/// is kept.
const KEPT_EACH: Duration = Duration::from_secs(1);

/// The moments of a recording.
#[derive(Debug)]
pub struct Moments {
    all: Vec<Moment>,
    /// The most exact moment since the last one that was kept.
    next: Option<Moment>,
    kept: Instant,
}

impl Moments {
    /// Reads the first moment.
    pub fn begin() -> Result<Self> {
        let all = vec![Moment::now(ATTEMPTS)?];
        Ok(Self { all, next: None, kept: Instant::now() })
    }

    /// Reads a further moment, which is kept if it is the most exact one of a second.
    pub fn tick(&mut self) -> Result<()> {
        let now = Moment::now(ATTEMPTS_BETWEEN)?;
        let better = |best: &Moment| now.within < best.within;
        if self.next.as_ref().is_none_or(better) {
            self.next = Some(now);
        }
        if self.kept.elapsed() >= KEPT_EACH {
            self.all.extend(self.next.take());
            self.kept = Instant::now();
        }
        Ok(())
    }

    /// Returns all moments, with one more that is read now.
    pub fn until_now(&self) -> Result<Vec<Moment>> {
        let mut all = self.all.clone();
        all.push(Moment::now(ATTEMPTS)?);
        Ok(all)
    }
}

/// The moments of each CPU of a guest that records. A hypervisor may tell each virtual CPU the time
/// separately, and then the kernel's clock differs slightly from one CPU to another.
#[derive(Debug)]
pub struct EachCpu {
    /// The CPUs on which this thread executes otherwise.
    home: CpuSet,
    of_cpus: BTreeMap<u32, Moments>,
    visited: Instant,
}

impl EachCpu {
    /// Reads the first moment on each CPU that is online.
    pub fn begin() -> Result<Self> {
        let home = sched_getaffinity(THIS_THREAD)?;
        let mut of_cpus = BTreeMap::new();
        for cpu in 0..CpuSet::count() as u32 {
            if move_to(cpu) {
                of_cpus.insert(cpu, Moments::begin()?);
            }
        }
        let each = Self { home, of_cpus, visited: Instant::now() };
        each.go_home()?;
        Ok(each)
    }

    /// Reads a further moment on each CPU, if the last one was a second ago.
    pub fn tick(&mut self) -> Result<()> {
        if self.visited.elapsed() < KEPT_EACH {
            return Ok(());
        }
        for (&cpu, moments) in &mut self.of_cpus {
            // A CPU may be offline now.
            if move_to(cpu) {
                moments.all.push(Moment::now(ATTEMPTS_EACH)?);
            }
        }
        self.visited = Instant::now();
        self.go_home()
    }

    /// Returns all moments of each CPU, with one more that is read now.
    pub fn until_now(&self) -> Result<BTreeMap<u32, Vec<Moment>>> {
        let mut all = BTreeMap::new();
        for (&cpu, moments) in &self.of_cpus {
            let is_there = move_to(cpu);
            all.insert(cpu, if is_there { moments.until_now()? } else { moments.all.clone() });
        }
        self.go_home()?;
        Ok(all)
    }

    fn go_home(&self) -> Result<()> {
        sched_setaffinity(THIS_THREAD, &self.home).context("this thread cannot return to its CPUs")
    }
}

/// Moves this thread to a CPU, if it is online. Returns whether it is there.
fn move_to(cpu: u32) -> bool {
    run_on(cpu as usize).is_ok()
}

/// The relation of a guest's clocks, from moments at which both were read.
#[derive(Debug)]
pub struct Clock {
    moments: Vec<Moment>,
    /// Unit: ns.
    error: u64,
}

impl Clock {
    /// Finds the relation. The moments may have any values.
    pub fn new(moments: Vec<Moment>) -> Result<Self> {
        ensure!(moments.len() > 1, "{} times of both clocks found, 2 expected", moments.len());
        let follows = |pair: &[Moment]| pair[0].tsc < pair[1].tsc && pair[0].ns < pair[1].ns;
        ensure!(moments.windows(2).all(follows), "times of both clocks found that go back");
        let mut clock = Self { moments, error: 0 };
        let within = clock.moments.iter().map(|moment| moment.within).max().unwrap_or(0);
        let within = u128::from(within) * NS_PER_SECOND;
        let within = within.div_ceil(u128::from(clock.ticks_per_second().max(1)));
        let bends = clock.moments.windows(3).map(|three| {
            // Between the outer two, the clock is taken for a straight line.
            let straight = between(&three[0], &three[2], three[1].tsc);
            straight.abs_diff(three[1].ns)
        });
        let bend = bends.max().unwrap_or(0);
        // Each of both axes is in whole numbers of ns.
        clock.error = u64::try_from(within).unwrap_or(u64::MAX).saturating_add(bend + 2);
        Ok(clock)
    }

    /// Returns the time of the records' clock at which the counter had this value, or `None` if
    /// the guest has not recorded then.
    pub fn ns(&self, tsc: u64) -> Option<u64> {
        let after = self.moments.partition_point(|moment| moment.tsc < tsc);
        match (after.checked_sub(1), self.moments.get(after)?) {
            (_, last) if last.tsc == tsc => Some(last.ns),
            (before, last) => Some(between(&self.moments[before?], last, tsc)),
        }
    }

    /// Returns the value of the counter at this time of the records' clock. Before the first moment
    /// and after the last one, this is the moment's.
    pub fn tsc(&self, ns: u64) -> u64 {
        let after = self.moments.partition_point(|moment| moment.ns < ns);
        let Some(last) = self.moments.get(after) else { return self.span()[1] };
        let Some(first) = after.checked_sub(1).map(|n| self.moments[n]) else { return last.tsc };
        let ticks = u128::from(ns - first.ns) * u128::from(last.tsc - first.tsc);
        // It is not larger than the difference of the two.
        first.tsc + ticks.div_ceil(u128::from(last.ns - first.ns)) as u64
    }

    /// Returns by how much [`ns`](Self::ns) may be wrong, unit: ns.
    pub fn error(&self) -> u64 {
        self.error
    }

    pub fn ticks_per_second(&self) -> u64 {
        let (first, last) = (&self.moments[0], &self.moments[self.moments.len() - 1]);
        let ticks = u128::from(last.tsc - first.tsc) * NS_PER_SECOND;
        u64::try_from(ticks / u128::from(last.ns - first.ns)).unwrap_or(u64::MAX)
    }

    /// Returns the values of the counter between which the guest has recorded.
    pub fn span(&self) -> [u64; 2] {
        [self.moments[0].tsc, self.moments[self.moments.len() - 1].tsc]
    }
}

/// The relations of the clocks of each of a guest's CPUs.
#[derive(Debug)]
pub struct Clocks(BTreeMap<u32, Clock>);

impl Clocks {
    /// Finds the relations. The moments may have any values. A CPU that was away at the beginning
    /// or at the end may have only one, and its clock is not known then.
    pub fn new(moments: &BTreeMap<u32, Vec<Moment>>) -> Result<Self> {
        let known = moments.iter().filter(|(_, of_cpu)| of_cpu.len() > 1);
        let clock = |(&cpu, of_cpu): (&u32, &Vec<Moment>)| {
            let clock = Clock::new(of_cpu.clone()).with_context(|| format!("CPU {cpu}"))?;
            Ok((cpu, clock))
        };
        let clocks: BTreeMap<u32, Clock> = known.map(clock).collect::<Result<_>>()?;
        ensure!(!clocks.is_empty(), "two times of both clocks expected, and found on no CPU");
        Ok(Self(clocks))
    }

    /// Returns the clock of a CPU, if it is known.
    pub fn of_cpu(&self, cpu: u32) -> Option<&Clock> {
        self.0.get(&cpu)
    }

    /// Returns the clocks of all CPUs. There is one at least.
    pub fn all(&self) -> impl Iterator<Item = &Clock> {
        self.0.values()
    }

    /// Returns by how much a time of any CPU may be wrong, unit: ns.
    pub fn error(&self) -> u64 {
        self.all().map(Clock::error).max().unwrap_or(0)
    }
}

/// Returns the clock's time when the counter had a value between two moments.
fn between(first: &Moment, last: &Moment, tsc: u64) -> u64 {
    let ns = u128::from(tsc - first.tsc) * u128::from(last.ns - first.ns);
    // It is not larger than the difference of the two.
    first.ns + (ns / u128::from(last.tsc - first.tsc)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(all: &[(u64, u64, u64)]) -> Vec<Moment> {
        all.iter().map(|&(tsc, ns, within)| Moment { tsc, ns, within }).collect()
    }

    #[test]
    fn times_between_moments_are_on_a_line_and_others_are_unknown() {
        let clock = Clock::new(moments(&[(1_000, 50, 2), (3_000, 1_050, 6), (7_000, 3_050, 4)]));
        let clock = clock.unwrap();
        let found = [999, 1_000, 1_002, 2_999, 3_000, 5_000, 7_000, 7_001].map(|at| clock.ns(at));
        let known = [50, 51, 1_049, 1_050, 2_050, 3_050].map(Some);
        assert_eq!(found, [&[None][..], &known, &[None]].concat()[..]);
        assert_eq!(clock.ticks_per_second(), 2_000_000_000);
        assert_eq!((clock.error(), clock.span()), (3 + 2, [1_000, 7_000]));
    }

    #[test]
    fn the_counter_is_found_by_the_time() {
        let clock = Clock::new(moments(&[(1_000, 50, 2), (3_000, 1_050, 6), (7_000, 3_050, 4)]));
        let clock = clock.unwrap();
        for (ns, tsc) in [(0, 1_000), (50, 1_000), (51, 1_002), (1_050, 3_000), (2_050, 5_000)] {
            assert_eq!(clock.tsc(ns), tsc, "{ns}");
        }
        assert_eq!([3_050, 9_999].map(|ns| clock.tsc(ns)), [7_000; 2]);
        let slow = Clock::new(moments(&[(1, 50, 0), (4, 1_050, 0)])).unwrap();
        for ns in 50..1_050 {
            assert!(slow.ns(slow.tsc(ns)).unwrap() >= ns, "{ns}");
        }
    }

    /// No test has to wait for so long.
    const LONG: Duration = Duration::from_secs(3_600);

    #[test]
    fn the_moments_of_a_recording_are_a_clock() {
        let mut moments = Moments::begin().unwrap();
        // The test may have to wait for a CPU, and must not take that for a second.
        moments.kept += LONG;
        moments.tick().unwrap();
        moments.kept -= LONG;
        // No later moment is more exact.
        moments.next.as_mut().unwrap().within = 0;
        for _ in 0..2 {
            moments.kept -= KEPT_EACH;
            moments.tick().unwrap();
        }
        let all = moments.until_now().unwrap();
        assert_eq!(all.len(), 4, "of two ticks in a second one is kept, and each of them once");
        Clock::new(all).unwrap();
    }

    #[test]
    fn each_cpu_has_a_clock_of_its_own() {
        let home = sched_getaffinity(THIS_THREAD).unwrap();
        let mut each = EachCpu::begin().unwrap();
        each.visited += LONG;
        each.tick().unwrap();
        each.visited -= LONG + KEPT_EACH;
        each.tick().unwrap();
        let all = each.until_now().unwrap();
        assert_eq!(sched_getaffinity(THIS_THREAD).unwrap(), home);
        let online = std::thread::available_parallelism().unwrap().get();
        assert!(all.len() >= online, "{} of {online} CPUs", all.len());
        assert!(all.values().all(|of_cpu| of_cpu.len() == 3), "{all:?}");
        Clocks::new(&all).unwrap();
    }

    #[test]
    fn clocks_of_cpus_may_differ() {
        let ahead = moments(&[(0, 500, 0), (1_000, 1_500, 10)]);
        let all = [(0, moments(&[(0, 0, 4), (1_000, 1_000, 0)])), (2, ahead), (3, Vec::new())];
        let clocks = Clocks::new(&BTreeMap::from(all)).unwrap();
        let at = |cpu| clocks.of_cpu(cpu).and_then(|clock| clock.ns(100));
        assert_eq!([0, 1, 2, 3].map(at), [Some(100), None, Some(600), None]);
        assert_eq!(clocks.error(), 10 + 2);
        let backwards = BTreeMap::from([(7, moments(&[(1, 2, 0), (2, 2, 0)]))]);
        let why = format!("{:#}", Clocks::new(&backwards).unwrap_err());
        assert_eq!(why, "CPU 7: times of both clocks found that go back");
    }

    #[test]
    fn a_bend_is_part_of_the_error() {
        let clock =
            Clock::new(moments(&[(0, 0, 0), (1_000, 1_007, 0), (2_000, 2_000, 0)])).unwrap();
        assert_eq!(clock.error(), 7 + 2);
    }

    #[test]
    fn moments_that_make_no_sense_are_refused() {
        for all in [&[][..], &[(1, 1, 0)], &[(1, 1, 0), (1, 2, 0)], &[(1, 2, 0), (2, 2, 0)]] {
            assert!(Clock::new(moments(all)).is_err(), "{all:?}");
        }
        let far = Clock::new(moments(&[(0, 0, u64::MAX), (u64::MAX, u64::MAX, 0)])).unwrap();
        assert_eq!(far.ns(u64::MAX / 2), Some(u64::MAX / 2));
        assert_eq!(far.error(), u64::MAX);
    }

    #[test]
    fn this_machines_clocks_can_be_read_together() {
        let first = Moment::now(10).unwrap();
        let last = Moment::now(10).unwrap();
        let clock = Clock::new(vec![first, last]).unwrap();
        assert!(clock.ns(first.tsc) == Some(first.ns), "{first:?} {last:?}");
    }
}
