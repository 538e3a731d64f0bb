// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what hostile users can do.

use anyhow::Result;

use crate::artefacts::rootfs;
use crate::machine::Spec;
use crate::suites::report::Report;
use crate::suites::tenants;

/// The newest version of Linux. From 7.0 on, modules cannot change CR4 in PVH, HVM and KVM guests,
/// so that the module gives programs the right to execute RDPMC in another way.
const NEWEST: &str = "7.3";

/// Tests what hostile users may do, what they can learn about other programs, what tracers may ask
/// for, and what ends together with them.
pub fn run(report: &mut Report) -> Result<()> {
    in_guest(report, None)
}

/// Tests the same in guests that have the newest Linux. On Xen these are the control domain and a
/// PVH tenant.
pub fn newest(report: &mut Report) -> Result<()> {
    in_guest(report, Some(NEWEST))?;
    if report.topology == "pv" {
        in_tenant(report, "pvh", Some(NEWEST))?;
    }
    Ok(())
}

/// Boots one machine with this version of Linux, or the usual one.
fn in_guest(report: &mut Report, linux: Option<&str>) -> Result<()> {
    let mut spec = Spec::new(report.topology, ["/work/hostile"])?;
    if linux.is_some() {
        spec.linux = linux.map(str::to_owned);
    }
    spec.timeout *= report.volume.pick(3, 4);
    report.program(spec, "hostile")
}

/// Boots one machine, and tests the same in a PVH tenant.
pub fn pvh(report: &mut Report) -> Result<()> {
    in_tenant(report, "pvh", None)
}

/// Boots one machine, and tests the same in an HVM tenant.
pub fn hvm(report: &mut Report) -> Result<()> {
    in_tenant(report, "hvm", None)
}

/// Makes the tests in a tenant of this kind, which has this version of Linux or the usual one.
fn in_tenant(report: &mut Report, kind: &str, linux: Option<&str>) -> Result<()> {
    let command = ["/work/hostile", "control", kind];
    let further = [(String::new(), rootfs::tenant()?)];
    let spec = tenants::with_tenant_of(linux, kind, &command, "hostile", &further)?;
    let mut spec = spec.driver("all")?;
    spec.topology.memory_mib += 768;
    spec.timeout *= 2;
    report.program(spec, "hostile")
}
