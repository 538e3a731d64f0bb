// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Two domains: Debian's own tools create a tenant beside the control domain, with the same kernel.

use std::fs;
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::artefacts::kernel::{self, Kernel};
use crate::artefacts::rustobj::Purpose;
use crate::artefacts::{guest, rootfs};
use crate::machine::Spec;
use crate::suites::report::Report;
use crate::tools::cache;
use crate::tools::cpio::Archive;

/// Two boots, each with a storm in the tenant: with the driver's usual rate, and with one so low
/// that emulation is fast enough to exceed it.
pub fn run(report: &mut Report) -> Result<()> {
    report.program(spec("pv", "cost,rate=50", &["/work/tenants", "control", "50"])?, "tenants")?;
    let all = ["/work/tenants", "control", "--all", "0"];
    report.program(spec("pv", "cost,all,rate=0", &all)?, "tenants")
}

/// An AMD CPU: the control domain counts beside a PVH tenant, also with a PV one; and a 32-bit
/// tenant asks whether it can. One boot.
pub fn amd(report: &mut Report) -> Result<()> {
    let mut spec = spec("pv-amd", "all", &["/work/tenants", "pvh"])?;
    // Two tenants at once.
    spec.topology.memory_mib += 512;
    spec.files.push((guest::kernel_32()?, "/work/guest32".into()));
    report.program(spec, "tenants")
}

/// A topology, the driver's options, and the command.
fn spec(topology: &str, driver: &str, command: &[&str]) -> Result<Spec> {
    let mut spec = Spec::new(topology, command)?.driver(driver)?;
    // That leaves room for a tenant.
    spec.hypervisor()?.add("dom0_mem=1024M,max:1024M");
    spec.timeout = Duration::from_secs(600);
    let kernel = kernel::kernel()?;
    spec.files.push((rootfs::toolstack()?, "/".into()));
    spec.files.push((kernel.image.clone(), "/work/vmlinux".into()));
    spec.files.push((initramfs(&kernel)?, "/work/tenant.cpio".into()));
    Ok(spec)
}

/// All that the tenant has: one program, and the module.
fn initramfs(kernel: &Kernel) -> Result<PathBuf> {
    let path = cache::root()?.join("work/tenant.cpio");
    let mut archive = Archive::new(BufWriter::new(fs::File::create(&path)?));
    let program = guest::programs("vm-tests")?.join("tenants");
    archive.file("init", 0o755, &fs::read(program)?)?;
    archive.file(
        "lib/perfctr/perfctr.ko",
        0o644,
        &fs::read(guest::module(kernel, Purpose::Use)?)?,
    )?;
    archive.file("lib/perfctr/peek.ko", 0o644, &fs::read(guest::peek_module(kernel)?)?)?;
    archive.finish()?;
    Ok(path)
}
