// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the branches that the driver records for guests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::artefacts::{guest, rootfs};
use crate::machine::Spec;
use crate::suites::report::Report;
use crate::suites::tenants;
use crate::tools::cache;
use crate::tools::{apt, sh};

/// Boots a machine whose processors record branches as Intel's do, and one with AMD's. Each time
/// the control domain and a PV tenant compare each branch in samples with single steps, and on
/// AMD's processors so does a PVH tenant.
pub fn run(report: &mut Report) -> Result<()> {
    compared(report, "pv", &[])?;
    compared(report, "pvh", &["--pvh"])?;
    bolt(report)
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
        ("work/perfctr", guest::program("perfctr", "perfctr")?),
        ("work/branchy", guest::without_library(&source, &[])?),
        ("work/branchy-elsewhere", guest::without_library(&source, &elsewhere)?),
    ];
    let programs = programs.map(|(at, program)| (at.to_owned(), program));
    for (at, program) in &programs {
        spec.files.push((program.clone(), format!("/{at}")));
    }
    tenants::add_tenant(&mut spec, "perf", &programs)?;
    // The tenant has more than usual.
    spec.topology.memory_mib += 256;
    spec.timeout = Duration::from_secs(900);
    report.program(spec, "perf")
}

/// BOLT of Debian 12, which optimises programs by profiles of their branches, and what it needs.
const BOLT: [&str; 2] = ["bolt-16", "libz3-4"];
/// The files in which perf and the command record a program for it.
const PERF_DATA: &str = "layout.data";
const PERFCTR_DATA: &str = "layout-perfctr.data";
/// Flags by which the compiler leaves the code as the source has it, and the linker the relocations
/// that BOLT needs.
const AS_WRITTEN: [&str; 8] = [
    "-O1",
    "-fno-guess-branch-probability",
    "-fno-reorder-blocks",
    "-fno-if-conversion",
    "-fno-if-conversion2",
    "-fno-stack-protector",
    "-fcf-protection=none",
    "-Wl,--emit-relocs",
];

/// Records a program in the control domain by `perf record -b` and `perfctr record -b`, has BOLT
/// read both, optimises the program, and compares both programs in the control domain.
fn bolt(report: &mut Report) -> Result<()> {
    let source = sh::project().join("tests/vm/src/bin/perf/layout.c");
    let program = guest::without_library(&source, &AS_WRITTEN)?;
    let out = cache::scratch("bolt")?;
    // The command finds what a program has mapped while the program runs. So the pipe to which the
    // program writes at its end stays full for a while.
    let record = format!(
        "perf record -b -c 101 -e instructions:u -o /out/{PERF_DATA} /work/layout && \
         {{ head -c 65536 /dev/zero; \
         /work/perfctr record -b -c 1009 -e instructions:u -f perf -o /out/{PERFCTR_DATA} \
         /work/layout; }} | {{ sleep 5; cat >/dev/null; }}"
    );
    let mut spec = Spec::new("pv", ["sh", "-c", &record])?.driver("branches")?;
    spec.topology.cpu.push_str(",pmu-lbr=on");
    spec.files.push((rootfs::perf()?, "/".into()));
    spec.files.push((program.clone(), "/work/layout".into()));
    spec.add_program("perfctr", "perfctr")?;
    spec.keep_out(&out)?;
    report.succeeds(&spec, "perf record -b and perfctr record -b record a program for BOLT")?;
    report.test("BOLT finds each branch that the command has recorded", || {
        converted(&program, &out.join(PERFCTR_DATA)).map(drop)
    });
    let optimised = out.join("layout.bolt");
    report.test("BOLT finds each branch in the program, and optimises it", || {
        optimise(&program, &converted(&program, &out.join(PERF_DATA))?, &optimised)
    });
    let mut spec = Spec::new("pv", ["/work/perf", "bolted"])?;
    spec.files.push((program, "/work/layout".into()));
    spec.files.push((optimised, "/work/layout.bolt".into()));
    report.program(spec, "perf")
}

/// Returns the command that runs this program of BOLT's packages.
fn bolt_program(name: &str) -> Result<Command> {
    let tools = apt::unpacked("bolt", &BOLT)?.join("usr");
    let mut command = Command::new(tools.join("lib/llvm-16/bin").join(name));
    command.env("LD_LIBRARY_PATH", tools.join("lib/x86_64-linux-gnu"));
    Ok(command)
}

/// Has BOLT convert a file of perf's, and checks that each branch in it is one of the program's.
/// Returns the profile for BOLT.
fn converted(program: &Path, data: &Path) -> Result<PathBuf> {
    apt::install(&["linux-perf"], "reading a profile for BOLT")?;
    let profile = data.with_extension("fdata");
    // The program's build ID finds it in the file.
    let mut convert = bolt_program("perf2bolt")?;
    let said = sh::output(convert.arg(program).arg("-p").arg(data).arg("-o").arg(&profile))?;
    for wrong in ["traces mismatching disassembled function contents: 0", "unknown regions: 0"] {
        ensure!(said.contains(wrong), "no {wrong}: {said}");
    }
    Ok(profile)
}

/// Has BOLT optimise a program by a profile.
fn optimise(program: &Path, profile: &Path, optimised: &Path) -> Result<()> {
    let mut optimise = bolt_program("llvm-bolt")?;
    optimise.arg(program).arg("-o").arg(optimised).arg("-data").arg(profile);
    sh::output(optimise.args(["-reorder-blocks=ext-tsp", "-reorder-functions=hfsort"])).map(drop)
}
