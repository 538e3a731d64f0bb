// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Shows what the functions of guests execute themselves, and what Xen executes for them.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::artefacts::rootfs;
use crate::machine::Spec;
use crate::suites::report::Report;
use crate::suites::tenants;
use crate::tools::cache;

/// Boots one machine, whose host samples itself while a PVH tenant receives packets, reads a disk,
/// and switches between processes, and prints the tables of functions.
pub fn run(report: &mut Report) -> Result<()> {
    let out = cache::scratch("causes-out")?;
    let mut spec = spec()?;
    spec.keep_out(&out)?;
    report.program(spec, "causes")?;
    let tables = out.join("tables.md");
    println!("{}", fs::read_to_string(&tables).with_context(|| tables.display().to_string())?);
    Ok(())
}

fn spec() -> Result<Spec> {
    let spec = Spec::new("pvh", ["/work/causes"])?.driver("profile,all")?;
    // So the host is sampled in time, however busy this machine is.
    let mut spec = spec.deterministic();
    spec.vcpus(1)?;
    spec.timeout = Duration::from_secs(1_800);
    spec.add_program("perfctr", "perfctr")?;
    let mut files: Vec<(String, PathBuf)> =
        [rootfs::tenant()?, rootfs::perf()?, rootfs::perf_in_tenant()?]
            .map(|tree| (String::new(), tree))
            .into();
    files.extend(tenants::add_network(&mut spec)?);
    files.push(tenants::add_disk(&mut spec)?);
    tenants::add_tenant(&mut spec, "causes", &files)?;
    // The control domain also holds the tenant's userland, and the disk.
    spec.hypervisor()?.add("dom0_mem=1536M,max:1536M");
    spec.topology.memory_mib += 1_024;
    Ok(spec)
}
