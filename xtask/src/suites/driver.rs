// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the module with and without a driver beneath it, with the programs that test both in the
//! guest.

use anyhow::{Result, ensure};

use crate::artefacts::xen::Flavour;
use crate::artefacts::{guest, kernel};
use crate::machine::{self, Failure, Spec, Status};
use crate::suites::report::{Report, Volume, all, console_says};

/// Checks that the module refuses to load where there is no driver, and that the console says why.
pub fn absent(report: &mut Report) -> Result<()> {
    report.test("the module refuses a machine without Xen", || {
        let spec = Spec::new("native", ["true"])?.beside();
        refuses(&spec, "ENODEV", "found neither Xen nor KVM")
    });
    report.test("the module refuses an unmodified Xen", || {
        let mut spec = Spec::new("pv", ["true"])?.beside();
        spec.hypervisor()?.flavour = Flavour::Stock;
        refuses(&spec, "ENOSYS", "found Xen without perfctr")
    });
    report.program(driver_off()?, "providers")?;
    if report.volume == Volume::Usual {
        return Ok(());
    }
    report.test("the driver refuses beside vpmu", || {
        let spec = with_xen_args("dom0_max_vcpus=4 perfctr vpmu=on", &["true"])?;
        refuses(&spec, "ENODEV", "perfctr: off: option vpmu is on")
    });
    report.test("the driver refuses beside the NMI watchdog", || {
        let spec = with_xen_args("dom0_max_vcpus=4 perfctr watchdog", &["true"])?;
        refuses(&spec, "ENODEV", "perfctr: off: the NMI watchdog uses a counter")
    });
    Ok(())
}

/// Describes a machine with the project's Xen, but without Xen's option `perfctr`. The program
/// tests there that the module refuses to load, and what the library and the command answer.
fn driver_off() -> Result<Spec> {
    let mut spec = with_xen_args("dom0_max_vcpus=4", &["/work/providers", "off"])?;
    spec.module = false;
    let module = guest::module(&kernel::kernel()?, spec.purpose())?;
    spec.files.push((module, "/usr/lib/perfctr/perfctr.ko".into()));
    spec.add_program("perfctr", "perfctr")?;
    Ok(spec)
}

/// Tests requests that must be refused.
pub fn refusals(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new(report.topology, ["/work/refusals"])?;
    if spec.topology.kvm.is_some() {
        let kernel = kernel::of(spec.linux.as_deref())?;
        let call = guest::test_modules(&kernel)?.join("call.ko");
        spec.files.push((call, "/usr/lib/perfctr/call.ko".into()));
    } else {
        // The command is refused in the same way as the hypercalls.
        let both = "/work/refusals; status=$?; /work/host-profile --refused && exit $status";
        spec.command = ["sh", "-c", both].map(Into::into).to_vec();
        spec.add_program("vm-tests", "host-profile")?;
        spec.add_program("perfctr", "perfctr")?;
    }
    report.program(spec, "refusals")
}

/// Tests how threads, processes, CPUs and the module begin and end, with one option of the
/// driver's.
pub fn lifecycle(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new(report.topology, ["/work/lifecycle"])?;
    match &mut spec.topology.kvm {
        Some(host) => host.args = "enable_pmu=0".to_owned(),
        None => spec.hypervisor()?.args = "dom0_max_vcpus=4 sched=credit".to_owned(),
    }
    let mut spec = spec.driver("rate=50")?;
    spec.timeout *= 2;
    let outcome = report.program_outcome(spec, "lifecycle")?;
    // The console of KVM's host is quiet. There the tests show that the driver is on.
    if report.topology == "pv" {
        report
            .test("perfctr=rate=50 alone means on", || console_says(&outcome, "perfctr: on, ABI"));
    }
    Ok(())
}

/// Tests the times of threads and vCPUs where the emulator's host takes no time away, and compares
/// counts of kernel mode with the emulator's.
pub fn clock(report: &mut Report) -> Result<()> {
    let both = "/work/clock test; clock=$?; /work/kernel && exit $clock";
    let mut spec = Spec::new(report.topology, ["sh", "-c", both])?;
    spec.timeout *= 3;
    let mut spec = spec.beside().deterministic();
    spec.keep_tally();
    spec.add_program("vm-tests", "kernel")?;
    report.program(spec, "clock")
}

/// Runs the demo's first half, which compares the readings of competing threads with the truth.
pub fn counting(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new(report.topology, ["/work/counting"])?.with_cost()?;
    spec.add_program("vm-tests", "counting")?;
    // The program runs until every event that it waits for has happened, which takes longer.
    spec.timeout *= 3;
    report.succeeds(&spec, "every reading of competing threads is exact").map(drop)
}

/// Describes a run with these arguments of Xen's in place of the profile's.
fn with_xen_args(args: &str, command: &[&str]) -> Result<Spec> {
    let mut spec = Spec::new("pv", command)?.beside();
    spec.hypervisor()?.args = args.to_owned();
    Ok(spec)
}

/// Tests that loading the module fails with `errno`, and that the console says `reason`.
pub fn refuses(spec: &Spec, errno: &str, reason: &str) -> Result<()> {
    let outcome = machine::run(spec)?;
    let expected = Status::Failed(Failure::Refused(errno.to_owned()));
    ensure!(outcome.status == expected, "expected {expected:?}: {}", all(&outcome));
    console_says(&outcome, reason)
}
