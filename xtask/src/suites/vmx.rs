// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Machines whose CPUs have VT-x, in the second emulator.

use anyhow::Result;

use crate::machine::Spec;
use crate::suites::report::{Report, console_says};
use crate::suites::{kvm, pmu};

/// The second emulator's own PMU, on the bare machine: it counts what single-stepping counts, and
/// what the first emulator's counts.
pub fn pmu(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("vmx-native", ["/work/pmu-check"])?.stock("");
    spec.files.push((pmu::check_program()?, "/work/pmu-check".into()));
    report.succeeds(&spec, "every count of the second emulator is exact").map(drop)
}

/// A guest of KVM on VT-x counts and samples, with more vCPUs than there are CPUs.
pub fn kvm(report: &mut Report) -> Result<()> {
    let outcome = report.program_outcome(kvm::demo(report.topology)?, "tenants")?;
    report.test("the host's kernel says that guests have the counters", || {
        console_says(&outcome, kvm::COUNTERS_TAKEN)
    });
    Ok(())
}
