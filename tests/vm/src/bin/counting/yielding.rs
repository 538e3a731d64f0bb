// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs threads that switch all the time, on vCPUs that are preempted all the time. So many of
//! these vCPUs are preempted while the guest's kernel samples counters.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use perfctr::{Provider, Session};
use vm_tests::bodies::{Body, Does};
use vm_tests::host::Host;
use vm_tests::region::{FreshPages, measure_body};
use vm_tests::stats::ModuleStats;
use vm_tests::threads::{SELF, or_exit, run_on, take_turns};

use crate::worker::{EQUAL, Series};

/// The number of samples that have to be disturbed, and how long that may take on a busy machine.
pub const RETRIES: u64 = 200;
const PATIENCE: Duration = Duration::from_secs(240);
/// The number of threads on each vCPU that switch.
const THREADS: usize = 2;
/// How often each thread yields its CPU in the middle of a region.
const YIELDS: u64 = 20;
/// The time between two looks at how many samples were disturbed.
const LOOK: Duration = Duration::from_millis(100);

/// What the threads have read, and how often the module's sampling started over.
pub struct Outcome {
    pub series: Series,
    pub retries: u64,
}

/// Runs the threads while the host preempts each vCPU as often as it can. The vCPUs get half as
/// many physical CPUs as there are vCPUs, so that some always wait. With all physical CPUs they
/// need not wait: with kernels later than Linux 6.1 the control domain has no more vCPUs than there
/// are physical CPUs.
pub fn run(host: &dyn Host, cpus: &[usize]) -> Result<Outcome> {
    let place = |pcpus| cpus.iter().try_for_each(|&cpu| host.set_affinity(cpu as u32, pcpus));
    place((1 << (cpus.len() / 2).max(1)) - 1)?;
    host.preempt_often(true)?;
    let retries = || ModuleStats::read()?.get("read_retries");
    let (first, start, done) = (retries()?, Instant::now(), &AtomicBool::new(false));
    let outcome = thread::scope(|scope| {
        let switches = |&cpu: &usize| {
            [(); THREADS].map(|()| scope.spawn(move || or_exit(cpu, switches(cpu, done))))
        };
        let threads: Vec<_> = cpus.iter().flat_map(switches).collect();
        let mut retried = 0;
        while retried < RETRIES && start.elapsed() < PATIENCE {
            thread::sleep(LOOK);
            retried = or_exit(0, retries()) - first;
        }
        done.store(true, Ordering::Relaxed);
        let mut series = Series::default();
        threads.into_iter().for_each(|thread| series.merge(&thread.join().expect("no panic")));
        Outcome { series, retries: retried }
    });
    host.preempt_often(false)?;
    place(u64::MAX)?;
    Ok(outcome)
}

/// Measures regions in which the thread yields its CPU.
fn switches(cpu: usize, done: &AtomicBool) -> Result<Series> {
    run_on(SELF, &[cpu])?;
    take_turns()?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&EQUAL.map(|(event, _)| event))?;
    let (mut series, mut pages) = (Series::default(), FreshPages::new()?);
    let body = Body::new(Does::Yield, YIELDS);
    while !done.load(Ordering::Relaxed) {
        let reading = measure_body(&session, &body, pages.take(2)?).context("cannot read")?;
        series.add(&EQUAL, &reading, body.executed());
    }
    Ok(series)
}
