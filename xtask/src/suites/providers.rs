// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The library's providers: on the bare machine, where nobody has counters, and in a guest.

use anyhow::Result;

use crate::machine::Spec;
use crate::suites::report::Report;

/// Three boots.
pub fn run(report: &mut Report) -> Result<()> {
    let mut native = spec("native", "native")?;
    native.module = false;
    report.program(native, "providers")?;
    let mut bare = spec("native", "bare")?;
    bare.module = false;
    bare.topology.cpu = bare.topology.cpu.replace(",pmu=on", "");
    report.program(bare, "providers")?;
    report.program(spec("pv", "guest")?, "providers")
}

/// A run of the program where there is this to count with.
fn spec(topology: &str, place: &str) -> Result<Spec> {
    Spec::new(topology, ["/work/providers", place])
}
