// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the library's providers: on the bare machine, where nobody has counters, and in a guest.

use anyhow::Result;

use crate::artefacts::guest;
use crate::machine::Spec;
use crate::suites::pmu;
use crate::suites::report::Report;

/// Boots three machines. Suite `driver-absent` tests a fourth place, where the driver is off.
pub fn run(report: &mut Report) -> Result<()> {
    let mut native = spec("native", "native")?;
    native.module = false;
    add_watched(&mut native)?;
    report.program(native, "providers")?;
    let mut bare = spec("native", "bare")?;
    bare.module = false;
    bare.topology.cpu = bare.topology.cpu.replace(",pmu=on", "");
    report.program(bare, "providers")?;
    report.program(guest()?, "providers")
}

/// Describes a guest of Xen, on counters of 32 bits and of architectural version 2. They wrap
/// within seconds, where other counters take days.
fn guest() -> Result<Spec> {
    let all = "/work/wrap; wrapped=$?; /work/providers guest && exit $wrapped";
    let mut spec = Spec::new("pv", ["sh", "-c", all])?;
    spec.topology.cpu.push_str(",pmu-version=2,pmu-width=32");
    spec.add_program("vm-tests", "wrap")?;
    spec.add_program("perfctr", "perfctr")?;
    add_watched(&mut spec)?;
    Ok(spec)
}

/// Adds programs that are counted, and the library's examples, some of which count them.
fn add_watched(spec: &mut Spec) -> Result<()> {
    spec.files.push((pmu::known(pmu::ITERATIONS)?, "/work/loop".into()));
    spec.files.push(guest::frames()?);
    let of_library = ["self_count", "program", "callers", "tasks", "workers", "regions"];
    let examples = of_library.map(|name| ("libperfctr-rs", name)).into_iter();
    let others = [
        ("perfctr-tracing", "spans"),
        ("perfctr-criterion", "benchmark"),
        ("perfctr-gate", "benchmarks"),
    ];
    for (package, name) in examples.chain(others) {
        let example = guest::example(package, name)?;
        spec.files.push((example, format!("/work/{name}")));
    }
    Ok(())
}

/// Describes a run of the program on a machine with this kind of counters.
fn spec(topology: &str, place: &str) -> Result<Spec> {
    let mut spec = Spec::new(topology, ["/work/providers", place])?;
    spec.add_program("perfctr", "perfctr")?;
    Ok(spec)
}
