// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what hostile users can do.

use anyhow::Result;

use crate::machine::Spec;
use crate::suites::report::Report;

/// Tests what hostile users may do, what they can keep of other programs, what tracers may ask for,
/// and what ends with them.
pub fn run(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("pv", ["/work/hostile"])?;
    spec.timeout *= report.volume.pick(3, 4);
    report.program(spec, "hostile")
}
