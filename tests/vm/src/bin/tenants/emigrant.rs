// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs in the control domains of three hosts. A tenant is saved on one, and restored on the
//! others, of which one has other counters and one has no driver.

use std::process::ExitCode;
use std::thread::sleep;

use anyhow::{Context, Result};
use serde_json::json;
use shared_abi::hypercall::HOOK_LOAD;
use vm_tests::tally::{Tally, equal};
use vm_tests::toolstack::{self, Tenant, Tsc};
use vm_tests::xen::Xen;

use crate::control::{FORBIDDEN, Host, TIME_TO_COUNT, VCPUS, Why, begins, expect_refusal};

const NAME: &str = "emigrant";

/// The host's counters are not those of the host where the tenant's module was loaded.
const OTHERS: Why = Why {
    errno: libc::ESTALE,
    names: ["ESTALE", "Stale file handle"],
    answer: "this host has other counters than the one before",
};

/// The host has a hypervisor that does not know the driver's hypercalls.
const WITHOUT_DRIVER: Why = Why {
    errno: libc::ENOSYS,
    names: ["ENOSYS", "Function not implemented"],
    answer: "this hypervisor has no perfctr driver",
};

/// Makes a tenant count, and saves it to this file in the middle of counting.
pub fn leaves(file: &str) -> Result<ExitCode> {
    let host = Host::open(true)?;
    let mut tally = Tally::default();
    let mut tenant = Tenant::create(NAME, VCPUS, Tsc::Native, "emigrate")?;
    host.invite(&tenant)?;
    begins(&mut tenant)?;
    sleep(TIME_TO_COUNT);
    // If a reading had been refused, the tenant would report it.
    tally.check("a tenant counts before it is saved", equal(tenant.is_silent(), true));
    tenant.save(file)?;
    Ok(tally.finish())
}

/// Restores the tenant on this host, which has other counters. It counts nothing until its module
/// is loaded anew, and then counts with this host's counters.
pub fn arrives(file: &str) -> Result<ExitCode> {
    // This domain does not count here.
    let xen = Xen::open().context("this is not Xen's control domain")?;
    toolstack::start()?;
    let mut tally = Tally::default();
    // The tenant may load an empty configuration, which writes no register.
    let writes = || Ok::<_, anyhow::Error>(xen.stats()?.hook[HOOK_LOAD].msr_writes);
    let before = writes()?;
    let mut tenant = Tenant::restore(NAME, file)?;
    tenant.unpause()?;
    expect_refusal(
        &mut tally,
        "a tenant that is restored where counters are others",
        &mut tenant,
        &OTHERS,
    )?;
    let name = "a tenant that is restored where counters are others counts nothing there";
    tally.check(name, equal(writes()?, before));
    tenant.send(&json!("again"))?;
    begins(&mut tenant)?;
    sleep(TIME_TO_COUNT);
    xen.allow(tenant.domain, false)?;
    let whose = "a tenant that has loaded its module anew where counters are others";
    expect_refusal(&mut tally, whose, &mut tenant, &FORBIDDEN)?;
    tenant.destroy()?;
    Ok(tally.finish())
}

/// Restores the tenant on this host, which has no driver. Its threads were saved in the middle of
/// their reads, and RDPMC faults here. They have to get the error all the same: a fault that nobody
/// handles would end the tenant's first program, and so its kernel.
pub fn strands(file: &str) -> Result<ExitCode> {
    toolstack::start()?;
    let mut tally = Tally::default();
    let mut tenant = Tenant::restore(NAME, file)?;
    tenant.unpause()?;
    let whose = "a tenant that is restored where there is no driver";
    expect_refusal(&mut tally, whose, &mut tenant, &WITHOUT_DRIVER)?;
    tenant.destroy()?;
    Ok(tally.finish())
}
