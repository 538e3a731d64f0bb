// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask readme` writes the output of the commands with which README.md begins.

use anyhow::{Result, ensure};

use crate::machine::{self, Spec, Status};
use crate::suites::readme;
use crate::suites::report::all;
use crate::tools::cache;

/// Writes the first screen of README.md. Suite `stat` compares it.
pub fn run() -> Result<()> {
    let mut spec = Spec::new("pv", ["true"])?;
    spec.add_program("perfctr", "perfctr")?;
    readme::prepare(&mut spec)?;
    let out = cache::scratch("readme-out")?;
    spec.keep_out(&out)?;
    let outcome = machine::run(&spec)?;
    ensure!(outcome.status == Status::Exited(0), "{}", all(&outcome));
    readme::write(&out)
}
