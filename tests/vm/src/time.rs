// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Compares logical time-stamp counters with the accounts of Linux and the host.

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use perfctr::Session;
use perfctr::rdpmc::Hardware;
use shared_abi::read::sample_vcpu;
use shared_abi::sync::Ordering::Relaxed;

use crate::host::Host;
use crate::threads::{SELF, run_on};

/// A clock's value with our counter's values just before and just after it was read.
#[derive(Clone, Copy, Debug, Default)]
struct Bracket {
    before_tsc: u64,
    clock_ns: u64,
    after_tsc: u64,
}

/// The time that passed between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elapsed {
    /// The least that our counter counted between the two reads of the clock. Unit: TSC ticks.
    pub min_tsc: u64,
    /// The most that it counted. Unit: TSC ticks.
    pub max_tsc: u64,
    /// What passed by the other clock. Unit: ns.
    pub clock_ns: u64,
}

impl Elapsed {
    fn between(start: &Bracket, end: &Bracket) -> Self {
        Self {
            min_tsc: end.before_tsc.saturating_sub(start.after_tsc),
            max_tsc: end.after_tsc.saturating_sub(start.before_tsc),
            clock_ns: end.clock_ns - start.clock_ns,
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub const fn and(&self, other: &Self) -> Self {
        Self {
            min_tsc: self.min_tsc + other.min_tsc,
            max_tsc: self.max_tsc + other.max_tsc,
            clock_ns: self.clock_ns + other.clock_ns,
        }
    }

    /// Returns how much more our counter counted than the clock, as far as the bounds prove it.
    pub fn excess_ns(&self, tsc_khz: u32) -> i64 {
        let ns = |tsc: u64| (u128::from(tsc) * 1_000_000 / u128::from(tsc_khz)) as i64;
        let clock = self.clock_ns as i64;
        if ns(self.min_tsc) > clock {
            ns(self.min_tsc) - clock
        } else {
            (ns(self.max_tsc) - clock).min(0)
        }
    }
}

/// A thread's logical TSC, and Linux's account of its CPU time.
pub struct ThreadTime(Bracket);

impl ThreadTime {
    /// Reads both for the calling thread now.
    ///
    /// # Errors
    ///
    /// The counter cannot be read.
    pub fn take(session: &Session) -> Result<Self> {
        let before_tsc = session.read::<0>()?.tsc;
        let clock_ns = clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
        let after_tsc = session.read::<0>()?.tsc;
        Ok(Self(Bracket { before_tsc, clock_ns, after_tsc }))
    }

    /// Returns what passed since `earlier`.
    pub fn since(&self, earlier: &Self) -> Elapsed {
        Elapsed::between(&earlier.0, &self.0)
    }
}

/// How long a vCPU has executed until one moment, by the host's account.
#[derive(Clone, Copy)]
pub struct VcpuMoment {
    running_ns: u64,
    /// All time that has passed, just before and just after the account was read.
    wall_ns: (u64, u64),
}

impl VcpuMoment {
    /// Reads this for any vCPU now.
    ///
    /// # Errors
    ///
    /// There is no such vCPU.
    pub fn take(host: &dyn Host, vcpu: u32) -> Result<Self> {
        let wall = || clock_ns(ClockId::CLOCK_MONOTONIC_RAW);
        let before = wall()?;
        let running_ns = host.runstate(vcpu)?.running_ns;
        Ok(Self { running_ns, wall_ns: (before, wall()?) })
    }

    /// Returns how long the vCPU did not execute at most, from the first of some moments to the
    /// last. It did not execute because it waited for a physical CPU, or for a lock of its kernel's
    /// (the thread on it is charged for both), or because it had nothing to do.
    pub fn away_ns(moments: &[Self]) -> u64 {
        let first = moments.iter().min_by_key(|moment| moment.wall_ns.0);
        let last = moments.iter().max_by_key(|moment| moment.wall_ns.1);
        first.zip(last).map_or(0, |(first, last)| {
            (last.wall_ns.1 - first.wall_ns.0).saturating_sub(last.running_ns - first.running_ns)
        })
    }
}

/// Returns a clock's value. Unit: ns.
fn clock_ns(clock: ClockId) -> Result<u64> {
    let value = clock_gettime(clock)?;
    Ok(value.tv_sec() as u64 * 1_000_000_000 + value.tv_nsec() as u64)
}

/// For every vCPU, its running time by our page and by the host's account, and how often it moved.
pub struct VcpuTimes(Vec<VcpuTime>);

struct VcpuTime {
    running: Bracket,
    waiting_ns: u64,
    switches: u64,
    migrations: u64,
}

/// What passed for one vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct VcpuElapsed {
    /// What passed while it executed.
    pub running: Elapsed,
    /// Time that the vCPU waited for a physical CPU.
    pub waiting_ns: u64,
    /// How often it was switched in.
    pub switches: u64,
    /// How often it was switched in on another physical CPU than before.
    pub migrations: u64,
}

impl VcpuTimes {
    /// Takes the times of every vCPU. Visits each, since its page can be read directly only there.
    ///
    /// # Errors
    ///
    /// A vCPU cannot be visited or has no page that can be read.
    pub fn take(host: &dyn Host, session: &Session, cpus: &[usize]) -> Result<Self> {
        let visit = |&cpu: &usize| {
            run_on(SELF, &[cpu])?;
            let page = session.vcpu_page(cpu as u32).context("the vCPU has no page")?;
            let running_tsc = || match sample_vcpu(page, &Hardware, &[]) {
                Ok(sample) => Ok(sample.tsc),
                Err(error) => anyhow::bail!("the vCPU's page cannot be read: {error:?}"),
            };
            let before_tsc = running_tsc()?;
            let runstate = host.runstate(cpu as u32)?;
            let after_tsc = running_tsc()?;
            Ok(VcpuTime {
                running: Bracket { before_tsc, clock_ns: runstate.running_ns, after_tsc },
                waiting_ns: runstate.runnable_ns,
                switches: page.switches.load(Relaxed),
                migrations: page.migrations.load(Relaxed),
            })
        };
        Ok(Self(cpus.iter().map(visit).collect::<Result<_>>()?))
    }

    /// Returns what passed since `earlier`, for every vCPU.
    pub fn since(&self, earlier: &Self) -> Vec<VcpuElapsed> {
        let elapsed = |(start, end): (&VcpuTime, &VcpuTime)| VcpuElapsed {
            running: Elapsed::between(&start.running, &end.running),
            waiting_ns: end.waiting_ns - start.waiting_ns,
            switches: end.switches - start.switches,
            migrations: end.migrations - start.migrations,
        };
        earlier.0.iter().zip(&self.0).map(elapsed).collect()
    }
}

/// How much further two clocks may differ with each switch, if time is made of executed
/// instructions. On a real machine this can be any time for which the emulator itself does not
/// execute.
///
/// A scheduler reads the time once, at the start of a switch. Our samples are taken later in the
/// same switch. The scheduler charges the time between to one of the two threads, and we charge it
/// to the other: some 2,500 instructions, of 8 ns each. Twice as many are allowed.
const SKEW_NS_PER_SWITCH: u64 = 40_000;

/// The errors of several threads or vCPUs.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeCheck {
    /// The worst excess of our counter over the clock.
    pub worst_ns: i64,
    /// Whether one is wrong by more than its switches explain.
    pub is_off: bool,
    /// The least that our counter counted for all together.
    pub min_tsc: u64,
    /// What passed for all together by the clock.
    pub clock_ns: u64,
    /// The part of that time that our counter may exclude.
    pub other_ns: u64,
}

impl TimeCheck {
    /// Adds one thread or vCPU, which was switched in `switches` times. Its clock also counted up
    /// to `other_ns` that our counter excludes.
    pub fn add(&mut self, elapsed: &Elapsed, tsc_khz: u32, switches: u64, other_ns: u64) {
        let excess_ns = elapsed.excess_ns(tsc_khz);
        if excess_ns.unsigned_abs() > self.worst_ns.unsigned_abs() {
            self.worst_ns = excess_ns;
        }
        let skew_ns = (SKEW_NS_PER_SWITCH * (switches + 1)) as i64;
        self.is_off |= !(-skew_ns - other_ns as i64..=skew_ns).contains(&excess_ns);
        self.min_tsc += elapsed.min_tsc;
        self.clock_ns += elapsed.clock_ns;
        self.other_ns += other_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_bounds_prove_is_an_excess() {
        let start = Bracket { before_tsc: 100, clock_ns: 1_000, after_tsc: 300 };
        let end = Bracket { before_tsc: 2_100, clock_ns: 2_000, after_tsc: 2_300 };
        let elapsed = Elapsed::between(&start, &end);
        assert_eq!((elapsed.min_tsc, elapsed.max_tsc), (1_800, 2_200));
        // At 2 GHz these are 900 and 1100 ns.
        assert_eq!(elapsed.excess_ns(2_000_000), 0);
        assert_eq!(Elapsed { clock_ns: 850, ..elapsed }.excess_ns(2_000_000), 50);
        assert_eq!(Elapsed { clock_ns: 1_150, ..elapsed }.excess_ns(2_000_000), -50);
    }

    #[test]
    fn a_vcpu_is_away_while_it_does_not_execute() {
        let at = |wall, running_ns| VcpuMoment { running_ns, wall_ns: (wall, wall + 10) };
        assert_eq!(VcpuMoment::away_ns(&[]), 0);
        // Between the two readings of the wall clock, either may be true.
        assert_eq!(VcpuMoment::away_ns(&[at(1_000, 500)]), 10);
        let two_threads = [at(1_000, 500), at(9_000, 3_500), at(2_000, 900), at(8_000, 3_000)];
        assert_eq!(VcpuMoment::away_ns(&two_threads), 8_010 - 3_000);
    }

    #[test]
    fn a_thread_whose_clock_stands_still_is_off() {
        // Two threads of one vCPU executed for 10 ms each, while the vCPU waited for 60 ms.
        let exact = Elapsed { min_tsc: 10_000_000, max_tsc: 10_000_000, clock_ns: 40_000_000 };
        let frozen = Elapsed { min_tsc: 0, max_tsc: 0, ..exact };
        let is_off = |both: Elapsed| {
            let mut check = TimeCheck::default();
            check.add(&both, 1_000_000, 50, 60_000_000);
            check.is_off
        };
        assert!(!is_off(exact.and(&exact)));
        assert!(is_off(exact.and(&frozen)));
    }

    #[test]
    fn what_the_clock_counts_more_may_be_what_we_exclude() {
        // 10 ms of ours against 50 ms of the clock's, at 1 GHz and after 9 switches.
        let elapsed = Elapsed { min_tsc: 10_000_000, max_tsc: 10_000_000, clock_ns: 50_000_000 };
        let is_off = |other_ns| {
            let mut check = TimeCheck::default();
            check.add(&elapsed, 1_000_000, 9, other_ns);
            check.is_off
        };
        assert!(!is_off(39_600_000));
        assert!(is_off(39_599_999));
    }
}
