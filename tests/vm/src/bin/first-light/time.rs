// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Logical time-stamp counters against what Linux and Xen account.

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use perfctr::Session;
use perfctr::rdpmc::Hardware;
use shared_abi::read::sample_vcpu;
use shared_abi::sync::Ordering::Relaxed;
use vm_tests::threads::{SELF, run_on};
use vm_tests::xen::Xen;

/// A clock's value with our counter's values just before and just after it was read.
#[derive(Clone, Copy, Debug, Default)]
struct Bracket {
    before_tsc: u64,
    clock_ns: u64,
    after_tsc: u64,
}

/// What passed between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elapsed {
    /// Bounds of what our counter counted between the two looks at the clock, unit: TSC ticks.
    pub min_tsc: u64,
    pub max_tsc: u64,
    /// By the other clock.
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

    /// How much more our counter counted than the clock, as far as the bounds prove it.
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

/// A thread's logical TSC beside Linux's account of its CPU time.
pub struct ThreadTime(Bracket);

impl ThreadTime {
    pub fn take(session: &Session) -> Result<Self> {
        let before_tsc = session.read::<0>()?.tsc;
        let cpu = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
        let after_tsc = session.read::<0>()?.tsc;
        let clock_ns = cpu.tv_sec() as u64 * 1_000_000_000 + cpu.tv_nsec() as u64;
        Ok(Self(Bracket { before_tsc, clock_ns, after_tsc }))
    }

    /// What passed since `earlier`.
    pub fn since(&self, earlier: &Self) -> Elapsed {
        Elapsed::between(&earlier.0, &self.0)
    }
}

/// For every vCPU its running time by our page beside Xen's account of it, and how often it moved.
pub struct VcpuTimes(Vec<VcpuTime>);

struct VcpuTime {
    running: Bracket,
    switches: u64,
    migrations: u64,
}

/// What passed for one vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct VcpuElapsed {
    pub running: Elapsed,
    pub switches: u64,
    pub migrations: u64,
}

impl VcpuTimes {
    /// Visits every vCPU, whose page can be read directly only there.
    pub fn take(xen: &Xen, session: &Session, cpus: &[usize]) -> Result<Self> {
        let visit = |&cpu: &usize| {
            run_on(SELF, &[cpu])?;
            let page = session.vcpu_page(cpu as u32).context("the vCPU has no page")?;
            let running_tsc = || match sample_vcpu(page, &Hardware, &[]) {
                Ok(sample) => Ok(sample.tsc),
                Err(error) => anyhow::bail!("the vCPU's page cannot be read: {error:?}"),
            };
            let before_tsc = running_tsc()?;
            let clock_ns = xen.runstate(cpu as u32)?.running_ns;
            let after_tsc = running_tsc()?;
            Ok(VcpuTime {
                running: Bracket { before_tsc, clock_ns, after_tsc },
                switches: page.switches.load(Relaxed),
                migrations: page.migrations.load(Relaxed),
            })
        };
        Ok(Self(cpus.iter().map(visit).collect::<Result<_>>()?))
    }

    /// What passed since `earlier`, for every vCPU.
    pub fn since(&self, earlier: &Self) -> Vec<VcpuElapsed> {
        let elapsed = |(start, end): (&VcpuTime, &VcpuTime)| VcpuElapsed {
            running: Elapsed::between(&start.running, &end.running),
            switches: end.switches - start.switches,
            migrations: end.migrations - start.migrations,
        };
        earlier.0.iter().zip(&self.0).map(elapsed).collect()
    }
}

/// How far two clocks may drift apart at each switch.
///
/// Schedulers take the time once at the start of a switch, our samples are taken further down the
/// same path, and the path's length varies.  Under emulation it is some thousand instructions and
/// may be interrupted by the emulator's own host.
const SKEW_NS_PER_SWITCH: u64 = 100_000;

/// How far two clocks may be apart whatever happens: the resolution of a timer tick.
const SKEW_NS: u64 = 4_000_000;

/// Compares the accounts of several threads or vCPUs.
pub struct TimeCheck {
    tsc_khz: u32,
    /// The worst excess of our counter over the clock, and the same per switch.
    pub worst_ns: i64,
    pub worst_per_switch_ns: i64,
    /// Whether all are as close as can be expected.
    pub within: bool,
    /// Sums over all.
    pub min_tsc: u64,
    pub clock_ns: u64,
}

impl TimeCheck {
    pub fn new(tsc_khz: u32) -> Self {
        Self { tsc_khz, worst_ns: 0, worst_per_switch_ns: 0, within: true, min_tsc: 0, clock_ns: 0 }
    }

    /// Checks one of them, which was switched in `switches` times.
    pub fn add(&mut self, elapsed: &Elapsed, switches: u64) {
        let excess_ns = elapsed.excess_ns(self.tsc_khz);
        if excess_ns.unsigned_abs() >= self.worst_ns.unsigned_abs() {
            self.worst_ns = excess_ns;
            self.worst_per_switch_ns = excess_ns / switches.max(1) as i64;
        }
        self.within &= excess_ns.unsigned_abs() <= SKEW_NS + SKEW_NS_PER_SWITCH * switches;
        self.min_tsc += elapsed.min_tsc;
        self.clock_ns += elapsed.clock_ns;
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
}
