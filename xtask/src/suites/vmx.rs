// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Machines whose CPUs have VT-x, in the second emulator.

use std::time::Duration;

use anyhow::Result;

use crate::artefacts::{guest, kernel};
use crate::machine::Spec;
use crate::suites::report::{Report, console_says};
use crate::suites::{kvm, pmu};

/// How long it may take. It runs beside other suites, and gets what these leave of the CPUs.
const BESIDE: Duration = Duration::from_secs(2700);

/// The driver on VT-x in a few minutes: a guest of KVM with two vCPUs on one CPU.
pub fn brief(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("vmx-kvm", ["/work/tenants", "kvm-brief"])?;
    let kernel = kernel::kernel()?;
    spec.module = false;
    for (module, name) in [
        (guest::module(&kernel, spec.purpose())?, "perfctr.ko"),
        (guest::test_modules(&kernel)?.join("peek.ko"), "peek.ko"),
    ] {
        spec.files.push((module, format!("/usr/lib/perfctr/{name}")));
    }
    spec.topology.cpus = 1;
    spec.vcpus(2)?;
    spec.timeout = BESIDE;
    report.program(spec, "tenants")
}

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
