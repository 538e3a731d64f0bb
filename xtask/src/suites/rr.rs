// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests Debian's rr in guests of every kind, whose ticks the module counts.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::artefacts::{guest, rootfs};
use crate::machine::Spec;
use crate::suites::report::Report;
use crate::suites::{programs, tenants};
use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::sh::{self, cmd};

/// The versions whose sources have the test of counters.
const UPSTREAM: &[&str] = &["5.9", "5.10"];

/// The program that tests, in the guest.
const PROGRAM: &str = "/work/rr";

/// Boots one machine, and tests in the guest that can ask its host to move its vCPUs.
pub fn run(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new(report.topology, [PROGRAM, "test"])?;
    spec.files.extend([rootfs::rr()?, rootfs::programs()?].map(|tree| (tree, "/".into())));
    spec.files.push((counters_test()?, "/work/counters".into()));
    spec.copy.push(programs::files(programs::COMMANDS)?);
    spec.timeout = Duration::from_secs(2_400);
    report.program(spec, "rr")
}

/// Boots one machine, and tests in a PVH tenant.
pub fn pvh(report: &mut Report) -> Result<()> {
    report.program(beside_control("pvh")?, "rr")
}

/// Boots one machine, and tests in an HVM tenant.
pub fn hvm(report: &mut Report) -> Result<()> {
    let mut spec = beside_control("hvm")?;
    tenants::add_device_model(&mut spec)?;
    spec.timeout *= 2;
    report.program(spec, "rr")
}

/// Describes a machine with a tenant of this kind, which has all that the tests need.
fn beside_control(kind: &str) -> Result<Spec> {
    let mut spec = Spec::new("pvh", [PROGRAM, "control", kind])?.driver("all")?;
    let mut files: Vec<(String, PathBuf)> = [rootfs::tenant()?, rootfs::programs()?, rootfs::rr()?]
        .map(|tree| (String::new(), tree))
        .into();
    files.push(("work".to_owned(), programs::files(programs::COMMANDS)?));
    files.push(("work/counters".to_owned(), counters_test()?));
    files.push(("work/rr".to_owned(), guest::programs("vm-tests")?.join("rr")));
    tenants::add_tenant(&mut spec, "rr", &files)?;
    spec.topology.memory_mib += 768;
    spec.timeout = Duration::from_secs(3_000);
    Ok(spec)
}

/// Builds the test of counters that is among rr's sources, which its authors compile without
/// optimisation. It makes fewer of its rounds, each of which is a conversation between two
/// processes and takes a while on the emulated machine.
fn counters_test() -> Result<PathBuf> {
    let source = apt::unpatched("rr", UPSTREAM)?.join("src/counters-test/counters.cc");
    let mut text = fs::read_to_string(source)?;
    for rounds in ["NUM_ITERATIONS_BASIC", "NUM_ITERATIONS_SYSCALLS"] {
        let (many, few) = (format!("{rounds} 100000\n"), format!("{rounds} 2000\n"));
        ensure!(text.contains(&many), "rr's test of counters has no {many}");
        text = text.replace(&many, &few);
    }
    let dir = cache::artefact("rr-counters", Key::new("rr-counters 2").text(&text), |dir| {
        apt::install(&["g++"], "the test of counters of rr")?;
        let source = dir.join("counters.cc");
        fs::write(&source, &text)?;
        let mut gcc = cmd("g++", ["-O0", "-static", "-o"]);
        sh::output(gcc.arg(dir.join("counters")).arg(&source)).map(drop)
    })?;
    Ok(dir.join("counters"))
}
