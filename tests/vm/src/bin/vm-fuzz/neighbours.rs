// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs programs that count beside the hostile one, and must do so exactly.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use vm_tests::region;
use vm_tests::shared;
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::users::Child;
use vm_tests::witness::Witness;

/// The time between two checks, so that most of the machine is left to the hostile program.
const PAUSE: Duration = Duration::from_millis(10);
/// The least number of checks of each neighbour. Fewer checks prove nothing.
const CHECKS_MIN: u64 = 20;
/// How long these may take, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// One process on each vCPU.
#[derive(Debug)]
pub struct Neighbours {
    children: Vec<Child>,
    end: &'static AtomicU64,
    checks: &'static [AtomicU64],
}

impl Neighbours {
    /// Starts the neighbours. They count when this returns.
    pub fn start() -> Result<Self> {
        // The overhead is found once, before anybody counts, since that takes long.
        region::overhead()?;
        let [end, checks @ ..] = shared::words()?;
        let child = |(cpu, checks)| Child::fork(move || count(cpu, end, checks));
        let children = cpus()?.into_iter().zip(checks).map(child).collect::<Result<Vec<_>>>()?;
        let neighbours = Self { checks: &checks[..children.len()], children, end };
        neighbours.until(1)?;
        Ok(neighbours)
    }

    /// Ends the neighbours, and checks that all of them have counted exactly to the end. Returns
    /// how often they checked.
    pub fn judge(self) -> Result<u64> {
        let outcome = self.until(CHECKS_MIN);
        self.end.store(1, SeqCst);
        self.children.into_iter().try_for_each(Child::join)?;
        outcome?;
        Ok(self.checks.iter().map(|checks| checks.load(SeqCst)).sum())
    }

    /// Waits until each has made `least` checks, or one has ended.
    fn until(&self, least: u64) -> Result<()> {
        let start = Instant::now();
        for (child, checks) in self.children.iter().zip(self.checks) {
            while checks.load(SeqCst) < least && !has_ended(child)? {
                let so_far = checks.load(SeqCst);
                ensure!(start.elapsed() < PATIENCE, "a neighbour has checked {so_far} times only");
                sleep(PAUSE);
            }
        }
        Ok(())
    }
}

/// Returns whether a child has ended, which means that it has failed. It can still be joined.
fn has_ended(child: &Child) -> Result<bool> {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    Ok(waitid(Id::Pid(child.pid), look)? != WaitStatus::StillAlive)
}

fn count(cpu: usize, end: &AtomicU64, checks: &AtomicU64) -> Result<()> {
    run_on(SELF, &[cpu])?;
    let witness = Witness::new()?;
    while end.load(SeqCst) == 0 {
        witness.unchanged().map_err(anyhow::Error::msg)?;
        checks.fetch_add(1, SeqCst);
        sleep(PAUSE);
    }
    Ok(())
}
