// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Linux's perf in the guest, whose hardware events the module counts.

use anyhow::Result;

use crate::artefacts::rootfs;
use crate::machine::Spec;
use crate::suites::report::Report;
use crate::suites::{pmu, stat};

/// One boot.
pub fn run(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("pv", ["/work/perf"])?;
    spec.files.push((rootfs::perf()?, "/".into()));
    spec.files.push((pmu::known()?, "/work/loop".into()));
    spec.files.push((stat::alone()?, "/work/alone".into()));
    report.program(spec, "perf")
}
