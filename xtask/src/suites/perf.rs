// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Linux's perf in the guest, whose hardware events the module counts.

use std::time::Duration;

use anyhow::Result;

use crate::artefacts::rootfs;
use crate::machine::Spec;
use crate::suites::report::{Report, Volume};
use crate::suites::{perf_test, pmu, stat, tenants};

/// Iterations of a loop that takes a while.
const LONG: u32 = 50_000_000;

/// One boot; in the long tier one more, with a PVH tenant, and two for perf's own tests.
pub fn run(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("pv", ["/work/perf", "here"])?;
    spec.topology.cpu.push_str(",pmu-tally=on");
    spec.files.extend([rootfs::perf()?, rootfs::clients()?].map(|tree| (tree, "/".into())));
    for (iterations, name) in [(pmu::ITERATIONS, "loop"), (LONG, "long")] {
        spec.files.push((pmu::known(iterations)?, format!("/work/{name}")));
    }
    spec.files.push((stat::alone()?, "/work/alone".into()));
    // perf starts dozens of times, which takes minutes where the machine is busy.
    spec.timeout = Duration::from_secs(900);
    report.program(spec, "perf")?;
    if report.volume == Volume::Long {
        pvh(report)?;
        perf_test::run(report)?;
    }
    Ok(())
}

/// The same in a PVH tenant, without perf's tools.
fn pvh(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("pvh", ["/work/perf", "pvh"])?.driver("1")?;
    tenants::add_tenant(&mut spec, "perf", &[])?;
    spec.timeout = Duration::from_secs(900);
    report.program(spec, "perf")
}
