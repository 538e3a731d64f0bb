// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what hostile users can do.

use anyhow::Result;

use crate::artefacts::rootfs;
use crate::machine::Spec;
use crate::suites::report::Report;
use crate::suites::tenants;

/// Tests what hostile users may do, what they can learn about other programs, what tracers may ask
/// for, and what ends together with them.
pub fn run(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new(report.topology, ["/work/hostile"])?;
    spec.timeout *= report.volume.pick(3, 4);
    report.program(spec, "hostile")
}

/// Boots one machine, and tests the same in a PVH tenant.
pub fn pvh(report: &mut Report) -> Result<()> {
    in_tenant(report, "pvh")
}

/// Boots one machine, and tests the same in an HVM tenant.
pub fn hvm(report: &mut Report) -> Result<()> {
    in_tenant(report, "hvm")
}

/// Makes the tests in a tenant of this kind.
fn in_tenant(report: &mut Report, kind: &str) -> Result<()> {
    let command = ["/work/hostile", "control", kind];
    let further = [(String::new(), rootfs::tenant()?)];
    let mut spec = tenants::with_tenant(kind, &command, "hostile", &further)?.driver("all")?;
    spec.topology.memory_mib += 768;
    spec.timeout *= 2;
    report.program(spec, "hostile")
}
