// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that the host can forbid a domain to count while its threads count and never call the
//! kernel.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vm_tests::host::Host;
use vm_tests::stats::{threads, until_threads};
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::witness::Witness;

use crate::ends::{elsewhere, exact};

/// How long it may take until every reader has begun.
const PATIENCE: Duration = Duration::from_secs(60);

/// Checks that no thread reads numbers any more when the hypercall has returned, whichever vCPU it
/// executes on.
pub fn forbidden_at_once(rounds: u32, host: &dyn Host) -> Result<()> {
    let before = threads()?;
    for _ in 0..rounds {
        let errors = forbid_while_reading(host);
        host.allow(true)?;
        for error in errors? {
            // The page gives the reason, or the kernel, which is asked if the page cannot tell.
            let is_named = error.contains("EPERM") || error.contains("Operation not permitted");
            ensure!(is_named, "a thread gets the error {error}");
        }
        elsewhere(|| exact(&Witness::new()?)).context("after the domain is allowed again")?;
    }
    until_threads(before)
}

/// Forbids this domain while a thread reads on each vCPU but one. Returns the errors that these
/// threads get.
fn forbid_while_reading(host: &dyn Host) -> Result<Vec<String>> {
    let cpus = cpus()?;
    let (own, others) = cpus.split_first().context("there is no CPU")?;
    let (begun, forbidden) = (&AtomicUsize::new(0), &AtomicBool::new(false));
    thread::scope(|scope| {
        let readers: Vec<_> = others
            .iter()
            .map(|&cpu| scope.spawn(move || read_until_refused(cpu, begun, forbidden)))
            .collect();
        run_on(SELF, &[*own])?;
        let start = Instant::now();
        while begun.load(SeqCst) < others.len() && start.elapsed() < PATIENCE {
            thread::yield_now();
        }
        let began = begun.load(SeqCst);
        // This ends all readers, even those that have not begun.
        let done = host.allow(false);
        forbidden.store(true, SeqCst);
        let errors = readers.into_iter().map(|reader| reader.join().expect("no thread panics"));
        let errors = errors.collect();
        run_on(SELF, &cpus)?;
        done?;
        ensure!(began == others.len(), "{began} of {} have begun to read", others.len());
        errors
    })
}

/// Reads again and again. Returns the error that ends it.
fn read_until_refused(cpu: usize, begun: &AtomicUsize, forbidden: &AtomicBool) -> Result<String> {
    run_on(SELF, &[cpu])?;
    let witness = Witness::new();
    begun.fetch_add(1, SeqCst);
    let witness = witness?;
    loop {
        let too_late = forbidden.load(SeqCst);
        match witness.session().read::<2>() {
            Ok(reading) if too_late => bail!("it still reads {reading:?}"),
            Ok(_) => (),
            Err(error) => return Ok(format!("{error:?}")),
        }
    }
}
