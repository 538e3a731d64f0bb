// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Users who mean harm.

use anyhow::Result;

use crate::machine::Spec;
use crate::suites::report::Report;

/// What they may, what they keep of other programs, and what ends with them.
pub fn run(report: &mut Report) -> Result<()> {
    let checks = "policy,programs,signals,users,whole";
    report.program(Spec::new("pv", ["/work/hostile", "--only", checks])?, "hostile")
}
