// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Machines whose CPUs have VT-x, in the second emulator.

use anyhow::{Result, ensure};

use crate::machine::{BESIDE, Spec};
use crate::suites::report::{Report, console_says};
use crate::suites::{kvm, pmu, programs, tenants};

/// Tests the driver on VT-x in a few minutes: a guest of KVM with two vCPUs on one CPU.
pub fn brief(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("vmx-kvm", ["/work/tenants", "kvm-brief"])?;
    kvm::load_later(&mut spec, "peek.ko")?;
    spec.topology.cpus = 1;
    spec.vcpus(2)?;
    spec.timeout = BESIDE;
    report.program(spec, "tenants")
}

/// Tests the second emulator's own PMU, on the bare machine: it counts the same as single-stepping,
/// and the same as the first emulator's PMU.
pub fn pmu(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("vmx-native", ["/work/pmu-check"])?.stock("");
    spec.files.push((pmu::check_program()?, "/work/pmu-check".into()));
    report.succeeds(&spec, "every count of the second emulator is exact").map(drop)
}

/// A program that does nothing, and so executes only the dynamic loader.
const LOADER: &str = "/usr/bin/true";
/// The second emulator's CPU that has the same extensions as the first one's, by which the C
/// library chooses its functions.
const SAME_CPU: &str = "corei5_lynnfield_750";

/// Tests that whole programs, counted by Linux' perf on the bare machine, take the same
/// instructions and branches in both emulators. The dynamic loader may find different facts about
/// the CPU. That difference is the same for each program.
pub fn emulators(report: &mut Report) -> Result<()> {
    let commands = format!("{LOADER}\n{}", programs::COMMANDS);
    let dir = programs::files(&commands)?;
    let mut second = programs::machine("vmx-native", "", &dir)?;
    second.topology.cpu = SAME_CPU.to_owned();
    second.timeout = BESIDE;
    let first = programs::counted(programs::machine("native", "", &dir)?)?;
    let second = programs::counted(second)?;
    let deviation = |command: &str| -> Result<[i64; 2]> {
        let ([first], [second]) = (&first[command][..], &second[command][..]) else {
            anyhow::bail!("expected one count, found {:?}, {:?}", first[command], second[command]);
        };
        Ok([0, 1].map(|event| second[event].wrapping_sub(first[event]).cast_signed()))
    };
    let loader = deviation(LOADER)?;
    report
        .note(format!("the loader takes {loader:?} instructions and branches more in the second"));
    for command in programs::COMMANDS.lines() {
        report.test(&format!("{} is the same in both emulators", programs::name(command)), || {
            let found = deviation(command)?;
            ensure!(found == loader, "expected a deviation of {loader:?}, found {found:?}");
            Ok(())
        });
    }
    Ok(())
}

/// Tests that a guest of KVM on VT-x counts and samples, with more vCPUs than there are CPUs.
pub fn kvm(report: &mut Report) -> Result<()> {
    let outcome = report.program_outcome(kvm::demo(report.topology)?, "tenants")?;
    report.test("the host's kernel says that guests have the counters", || {
        console_says(&outcome, kvm::COUNTERS_TAKEN)
    });
    Ok(())
}

/// Tests that PVH tenants of Xen on VT-x count and sample beside the control domain. Also tests
/// refusals: a tenant that may not count cannot read counters, and a tenant that may count cannot
/// name a frame as its page that is not its own memory.
pub fn xen(report: &mut Report) -> Result<()> {
    report.program(tenants::beside_pvh(report.topology)?, "tenants")?;
    report.program(tenants::demo(report.topology, false, None)?, "tenants")
}
