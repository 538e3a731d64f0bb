// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes the same checks in a tenant of Xen.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use vm_tests::tally::{Made, Tally};
use vm_tests::toolstack::{self, Kind, Tenant, Tsc, Wanted, live, mount_statistics, send};
use vm_tests::xen::Xen;
use vm_tests::{module, region};

use crate::{CHECKS, make};

const VCPUS: usize = 2;
const MEMORY_MIB: u32 = 512;

/// How often and how long the control domain waits for the checks of one kind.
const POLL: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(900);

/// Runs in the control domain: creates the tenant, and receives its results.
pub fn control(kind: Kind) -> Result<ExitCode> {
    let xen = &Xen::open().context("this is not Xen's control domain")?;
    toolstack::start()?;
    let usual = Wanted::usual(kind, "hostile", VCPUS, Tsc::Native, "tenant");
    let mut tenant = Tenant::create_wanted(&Wanted { memory_mib: MEMORY_MIB, ..usual })?;
    xen.allow(tenant.domain, true)?;
    tenant.unpause()?;
    let mut tally = Tally::default();
    for _ in CHECKS {
        let found = tenant.receive_within(POLL, PATIENCE)?;
        let made: Vec<Made> = serde_json::from_value(found.clone())
            .with_context(|| format!("expected checks, the tenant says {found}"))?;
        for (name, why) in made {
            tally.check(&format!("in {} {name}", kind.described()), why.map_or(Ok(()), Err));
        }
    }
    tenant.destroy()?;
    Ok(tally.finish())
}

/// Runs in the tenant, and ends with the domain.
pub fn run() -> Result<ExitCode> {
    live(|| {
        fs::create_dir_all("/run")?;
        mount_statistics()?;
        module::load()?;
        region::overhead()?;
        for &(name, check) in CHECKS {
            let mut tally = Tally::default();
            make(name, check, &mut tally)?;
            send(&json!(tally.made()));
        }
        Ok(())
    })
}
