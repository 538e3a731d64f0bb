// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The command `perfctr`, where the hypervisor helps and where Linux counts alone.

use anyhow::Result;

use crate::machine::Spec;
use crate::suites::report::Report;
use crate::tools::apt;
use crate::tools::cache;
use crate::tools::sh::{self, cmd};

/// Two boots.
pub fn run(report: &mut Report) -> Result<()> {
    let mut native = spec("native", "native")?;
    native.module = false;
    report.program(native, "stat")?;
    report.program(spec("pv", "paravirt")?, "stat")
}

fn spec(topology: &str, provider: &str) -> Result<Spec> {
    let mut spec = Spec::new(topology, ["/work/stat", provider])?;
    spec.add_program("cli", "perfctr")?;
    apt::install(&["gcc"], "assembling a program without a library")?;
    let alone = cache::root()?.join("work/stat-alone");
    let mut gcc = cmd("gcc", ["-nostdlib", "-static", "-no-pie", "-o"]);
    sh::output(gcc.arg(&alone).arg(sh::project().join("tests/vm/src/bin/stat/alone.S")))?;
    spec.files.push((alone, "/work/alone".to_owned()));
    Ok(spec)
}
