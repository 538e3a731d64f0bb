// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Programs that count beside the hostile one, and exactly.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use vm_tests::shared;
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::users::Child;
use vm_tests::witness::Witness;

/// Between two checks, so that most of the machine is left to the hostile one.
const PAUSE: Duration = Duration::from_millis(5);

/// One process on each vCPU.
#[derive(Debug)]
pub struct Neighbours {
    children: Vec<Child>,
    end: &'static AtomicU64,
}

impl Neighbours {
    /// They begin to count.
    pub fn start() -> Result<Self> {
        let words = shared::words()?;
        let child = |cpu| Child::fork(|| count(cpu, &words[0], &words[1 + cpu]));
        let children = cpus()?.into_iter().map(child).collect::<Result<_>>()?;
        Ok(Self { children, end: &words[0] })
    }

    /// All of them have counted exactly to the end, which is now.
    pub fn judge(self) -> Result<()> {
        self.end.store(1, SeqCst);
        self.children.into_iter().try_for_each(Child::join)
    }
}

fn count(cpu: usize, end: &AtomicU64, checks: &AtomicU64) -> Result<()> {
    run_on(SELF, &[cpu])?;
    let witness = Witness::new()?;
    while end.load(SeqCst) == 0 {
        witness.unchanged().map_err(anyhow::Error::msg)?;
        checks.fetch_add(1, SeqCst);
        sleep(PAUSE);
    }
    ensure!(checks.load(SeqCst) > 0, "a neighbour has checked nothing");
    Ok(())
}
