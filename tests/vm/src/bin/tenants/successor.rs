// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests a guest of KVM, or an HVM tenant, that starts another kernel (kexec) while it counts.

use std::convert::Infallible;
use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use nix::errno::Errno;
use serde_json::json;
use shared_abi::hypercall::OP_UNREGISTER;
use vm_tests::host::Host as _;
use vm_tests::kvm::Kvm;
use vm_tests::raw::Argument;
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::toolstack::{Kind, Tsc, Wanted, send};
use vm_tests::{kexec, module};

use crate::control::{Host, VCPUS, begins, exact};
use crate::counting::{DISJOINT, Domain};
use crate::{frames, roam, samples};

/// The next kernel, and the first contents of its memory.
const KERNEL: &str = "/work/next/vmlinuz";
const INITRAMFS: &str = "/work/next/initrd";
/// A line of the tenant's configuration, which keeps its domain after it was switched off.
const KEPT: &str = "on_poweroff = \"preserve\"";
/// How long threads count before the other kernel is started.
const BEFORE: Duration = Duration::from_secs(2);
/// The number of regions that each thread measures afterwards.
const REGIONS: u64 = 200;

/// Starts the other kernel. Its first program, which is this one, has this role.
pub fn start(role: &str) -> Result<Infallible> {
    let own = fs::read_to_string("/proc/cmdline")?;
    let kernels = own.trim_end().split(" -- ").next().unwrap_or_default();
    kexec::start(KERNEL, INITRAMFS, &format!("{kernels} -- {role}"))
}

/// Runs in the control domain. Debian's tools can start another kernel in an HVM domain only.
pub fn control(tally: &mut Tally, host: &Host) -> Result<()> {
    let wanted = Wanted {
        starts_another: true,
        config: KEPT,
        ..Wanted::usual(Kind::Hvm, "starter", VCPUS, Tsc::Native, "roam")
    };
    let mut tenant = roam::counting(host, &wanted)?;
    tenant.send(&json!("kexec"))?;
    let none = equal(tenant.receive()?, json!(vec!["ENXIO"; VCPUS]));
    tally.check("an HVM tenant that starts another kernel leaves it no page", none);
    begins(&mut tenant)?;
    let whose = "an HVM tenant whose kernel was started by another one";
    exact(tally, whose, &tenant.receive()?);
    tenant.destroy()
}

/// Runs in the tenant after that, and ends with the domain.
pub fn tenant() -> Result<()> {
    module::load_file(frames::MODULE, c"")?;
    let (cpus, mut left) = (cpus()?, Vec::new());
    for &cpu in &cpus {
        run_on(SELF, &[cpu])?;
        left.push(frames::wrote("unregister", ""));
    }
    send(&json!(left));
    run_on(SELF, &cpus)?;
    module::load()?;
    let domain = Domain::new(DISJOINT[1])?;
    send(&json!("ready"));
    send(&domain.count(2, |measured| measured < REGIONS)?);
    Ok(())
}

/// Runs in the first kernel of a guest of KVM. All its vCPUs have pages, and threads that count and
/// sample, when it ends.
pub fn first() -> Result<ExitCode> {
    let constants = samples::prepare()?;
    let domain = Domain::new(DISJOINT[0])?;
    thread::spawn(|| {
        thread::sleep(BEFORE);
        let Err(why) = start("");
        eprintln!("{why:#}");
        // The process exits, since its other threads would continue.
        std::process::exit(1);
    });
    thread::scope(|scope| {
        let sampling = scope.spawn(|| samples::take(&constants, |_| true));
        println!("the first kernel: {}", domain.count(1, |_| true)?);
        println!("the first kernel: {}", sampling.join().expect("no thread panics")?);
        bail!("it goes on")
    })
}

/// Runs in the next kernel of a guest of KVM, in whose memory the first one's pages are.
pub fn next() -> Result<ExitCode> {
    let (kvm, mut tally) = (Kvm::open()?, Tally::default());
    let cpus = cpus()?;
    for &cpu in &cpus {
        run_on(SELF, &[cpu])?;
        let left = kvm.perfctr_op(OP_UNREGISTER, Argument::Null, 0);
        let name = format!("no page of the kernel before is registered with vCPU {cpu}");
        tally.check(&name, equal(left, Err(Errno::ENXIO)));
    }
    run_on(SELF, &cpus)?;
    module::load()?;
    let seen = Domain::new(DISJOINT[0])?.count(2, |measured| measured < REGIONS)?;
    let whose = "a guest of KVM whose kernel was started by another one";
    println!("{whose}: {seen:#}");
    exact(&mut tally, whose, &seen);
    Ok(tally.finish())
}
