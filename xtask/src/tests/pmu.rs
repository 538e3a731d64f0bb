// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The PMU model on its own: Linux accepts it and its counts are exact, without our other code.

use anyhow::{Result, ensure};

use crate::sh::{self, cmd};
use crate::testing::{Report, all};
use crate::vm::{self, Spec, Status};
use crate::{apt, cache};

/// Builds the check, runs it on the bare machine, and takes each of its lines as a test.
pub fn run(report: &mut Report) -> Result<()> {
    apt::install(&["gcc", "libc6-dev"], "the check of the PMU model")?;
    let source = sh::project().join("testbed/qemu/check");
    let program = cache::root()?.join("work/pmu-check");
    let mut gcc = cmd("gcc", ["-O2", "-static", "-o"]);
    gcc.arg(&program).args([source.join("pmu-check.c"), source.join("bodies.S")]);
    sh::output(&mut gcc)?;
    let mut spec = Spec::new("native", ["/work/pmu-check"])?;
    spec.module = false;
    spec.files.push((program, "/work/pmu-check".into()));
    let outcome = vm::run(&spec)?;
    report.test("every count is exact", || {
        ensure!(outcome.status == Status::Exited(0), "{}", all(&outcome));
        Ok(())
    });
    Ok(())
}
