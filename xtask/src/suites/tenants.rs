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
    report.program(spec("cost,rate=50", &["50"])?, "tenants")?;
    report.program(spec("cost,all,rate=0", &["--all", "0"])?, "tenants")
}

/// The driver's options, and the program's.
fn spec(driver: &str, options: &[&str]) -> Result<Spec> {
    let command = [&["/work/tenants", "control"], options].concat();
    let mut spec = Spec::new("pv", command)?.driver(driver)?;
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
    archive.finish()?;
    Ok(path)
}
