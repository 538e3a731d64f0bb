// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the branches that the driver records for guests.

use std::time::Duration;

use anyhow::Result;

use crate::artefacts::{guest, rootfs};
use crate::machine::Spec;
use crate::suites::report::Report;
use crate::suites::tenants;
use crate::tools::sh;

/// Boots a machine whose processors record branches as Intel's do, and one with AMD's. Each time
/// the control domain and a PV tenant compare each branch in samples with single steps, and on
/// AMD's processors so does a PVH tenant.
pub fn run(report: &mut Report) -> Result<()> {
    compared(report, "pv", &[])?;
    compared(report, "pvh", &["--pvh"])
}

/// Boots one machine of this topology.
fn compared(report: &mut Report, topology: &str, options: &[&str]) -> Result<()> {
    let command = [&["/work/perf", "branches"], options].concat();
    let mut spec = Spec::new(topology, command)?.driver("branches")?;
    spec.topology.cpu.push_str(",pmu-lbr=on");
    spec.files.push((rootfs::perf()?, "/".into()));
    let source = sh::project().join("tests/vm/src/bin/perf/branchy.S");
    let elsewhere = ["-DSEED=77", "-Wl,-Ttext-segment=0x1000000"];
    let programs = [
        ("work/branchy", guest::without_library(&source, &[])?),
        ("work/branchy-elsewhere", guest::without_library(&source, &elsewhere)?),
    ];
    let programs = programs.map(|(at, program)| (at.to_owned(), program));
    for (at, program) in &programs {
        spec.files.push((program.clone(), format!("/{at}")));
    }
    tenants::add_tenant(&mut spec, "perf", &programs)?;
    spec.timeout = Duration::from_secs(900);
    report.program(spec, "perf")
}
