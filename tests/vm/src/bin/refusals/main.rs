// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that everything that must be refused is refused with the documented error number, and
//! changes nothing.
//!
//! Each request is made while the calling thread counts, and differs from a valid one in one point.
//! Afterwards the thread still counts exactly, and its vCPU's page says that nothing was loaded.

mod configs;
mod device;
mod hypercalls;

use std::process::ExitCode;

use anyhow::{Context, Result};
use shared_abi::sync::Ordering::Relaxed;
use vm_tests::host::host;
use vm_tests::raw::Refusal;
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::witness::Witness;

/// A thread that counts, on one vCPU, and the list of checks.
struct Bench {
    witness: Witness,
    vcpu: u32,
    tally: Tally,
}

impl Bench {
    fn new() -> Result<Self> {
        let cpu = *cpus()?.first().context("there is no CPU")?;
        run_on(SELF, &[cpu])?;
        Ok(Self { witness: Witness::new()?, vcpu: cpu as u32, tally: Tally::default() })
    }

    /// Returns how often something was loaded for the vCPU.
    fn generation(&self) -> Option<u64> {
        let page = self.witness.session().vcpu_page(self.vcpu)?;
        Some(page.generation.load(Relaxed))
    }

    /// Makes a request that must be refused with `errno`.
    fn refused(
        &mut self,
        name: &str,
        errno: Refusal,
        request: impl FnOnce() -> Result<(), Refusal>,
    ) {
        let before = self.generation();
        let outcome = equal(request(), Err(errno))
            .and_then(|()| equal(self.generation(), before))
            .and_then(|()| self.witness.unchanged());
        self.tally.check(&format!("{name} gives {errno:?}"), outcome);
    }
}

fn main() -> Result<ExitCode> {
    let host = &*host()?;
    let mut bench = Bench::new()?;
    hypercalls::refuse(&mut bench, host);
    device::refuse(&mut bench)?;
    let Bench { witness, mut tally, .. } = bench;
    // The module can only be unloaded when nothing counts.
    drop(witness);
    hypercalls::refuse_without_page(&mut tally, host)?;
    Ok(tally.finish())
}
