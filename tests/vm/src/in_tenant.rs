// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs a list of tests in a tenant of Xen: first while its vCPUs are left alone, and then while
//! the control domain moves them between physical CPUs.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::disturb;
use crate::host::Host;
use crate::tally::{Tally, equal};
use crate::toolstack::{self, Tenant, Wanted, say};
use crate::xen::Xen;

/// Tests with their names.
#[derive(Clone, Copy, Debug)]
pub struct Tests<F: 'static> {
    /// Those while vCPUs are left alone.
    pub at_rest: &'static [(&'static str, F)],
    /// Those while vCPUs are moved between physical CPUs.
    pub moved: &'static [(&'static str, F)],
}

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
    /// Runs in the control domain: creates the tenant, and receives from it what each test has
    /// found, by `hear`.
    ///
    /// # Errors
    ///
    /// This is not the control domain, or the tenant cannot be created or moved, or is silent.
    pub fn control(
        &self,
        wanted: &Wanted<'_>,
        moves: Moves,
        hear: fn(&mut Tenant) -> Result<Value>,
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
        let said = tenant.hear()?;
        ensure!(said == "ready", "the tenant says {said}");
        let mut tally = Tally::default();
        let mut hear = |tests: &[(&str, F)]| -> Result<()> {
            for (name, _) in tests {
                let name = format!("in {} {name}", wanted.kind.described());
                tally.check(&name, equal(hear(&mut tenant)?, Value::Null));
            }
            Ok(())
        };
        hear(self.at_rest)?;
        let (before, stop) = (xen.switches()?, &AtomicBool::new(false));
        thread::scope(|scope| {
            let Moves { pcpus, seed, .. } = moves;
            scope.spawn(move || disturb::domain(xen, domain, vcpus, pcpus, seed, stop));
            let heard = hear(self.moved);
            stop.store(true, Ordering::Relaxed);
            heard
        })?;
        disturb::check(&mut tally, xen, before, moves.switches_min)?;
        tenant.destroy()?;
        Ok(tally.finish())
    }

    /// Runs in the tenant: `run` makes each test, and the control domain is told its error.
    pub fn tell(&self, run: impl Fn(&F) -> Result<()>) {
        say(&json!("ready"));
        for (_, test) in self.at_rest.iter().chain(self.moved) {
            say(&json!(run(test).err().map(|error| format!("{error:#}"))));
        }
    }
}
