// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests Linux's perf in the guest, whose hardware events the module counts.

use std::env;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::artefacts::{guest, rootfs};
use crate::machine::{Emulator, Spec, Topology};
use crate::suites::report::{Report, Volume};
use crate::suites::{perf_test, pmu, tenants};
use crate::tools::cache;

/// Iterations of a loop that takes a while.
const LONG: u32 = 50_000_000;

/// Boots one machine. The long tier boots one more by the verb `vm`, one with a PVH tenant, and two
/// for perf's own tests.
pub fn run(report: &mut Report) -> Result<()> {
    let mut command = vec!["/work/perf", "here"];
    if Topology::named(report.topology)?.emulator == Emulator::Bochs {
        command.push("--without-places");
        report.note("Bochs does not say where an overflow was, so no place is compared with it");
    }
    let mut spec = Spec::new(report.topology, command)?;
    spec.keep_tally();
    spec.files.extend([rootfs::perf()?, rootfs::clients()?].map(|tree| (tree, "/".into())));
    for (iterations, name) in [(pmu::ITERATIONS, "loop"), (LONG, "long")] {
        spec.files.push((pmu::known(iterations)?, format!("/work/{name}")));
    }
    spec.files.push((guest::beside_stat("alone.S", &[])?, "/work/alone".into()));
    // perf starts dozens of times, which takes minutes where the machine is busy.
    spec.timeout = Duration::from_secs(900);
    let topology = report.topology;
    report.program(spec, "perf")?;
    if report.volume == Volume::Usual {
        return Ok(());
    }
    report.test("cargo xtask vm --with perf -- CMD", || verb(topology));
    if topology == "pv" {
        pvh(report)?;
        perf_test::run(report)?;
    }
    Ok(())
}

/// Runs the verb with a script that calls perf, although the command does not name perf: one `perf
/// stat` beside another one that counts a known number.
fn verb(topology: &str) -> Result<()> {
    let dir = cache::scratch("perf-verb")?;
    fs::create_dir_all(&dir)?;
    fs::copy(pmu::known(pmu::ITERATIONS)?, dir.join("loop"))?;
    let known = "perf stat -x, -e instructions:u,branches:u -- ./loop; echo counted; exit 42";
    let mut verb = Command::new(env::current_exe()?);
    fs::write(dir.join("measure"), format!("exec perf stat -- sh -c '{known}'\n"))?;
    verb.args(["vm", "--with", "perf", "--topology", topology, "--copy"]);
    verb.arg(&dir).args(["--", "sh", "measure"]);
    let ended = verb.output()?;

    let printed = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.code() == Some(42), "{}\n{printed}", ended.status);
    ensure!(ended.stdout == b"counted\n", "{:?}", String::from_utf8_lossy(&ended.stdout));
    for line in pmu::PERF_LINES {
        ensure!(printed.lines().any(|printed| printed.starts_with(line)), "no {line}\n{printed}");
    }
    // The emulated CPU mispredicts nothing.
    for (event, least) in
        [("cycles", 1), ("instructions", 10_000_004), ("branches", 5_000_001), ("branch-misses", 0)]
    {
        let is_counted = |line: &str| {
            let mut words = line.split_whitespace();
            let count = words.next().and_then(|count| count.parse().ok());
            words.next() == Some(event) && count.is_some_and(|count: u64| count >= least)
        };
        ensure!(printed.lines().any(is_counted), "{event} not counted\n{printed}");
    }
    Ok(())
}

/// Tests perf's events in a PVH tenant, without perf's tools.
fn pvh(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("pvh", ["/work/perf", "pvh"])?.driver("1")?;
    tenants::add_tenant(&mut spec, "perf", &[])?;
    spec.timeout = Duration::from_secs(900);
    report.program(spec, "perf")
}
