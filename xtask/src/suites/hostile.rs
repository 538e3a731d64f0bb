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
    let mut spec = Spec::new("pvh", ["/work/hostile", "control", "pvh"])?.driver("all")?;
    tenants::add_tenant(&mut spec, "hostile", &[(String::new(), rootfs::tenant()?)])?;
    spec.topology.memory_mib += 768;
    spec.timeout *= 8;
    report.program(spec, "hostile")
}
