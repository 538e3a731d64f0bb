// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Linux's perf in the guest, whose hardware events the module counts.

use std::time::Duration;

use anyhow::Result;

use crate::artefacts::rootfs;
use crate::machine::Spec;
use crate::suites::report::{Report, Volume};
use crate::suites::{perf_test, pmu, stat};

/// Iterations of a loop that takes a while.
const LONG: u32 = 50_000_000;

/// One boot, and two more for perf's own tests in the long tier.
pub fn run(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("pv", ["/work/perf"])?;
    spec.topology.cpu.push_str(",pmu-tally=on");
    spec.files.extend([rootfs::perf()?, rootfs::clients()?].map(|tree| (tree, "/".into())));
    for (iterations, name) in [(pmu::ITERATIONS, "loop"), (LONG, "long")] {
        spec.files.push((pmu::known(iterations)?, format!("/work/{name}")));
    }
    spec.files.push((stat::alone()?, "/work/alone".into()));
    // perf starts dozens of times, which takes minutes where the machine is busy.
    spec.timeout = Duration::from_secs(900);
    report.program(spec, "perf")?;
    if report.volume == Volume::Long { perf_test::run(report) } else { Ok(()) }
}
