// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs a list of tests in a tenant of Xen: first while its vCPUs are left alone, then while the
//! control domain moves them between physical CPUs, and then while it saves and restores the
//! tenant, and migrates it.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::disturb;
use crate::host::Host;
use crate::tally::{Tally, equal};
use crate::toolstack::{self, Tenant, Wanted, send};
use crate::xen::Xen;

/// Tests with their names.
#[derive(Clone, Copy, Debug)]
pub struct Tests<F: 'static> {
    /// The tests while vCPUs are left alone.
    pub at_rest: &'static [(&'static str, F)],
    /// The tests while vCPUs are moved between physical CPUs.
    pub moved: &'static [(&'static str, F)],
    /// The tests while the tenant is saved and restored, and migrated, by turns.
    pub saved: &'static [(&'static str, F)],
}

/// How long a tenant executes before it becomes another domain, and how often that happens during a
/// test.
const BETWEEN_DOMAINS: Duration = Duration::from_secs(2);
const DOMAINS: usize = 4;
/// The message of the control domain when the tenant may end such a test.
const ENOUGH: &str = "enough";

/// How vCPUs are moved.
#[derive(Clone, Copy, Debug)]
pub struct Moves {
    /// Between how many physical CPUs.
    pub pcpus: u32,
    /// The seed of their order.
    pub seed: u64,
    /// The number of switches of vCPUs that shows that they are moved.
    pub switches_min: u64,
}

impl<F> Tests<F> {
    /// Runs in the control domain: creates the tenant, and receives each test's result from it by
    /// `receive`.
    ///
    /// # Errors
    ///
    /// This is not the control domain, or the tenant cannot be created or moved, or is silent.
    pub fn control(
        &self,
        wanted: &Wanted<'_>,
        moves: Moves,
        receive: fn(&mut Tenant) -> Result<Value>,
    ) -> Result<ExitCode> {
        let xen = &Xen::open().context("this is not Xen's control domain")?;
        toolstack::start()?;
        let mut tenant = Tenant::create_wanted(wanted)?;
        let (domain, vcpus) = (tenant.domain, &Vec::from_iter(0..wanted.vcpus));
        xen.allow(domain, true)?;
        for &vcpu in vcpus {
            let vcpu = vcpu as u32;
            xen.set_affinity(domain, vcpu, 1 << (vcpu % moves.pcpus))?;
        }
        tenant.unpause()?;
        let reply = tenant.receive()?;
        ensure!(reply == "ready", "the tenant says {reply}");
        let mut tally = Tally::default();
        let receive_one =
            |tally: &mut Tally, tenant: &mut Tenant, test: &(&str, F)| -> Result<()> {
                let name = format!("in {} {}", wanted.kind.described(), test.0);
                tally.check(&name, equal(receive(tenant)?, Value::Null));
                Ok(())
            };
        self.at_rest.iter().try_for_each(|test| receive_one(&mut tally, &mut tenant, test))?;
        let (before, stop) = (xen.switches()?, &AtomicBool::new(false));
        thread::scope(|scope| {
            let Moves { pcpus, seed, .. } = moves;
            scope.spawn(move || disturb::domain(xen, domain, vcpus, pcpus, seed, stop));
            let heard =
                self.moved.iter().try_for_each(|test| receive_one(&mut tally, &mut tenant, test));
            stop.store(true, Ordering::Relaxed);
            heard
        })?;
        disturb::check(&mut tally, xen, before, moves.switches_min)?;
        for test in self.saved {
            replace(xen, &mut tenant)?;
            tenant.send(&json!(ENOUGH))?;
            receive_one(&mut tally, &mut tenant, test)?;
        }
        tenant.destroy()?;
        Ok(tally.finish())
    }

    /// Runs all tests in the tenant, each by `run`, and sends the control domain what
    /// [`control`](Self::control) receives: the error of each test, or null. Those of `saved` are
    /// repeated until the control domain has replaced the tenant often enough.
    pub fn run_in_tenant(&self, run: impl Fn(&F) -> Result<()>) {
        send(&json!("ready"));
        let report =
            |found: Result<()>| send(&json!(found.err().map(|error| format!("{error:#}"))));
        for (_, test) in self.at_rest.iter().chain(self.moved) {
            report(run(test));
        }
        for (_, test) in self.saved {
            let enough = thread::spawn(toolstack::receive);
            let mut found = run(test);
            while found.is_ok() && !enough.is_finished() {
                found = run(test);
            }
            let heard = enough.join().expect("no thread panics");
            report(found.and_then(|()| {
                let heard = heard?;
                ensure!(heard == ENOUGH, "the control domain says {heard}");
                Ok(())
            }));
        }
    }
}

/// Saves and restores the tenant, and migrates it, by turns: each time it becomes another domain.
fn replace(xen: &Xen, tenant: &mut Tenant) -> Result<()> {
    for number in 0..DOMAINS {
        thread::sleep(BETWEEN_DOMAINS);
        match number % 2 {
            0 => tenant.save_and_restore()?,
            _ => tenant.migrate(true)?,
        }
        xen.allow(tenant.domain, true)?;
        tenant.unpause()?;
    }
    Ok(())
}
