// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests guests of KVM with the driver inside, on a host that moves their vCPUs and has other work.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::artefacts::{guest, kernel};
use crate::machine::{self, Spec};
use crate::suites::driver::refuses;
use crate::suites::report::{Report, all, console_says};
use crate::tools::cache;

/// Tests what a guest counts and samples, and hosts that let nobody count.
pub fn run(report: &mut Report) -> Result<()> {
    let mut pressed = demo()?;
    pressed.press_nmi = true;
    let outcome = report.program_outcome(pressed, "tenants")?;
    report.test("NMIs that are not the PMU's reach the host while a guest counts", || {
        let console = String::from_utf8_lossy(&fs::read(&outcome.console)?).into_owned();
        let told = console.matches("NMI received for unknown reason").count();
        // The kernel takes an NMI that comes together with the PMU's for the PMU's.
        let missed = outcome.nmis.saturating_sub(told);
        ensure!(outcome.nmis >= 5 && missed <= 1, "{told} of {} NMIs are told of", outcome.nmis);
        Ok(())
    });
    report.test("perf on the host is told that others have the counters", || {
        console_says(&outcome, "the host's perf: EBUSY")
    });
    report.test("where the module is not loaded the library says so", || {
        let mut spec = Spec::new("kvm", ["/work/perfctr", "info"])?;
        spec.module = false;
        spec.add_program("cli", "perfctr")?;
        let outcome = machine::run(&spec)?;
        let said = String::from_utf8_lossy(&outcome.stdout);
        ensure!(said.contains("paravirt: the kernel module is not loaded"), "{}", all(&outcome));
        Ok(())
    });
    report.test("a guest that nobody has allowed to count gets EPERM", || {
        let mut spec = Spec::new("kvm", ["true"])?;
        spec.host()?.allow = false;
        refuses(&spec, "EPERM", "found KVM that does not let this domain count")
    });
    for (what, linux, args, reason) in [
        ("without its option", "", "enable_pmu=0", "found KVM with perfctr off"),
        (
            "beside the host's NMI watchdog",
            " nmi_watchdog=1",
            "enable_pmu=0 perfctr=on",
            "perfctr: off: perf, perhaps its NMI watchdog, has counters",
        ),
        (
            "beside KVM's own virtual PMU",
            "",
            "perfctr=on",
            "perfctr: off: KVM's own virtual PMU is on",
        ),
        (
            "with an option that it does not know",
            "",
            "enable_pmu=0 perfctr=on,fast",
            "perfctr: off: expected on|off[,all]",
        ),
    ] {
        report.test(&format!("the driver is off {what}"), || {
            let mut spec = Spec::new("kvm", ["true"])?;
            let host = spec.host()?;
            host.linux.push_str(linux);
            host.args = args.to_owned();
            host.allow = false;
            refuses(&spec, "ENODEV", reason)
        });
    }
    Ok(())
}

/// Tests a guest that counts and samples while it is saved, restored and migrated.
pub fn moved(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("kvm", ["/work/tenants", "kvm-roam"])?;
    // The guest is in memory twice while it is migrated.
    spec.topology.memory_mib += spec.host()?.memory_mib + 512;
    spec.timeout = Duration::from_secs(900);
    report.program(spec, "tenants")
}

/// Tests two guests on the same physical CPUs, of which one may not count at first.
pub fn beside(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("kvm", ["/work/tenants", "kvm-side"])?;
    let module = guest::module(&kernel::kernel()?, spec.purpose())?;
    spec.module = false;
    spec.files.push((module, "/usr/lib/perfctr/perfctr.ko".into()));
    spec.topology.memory_mib += spec.host()?.memory_mib + 512;
    spec.timeout = Duration::from_secs(900);
    report.program(spec, "tenants")
}

/// Tests a guest whose kernel starts another one (kexec) while it counts.
pub fn successor(report: &mut Report) -> Result<()> {
    let kernel = kernel::kernel()?;
    let mut next = Spec::new("kvm", ["/work/tenants", "kvm-next"])?;
    next.module = false;
    next.add_program("vm-tests", "tenants")?;
    for (module, name) in [
        (guest::module(&kernel, next.purpose())?, "perfctr.ko"),
        (guest::test_modules(&kernel)?.join("call.ko"), "call.ko"),
    ] {
        next.files.push((module, format!("/usr/lib/perfctr/{name}")));
    }
    let initramfs = cache::root()?.join("work/successor");
    fs::write(&initramfs, machine::initramfs(&next)?)?;
    let mut spec = Spec::new("kvm", ["/work/tenants", "kvm-first"])?;
    spec.files.push((kernel.boot_image, "/work/next/vmlinuz".into()));
    spec.files.push((initramfs, "/work/next/initrd".into()));
    spec.timeout = Duration::from_secs(900);
    report.program(spec, "tenants")
}

/// Describes the demo's run: a guest that counts, samples, compares with the truth, and leaves a
/// report.
pub fn demo() -> Result<Spec> {
    let command = ["/work/tenants", "kvm-demo", "--report", "/out/tenants.json"];
    let mut spec = Spec::new("kvm", command)?;
    spec.add_program("vm-tests", "tenants")?;
    spec.timeout = Duration::from_secs(900);
    Ok(spec)
}
