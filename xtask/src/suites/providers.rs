// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The library's providers: on the bare machine, where nobody has counters, and in a guest.

use anyhow::Result;

use crate::machine::Spec;
use crate::suites::report::Report;

/// Three boots; a fourth place, where the driver is off, is suite `driver-absent`'s.
pub fn run(report: &mut Report) -> Result<()> {
    let mut native = spec("native", "native")?;
    native.module = false;
    report.program(native, "providers")?;
    let mut bare = spec("native", "bare")?;
    bare.module = false;
    bare.topology.cpu = bare.topology.cpu.replace(",pmu=on", "");
    report.program(bare, "providers")?;
    report.program(guest()?, "providers")
}

/// Under Xen, on counters of 32 bits and of architectural version 2: what others count in days
/// happens in seconds.
fn guest() -> Result<Spec> {
    let all = "/work/wrap; wrapped=$?; /work/providers guest && exit $wrapped";
    let mut spec = Spec::new("pv", ["sh", "-c", all])?;
    spec.topology.cpu.push_str(",pmu-version=2,pmu-width=32");
    spec.add_program("vm-tests", "wrap")?;
    spec.add_program("cli", "perfctr")?;
    Ok(spec)
}

/// A run of the program where there is this to count with.
fn spec(topology: &str, place: &str) -> Result<Spec> {
    let mut spec = Spec::new(topology, ["/work/providers", place])?;
    spec.add_program("cli", "perfctr")?;
    Ok(spec)
}
