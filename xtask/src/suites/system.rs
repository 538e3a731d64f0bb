// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests samples of the host itself.

use anyhow::Result;

use crate::machine::Spec;
use crate::suites::report::Report;

/// Boots machines that keep a counter for samples of themselves, and compares the samples with what
/// the emulator has executed. On the first one, guests then sample themselves meanwhile.
pub fn run(report: &mut Report) -> Result<()> {
    let beside = "/work/system; system=$?; for tests in --records --ends; do \
                  /work/system /work/overflow $tests || exit; done; exit $system";
    let mut spec = spec("pv", &["sh", "-c", beside])?;
    spec.add_program("vm-tests", "overflow")?;
    report.program(spec, "system")?;
    report.program(self::spec("pv-amd", &["/work/system"])?, "system")
}

fn spec(topology: &str, command: &[&str]) -> Result<Spec> {
    let mut spec = Spec::new(topology, command.iter().copied())?.driver("profile")?;
    spec.topology.cpu.push_str(",pmu-tally=on");
    Ok(spec)
}
