// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what the command exports and shows live, together with Debian's Prometheus, which scrapes
//! it.

use anyhow::Result;

use crate::artefacts::rootfs;
use crate::machine::Spec;
use crate::suites::report::Report;

/// Boots one machine.
pub fn run(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("pv", ["/work/export"])?;
    spec.add_program("perfctr", "perfctr")?;
    spec.topology.memory_mib += 1_024;
    spec.files.push((rootfs::prometheus()?, "/".into()));
    report.program(spec, "export")
}
