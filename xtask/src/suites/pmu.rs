// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the PMU model on its own: Linux and its `perf` accept it, and its counts are exact without
//! our other code.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::artefacts::{guest, kernel, rootfs};
use crate::machine::Spec;
use crate::suites::report::{Report, all, line};
use crate::tools::sh::{self, cmd};
use crate::tools::{apt, cache};

/// The iterations of `loop.S`, what `perf stat` has to print for them, and how often it is run.
pub const ITERATIONS: u32 = 5_000_000;
pub const PERF_LINES: [&str; 2] = ["10000004,,instructions:u,", "5000001,,branches:u,"];
const PERF_RUNS: usize = 5;

/// AMD's latest generation, with SVM.
pub const AMD: &str = "EPYC,+svm,+npt,+perfctr-core,perfmon-v2=on,pmu=on";

/// Boots the bare machine four times, once with an AMD CPU, and tests the numbers that these checks
/// expect.
pub fn run(report: &mut Report) -> Result<()> {
    let program = check_program()?;
    check(report, &program)?;
    check_amd(report, &program)?;
    check_map(report)?;
    perf(report, &program)
}

/// Builds the program that checks what a PMU counts.
pub fn check_program() -> Result<PathBuf> {
    apt::install(&["gcc", "libc6-dev"], "the checks of the PMU model")?;
    build("pmu-check", &["pmu-check.c", "bodies.S"])
}

/// Builds a check that belongs to the model, to run on any Linux.
fn build(name: &str, sources: &[&str]) -> Result<PathBuf> {
    let folder = sh::project().join("testbed/qemu/check");
    let program = cache::scratch(name)?;
    let mut gcc = cmd("gcc", ["-O2", "-static", "-o"]);
    sh::output(gcc.arg(&program).args(sources.iter().map(|source| folder.join(source))))?;
    Ok(program)
}

/// Runs the check on Intel's model, which also records branches, and has PEBS.
fn check(report: &mut Report, program: &Path) -> Result<()> {
    report.test("the numbers expected are those of single-stepping", || {
        let stepped = Command::new(program).arg("--step").output()?;
        ensure!(stepped.status.success(), "{}", String::from_utf8_lossy(&stepped.stdout));
        Ok(())
    });
    let mut spec = Spec::new("native", ["/work/pmu-check"])?.stock("");
    spec.topology.cpu.push_str(",pmu-lbr=on,pmu-pebs=on,pmu-full-writes=on");
    spec.files.push((program.to_owned(), "/work/pmu-check".into()));
    let outcome = report.succeeds(&spec, "every count is exact")?;
    report
        .test("every precise sample is at the instruction that single-stepping had there", || {
            line(&outcome, "precise samples: ", " samples").map(drop)
        });
    report.test("every branch that was recorded is one that single-stepping took", || {
        line(&outcome, "branch records: ", " samples").map(drop)
    });
    Ok(())
}

/// Runs the check on an AMD CPU, which also records branches, and another check of its counters in
/// and around an SVM guest.
fn check_amd(report: &mut Report, program: &Path) -> Result<()> {
    let script = "/work/pmu-check; status=$?
        insmod /work/svm-check.ko && cat /sys/module/svm_check/parameters/report && exit $status";
    let mut spec = Spec::new("native", ["sh", "-c", script])?.stock("");
    spec.topology.cpu = format!("{AMD},pmu-lbr=on");
    spec.files.push((program.to_owned(), "/work/pmu-check".into()));
    spec.files.push((guest::svm_check(&kernel::kernel()?)?, "/work/svm-check.ko".into()));
    let outcome = report.succeeds(&spec, "every count is exact on an AMD CPU")?;
    report.test("every branch that an AMD CPU recorded is one that single-stepping took", || {
        line(&outcome, "branch records: ", " samples").map(drop)
    });
    report.test("the counters know SVM guests from their host", || {
        line(&outcome, "svm-check: ", " checks, 0 FAILED").map(drop)
    });
    Ok(())
}

/// Checks that a CPU's devices stay in place while another CPU changes the memory map, as a kernel
/// does that looks for PCI devices. This takes ten seconds.
fn check_map(report: &mut Report) -> Result<()> {
    let mut spec = Spec::new("native", ["/work/map-check", "10"])?.stock("");
    spec.topology.linux.push_str(" iomem=relaxed");
    let program = build("map-check", &["map-check.c"])?;
    spec.files.push((program, "/work/map-check".into()));
    report.succeeds(&spec, "devices stay where they are while the memory map changes").map(drop)
}

/// Builds a program that executes two instructions for each iteration, and four more.
pub fn known(iterations: u32) -> Result<PathBuf> {
    assembled("loop", &format!("ITERATIONS={iterations}"))
}

/// Builds a program of the model's checks from this file of assembly, with this macro.
pub fn assembled(name: &str, definition: &str) -> Result<PathBuf> {
    let program = cache::scratch(&format!("{name}-{definition}"))?;
    let mut gcc = cmd("gcc", ["-nostdlib", "-static", "-o"]);
    gcc.arg(&program).arg(format!("-D{definition}"));
    sh::output(gcc.arg(sh::project().join(format!("testbed/qemu/check/{name}.S"))))?;
    Ok(program)
}

/// Returns a script in which `perf` counts the program `/work/loop` this many times.
pub fn perf_stat(times: usize) -> String {
    let stat = "perf stat -x, -e instructions:u,branches:u /work/loop";
    format!("for run in $(seq {times}); do {stat}; done")
}

/// Runs Debian's own `perf` on CPUs of version 4. Their firmware has left the counters frozen, so
/// the check of that comes first and thaws them.
fn perf(report: &mut Report, program: &Path) -> Result<()> {
    let stat = perf_stat(PERF_RUNS);
    let script = format!("/work/pmu-check --freezing; status=$?; {stat}; exit $status");
    let mut spec = Spec::new("native", ["sh", "-c", &script])?.stock("");
    spec.topology.cpu.push_str(",pmu-version=4,pmu-habits=freeze");
    spec.files.push((program.to_owned(), "/work/pmu-check".into()));
    spec.files.push((known(ITERATIONS)?, "/work/loop".into()));
    spec.files.push((rootfs::perf()?, "/".into()));
    let name =
        "on version 4 an interrupt freezes all counters until a bit of the status is cleared";
    let outcome = report.succeeds(&spec, name)?;
    report.test("perf stat counts exactly", || {
        let printed = String::from_utf8_lossy(&outcome.stderr);
        for line in PERF_LINES {
            let times = printed.lines().filter(|printed| printed.starts_with(line)).count();
            ensure!(times == PERF_RUNS, "{times} x {line}, not {PERF_RUNS}: {}", all(&outcome));
        }
        Ok(())
    });
    Ok(())
}
