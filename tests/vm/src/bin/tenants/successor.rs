// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A guest of KVM that starts another kernel while it counts.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use nix::errno::Errno;
use shared_abi::hypercall::OP_UNREGISTER;
use vm_tests::host::Host as _;
use vm_tests::kvm::Kvm;
use vm_tests::raw::Argument;
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::{kexec, module};

use crate::control::exact;
use crate::counting::{APART, Domain};

/// The next kernel, and what is in its memory at first.
const KERNEL: &str = "/work/next/vmlinuz";
const INITRAMFS: &str = "/work/next/initrd";
/// How long threads count before.
const BEFORE: Duration = Duration::from_secs(2);
/// Regions that each thread measures afterwards.
const REGIONS: u64 = 200;

/// The first kernel's part: all its vCPUs have pages, and threads that count, when it ends.
pub fn first() -> Result<ExitCode> {
    let domain = Domain::new(APART[0])?;
    thread::spawn(|| {
        thread::sleep(BEFORE);
        let Err(why) = kexec::start(KERNEL, INITRAMFS);
        eprintln!("{why:#}");
        // The other threads would go on.
        std::process::exit(1);
    });
    domain.count(1, |_| true)?;
    bail!("it goes on")
}

/// The next one's, whose memory the first one's pages are.
pub fn next() -> Result<ExitCode> {
    let (kvm, mut tally) = (Kvm::open()?, Tally::default());
    for cpu in cpus()? {
        run_on(SELF, &[cpu])?;
        let left = kvm.perfctr_op(OP_UNREGISTER, Argument::Null, 0);
        let name = format!("no page of the kernel before is registered with vCPU {cpu}");
        tally.check(&name, equal(left, Err(Errno::ENXIO)));
    }
    module::load()?;
    let seen = Domain::new(APART[0])?.count(2, |measured| measured < REGIONS)?;
    let whose = "a guest of KVM whose kernel was started by another one";
    println!("{whose}: {seen:#}");
    exact(&mut tally, whose, &seen);
    Ok(tally.finish())
}
