// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests a host whose security policy denies the PMU to tenants with one label (XSM, FLASK).

use std::process::ExitCode;

use anyhow::{Context, Result};
use vm_tests::raw::Refusal;
use vm_tests::tally::{Tally, equal};
use vm_tests::toolstack::{Kind, Tenant, Tsc, Wanted};

use crate::control::{Host, Past, refused, together};

/// A line of a tenant's configuration that gives it this label.
const LABEL: &str = "seclabel = \"system_u:system_r:isolated_domU_t\"";

/// Runs in the control domain. Only tenants that it allows may count.
pub fn control() -> Result<ExitCode> {
    let host = Host::open(false)?;
    let mut tally = Tally::default();
    for kind in [Kind::Pv, Kind::Pvh] {
        denied(&mut tally, &host, kind)?;
    }
    // The control domain may use the PMU itself, and may allow a tenant with the usual label.
    together(&mut tally, &host, Kind::Pv, Past::Unknown)?;
    Ok(tally.finish())
}

/// Tests a tenant with that label.
fn denied(tally: &mut Tally, host: &Host, kind: Kind) -> Result<()> {
    let usual = Wanted::usual(kind, "denied", 1, Tsc::Native, "count 1");
    let mut tenant = Tenant::create_wanted(&Wanted { config: LABEL, ..usual })?;
    let whose = format!("{} whose label denies it the PMU", kind.described());
    let outcome = equal(host.xen.allow(tenant.domain, true), Err(Refusal::EACCES));
    tally.check(&format!("{whose} cannot be allowed to count"), outcome);
    let domid = u32::from(tenant.domain);
    let listed = host.xen.domains()?.into_iter().find(|domain| domain.domid == domid);
    let allowed = listed.context("the tenant is not listed")?.enabled;
    tally.check(&format!("{whose} is listed as one that may not count"), equal(allowed, 0));
    let outcome = equal(host.xen.allow(tenant.domain, false), Ok(()));
    tally.check(&format!("{whose} can be forbidden to count"), outcome);
    tenant.unpause()?;
    refused(tally, &whose, &mut tenant, "EACCES")?;
    tenant.destroy()
}
