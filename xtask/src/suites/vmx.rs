// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Machines whose CPUs have VT-x, in the second emulator.

use anyhow::{Result, ensure};

use crate::machine::{self, Spec, Status};
use crate::suites::report::{Report, all, console_says};
use crate::suites::{kvm, pmu};

/// The second emulator's own PMU, on the bare machine: it counts what single-stepping counts, and
/// what the first emulator's counts.
pub fn pmu(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("vmx-native", ["/work/pmu-check"])?.stock("");
    spec.files.push((pmu::check_program()?, "/work/pmu-check".into()));
    let outcome = machine::run(&spec)?;
    report.test("every count of the second emulator is exact", || {
        ensure!(outcome.status == Status::Exited(0), "{}", all(&outcome));
        Ok(())
    });
    Ok(())
}

/// A guest of KVM on VT-x counts and samples, with more vCPUs than there are CPUs.
pub fn kvm(report: &mut Report) -> Result<()> {
    let outcome = report.program_outcome(kvm::demo(report.topology)?, "tenants")?;
    report.test("perf on the host is told that others have the counters", || {
        console_says(&outcome, "the host's perf: EBUSY")
    });
    Ok(())
}
