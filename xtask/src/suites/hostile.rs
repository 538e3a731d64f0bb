// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Users who mean harm.

use anyhow::Result;

use crate::machine::Spec;
use crate::suites::report::Report;

/// What they may, what they keep of other programs, what tracers ask, and what ends with them.
pub fn run(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("pv", ["/work/hostile"])?;
    spec.timeout *= report.volume.pick(3, 4);
    report.program(spec, "hostile")
}
