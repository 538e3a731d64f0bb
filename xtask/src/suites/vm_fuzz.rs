// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Fuzzes the real module and the real driver, which report how much of their code is reached.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::artefacts::rustobj::Purpose;
use crate::artefacts::xen::Flavour;
use crate::artefacts::{guest, kernel, xen};
use crate::machine::Spec;
use crate::suites::report::Report;
use crate::suites::tenants;
use crate::tools::sh::{self, cmd};

/// The function that every basic block of a build for fuzzing calls.
const REACHED: &str = "__sanitizer_cov_trace_pc";
const CORPUS: &str = "tests/fuzz/corpus";

/// Boots one machine with a hostile user, a hostile guest kernel, and another one in a domain of
/// its own.
pub fn run(report: &mut Report) -> Result<()> {
    let calls = report.volume.pick("1000", "20000");
    let module = guest::module(&kernel::kernel()?, Purpose::Fuzzing)?;
    let driver = xen::xen(Flavour::Fuzzing, None)?.with_file_name("xen-syms");
    let [module, driver] = [places(&module)?.to_string(), places(&driver)?.to_string()];
    let command = ["/work/vm-fuzz", "fuzz", "--calls", calls, "--places", &module, &driver];
    // A hostile kernel may be the control domain's, which may use everything that the driver
    // offers.
    let mut spec = Spec::new("pv", command)?.driver("profile,accounts,branches")?;
    spec.topology.cpu.push_str(",pmu-lbr=on");
    spec.hypervisor()?.flavour = Flavour::Fuzzing;
    spec.timeout *= report.volume.pick(3, 16);
    tenants::add_tenant(&mut spec, "vm-fuzz", &for_tenant()?)?;
    spec.files.push((sh::project().join(CORPUS), "/work/corpus".into()));
    report.program(spec, "vm-fuzz")
}

/// Boots one machine with a hostile user, for an hour in the long tier. How much of the driver the
/// user's requests reach is not known there.
pub fn user(report: &mut Report) -> Result<()> {
    let minutes = report.volume.pick("0", "60");
    let command = ["/work/vm-fuzz", "fuzz", "--only-user", "--minutes", minutes];
    let mut spec = Spec::new(report.topology, command)?;
    spec.fuzzing = true;
    let module = guest::module(&kernel::of(spec.linux.as_deref())?, spec.purpose())?;
    spec.command.extend(["--places".into(), places(&module)?.to_string().into(), "0".into()]);
    spec.timeout *= report.volume.pick(12, 24);
    spec.files.push((sh::project().join(CORPUS), "/work/corpus".into()));
    report.program(spec, "vm-fuzz")
}

/// Returns the files with which a tenant makes hypercalls, and the inputs that it mutates.
fn for_tenant() -> Result<Vec<(String, PathBuf)>> {
    let mut files = vec![tenants::privcmd()?];
    for entry in fs::read_dir(sh::project().join(CORPUS).join("guest"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        files.push((format!("corpus/guest/{name}"), path.clone()));
    }
    Ok(files)
}

/// Returns the number of places that are counted when they are reached. They are calls, or
/// relocations in an object that is not linked.
fn places(program: &Path) -> Result<usize> {
    let code = sh::output(cmd("objdump", ["-dr", "--no-show-raw-insn"]).arg(program))?;
    let (mut section, mut places) = ("", 0);
    for line in code.lines() {
        section = line.strip_prefix("Disassembly of section ").unwrap_or(section);
        let is_call = line.contains("R_X86_64_PLT32") || line.contains("call ");
        // Code that is executed once, when the module is loaded, is not counted.
        if is_call && line.contains(REACHED) && section != ".init.text:" {
            places += 1;
        }
    }
    ensure!(places > 0, "{} is not built for fuzzing", program.display());
    Ok(places)
}
