// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests guests of KVM with the driver inside, on a host that moves their vCPUs and has other work.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::artefacts::{guest, kernel};
use crate::machine::{self, Outcome, Spec};
use crate::suites::driver::refuses;
use crate::suites::report::{Report, Volume, all, console_lacks, console_says};
use crate::tools::cache;

/// The tests' module that makes hypercalls for a program.
const MAKES_HYPERCALLS: &str = "call.ko";

/// Linux' message when no handler claims an NMI.
pub const UNKNOWN_NMI: &str = "NMI received for unknown reason";

/// Tests two guests beside the host's own perf. The long tier also tests what a guest counts and
/// samples while its vCPUs are moved, and hosts that let nobody count.
pub fn run(report: &mut Report) -> Result<()> {
    two_guests(report)?;
    if report.volume == Volume::Usual {
        return Ok(());
    }
    let mut pressed = demo("kvm")?;
    pressed.press_nmi = true;
    let outcome = report.program_outcome(pressed, "tenants")?;
    report.test("NMIs that are not the PMU's reach the host while a guest counts", || {
        every_other_nmi_is_reported(&outcome)
    });
    report.test("where the module is not loaded the library says so", || {
        let mut spec = Spec::new("kvm", ["/work/perfctr", "info"])?;
        spec.module = false;
        spec.add_program("perfctr", "perfctr")?;
        let outcome = machine::run(&spec)?;
        let printed = String::from_utf8_lossy(&outcome.stdout);
        ensure!(printed.contains("paravirt: the kernel module is not loaded"), "{}", all(&outcome));
        Ok(())
    });
    report.test("a guest that nobody has allowed to count gets EPERM", || {
        let mut spec = Spec::new("kvm", ["true"])?;
        spec.host()?.allow = false;
        refuses(&spec, "EPERM", "found KVM that does not let this domain count")
    });
    for (what, args, reason) in [
        ("without its option", "enable_pmu=0", "found KVM with perfctr off"),
        ("beside KVM's own virtual PMU", "perfctr=on", "perfctr: off: KVM's own virtual PMU is on"),
        (
            "with an option that it does not know",
            "enable_pmu=0 perfctr=on,fast",
            "perfctr: off: expected on|off[,",
        ),
    ] {
        report.test(&format!("the driver is off {what}"), || {
            let mut spec = Spec::new("kvm", ["true"])?;
            let host = spec.host()?;
            host.args = args.to_owned();
            host.allow = false;
            refuses(&spec, "ENODEV", reason)
        });
    }
    Ok(())
}

/// Demands that the host's kernel has reported each NMI that no counter had raised.
///
/// The run sends NMIs by the emulator's NMI button. A CPU remembers only one pending NMI, so a
/// press that coincides with a counter's interrupt arrives together with it. So this test counts
/// the NMIs that the kernel has received, and not the presses.
fn every_other_nmi_is_reported(outcome: &Outcome) -> Result<()> {
    let console = String::from_utf8_lossy(&fs::read(&outcome.console)?).into_owned();
    let reported = console.matches(UNKNOWN_NMI).count();
    let (received, raised) = nmis_in(&console).context("the host does not say what it received")?;
    let others = received.saturating_sub(raised);
    let presses = outcome.nmis;
    ensure!(
        others >= 5 && reported >= others,
        "{reported} NMIs are reported; {received} were received, counters have raised {raised}, \
         and the button was pressed {presses} times"
    );
    Ok(())
}

/// Returns how many NMIs the host says that it has received, and how many of them its counters have
/// raised.
fn nmis_in(console: &str) -> Option<(usize, usize)> {
    let (_, printed) = console.split_once("the host's NMIs: ")?;
    let (received, printed) = printed.split_once(" received, ")?;
    let (raised, _) = printed.split_once(" raised by counters")?;
    Some((received.parse().ok()?, raised.parse().ok()?))
}

/// Tests a guest that counts and samples while it is saved, restored and migrated.
pub fn moved(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new(report.topology, ["/work/tenants", "kvm-roam"])?;
    // The guest is in memory twice while it is migrated.
    spec.topology.memory_mib += spec.host()?.memory_mib + 512;
    spec.timeout = Duration::from_secs(1200);
    report.program(spec, "tenants")
}

/// The host kernel's message when a guest takes the counters from perf for the first time.
pub const COUNTERS_TAKEN: &str = "virtual machines count, so perf gets EBUSY";
/// Its messages when guests take the counters and give them back, and when they cannot have them.
const MESSAGES: [&str; 4] = [
    COUNTERS_TAKEN,
    "the hard-lockup watchdog is stopped while virtual machines count",
    "the hard-lockup watchdog runs again",
    "no virtual machine can count: perf on this host has the counters",
];

/// Tests two guests on the same physical CPUs, of which one may not count at first, on a host that
/// uses perf and its watchdog when no guest counts.
fn two_guests(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("kvm", ["/work/tenants", "kvm-side"])?;
    load_later(&mut spec, MAKES_HYPERCALLS)?;
    spec.add_program("perfctr", "perfctr")?;
    spec.topology.memory_mib += spec.host()?.memory_mib + 512;
    spec.timeout = Duration::from_secs(900);
    spec.host()?.linux.push_str(" nmi_watchdog=1");
    let outcome = report.program_outcome(spec, "tenants")?;
    report.test("the host's kernel says who has the counters", || {
        MESSAGES.iter().try_for_each(|message| console_says(&outcome, message))
    });
    Ok(())
}

/// Leaves it to the guest's program to load the module, and this one of the tests' modules.
pub fn load_later(spec: &mut Spec, of_tests: &str) -> Result<()> {
    let kernel = kernel::kernel()?;
    spec.module = false;
    for (module, name) in [
        (guest::module(&kernel, spec.purpose())?, "perfctr.ko"),
        (guest::test_modules(&kernel)?.join(of_tests), of_tests),
    ] {
        spec.files.push((module, format!("/usr/lib/perfctr/{name}")));
    }
    Ok(())
}

/// Tests a guest whose kernel starts another one (kexec) while it counts.
pub fn successor(report: &mut Report) -> Result<()> {
    let mut next = Spec::new(report.topology, ["/work/tenants", "kvm-next"])?;
    next.add_program("vm-tests", "tenants")?;
    load_later(&mut next, MAKES_HYPERCALLS)?;
    let initramfs = cache::scratch("successor")?;
    fs::write(&initramfs, machine::initramfs(&next)?)?;
    let mut spec = Spec::new(report.topology, ["/work/tenants", "kvm-first"])?;
    spec.files.push((kernel::kernel()?.boot_image, "/work/next/vmlinuz".into()));
    spec.files.push((initramfs, "/work/next/initrd".into()));
    spec.timeout = Duration::from_secs(900);
    let outcome = report.program_outcome(spec, "tenants")?;
    report.test("a kernel that starts another one knows each NMI that comes until then", || {
        console_lacks(&outcome, UNKNOWN_NMI)
    });
    Ok(())
}

/// Describes the demo's run: a guest that counts, samples, compares with the truth, and leaves a
/// report.
pub fn demo(topology: &str) -> Result<Spec> {
    let command = ["/work/tenants", "kvm-demo", "--report", "/out/tenants.json"];
    let mut spec = Spec::new(topology, command)?;
    spec.add_program("vm-tests", "tenants")?;
    spec.timeout = Duration::from_secs(900);
    Ok(spec)
}
