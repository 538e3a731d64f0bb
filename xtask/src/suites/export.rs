// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the values that the command exports and shows live, together with Debian's Prometheus,
//! which scrapes them.

use anyhow::{Result, ensure};

use crate::artefacts::rootfs;
use crate::machine::Spec;
use crate::suites::report::Report;
use crate::tools::sh::{self, cmd};
use crate::tools::{apt, cache};

/// Boots one machine.
pub fn run(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("pv", ["/work/export"])?;
    spec.add_program("perfctr", "perfctr")?;
    spec.topology.memory_mib += 1_024;
    spec.files.push((rootfs::prometheus()?, "/".into()));
    report.program(spec, "export")
}

/// The alerts, and the tests of them, in the project.
const ALERTS: &str = "packaging/prometheus";

/// Makes Debian's promtool check the examples of alerts, and run the tests beside them. The
/// command's own tests check which names they may use. Boots nothing.
pub fn alerts(report: &mut Report) -> Result<()> {
    let dir = cache::scratch("promtool")?;
    let packages = apt::fetch(&["prometheus"], false, &dir)?;
    apt::unpack(&packages, &dir)?;
    let promtool = |what: [&str; 3]| {
        let mut promtool = cmd(&dir.join("usr/bin/promtool").to_string_lossy(), what);
        sh::output(promtool.current_dir(sh::project().join(ALERTS)))
    };
    report.test("the examples of alerts are rules of Prometheus", || {
        let printed = promtool(["check", "rules", "perfctr.yml"])?;
        ensure!(printed.contains("4 rules found"), "{printed}");
        Ok(())
    });
    report.test("each alert comes when it shall, and for nobody else", || {
        promtool(["test", "rules", "perfctr_test.yml"]).map(drop)
    });
    Ok(())
}
