// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask sim`, and the parts of the model tier that need the cores built in their own way:
//! for the simulator (`--cfg sim`) and for loom's model checker (`--cfg loom`).

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::testing::Report;
use crate::{sh, toolchain};

/// Runs the simulator of hosts and guests; see `cargo xtask sim -- --help`.
#[derive(clap::Args)]
pub struct Args {
    /// The simulator's own options.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<String>,
}

/// Runs the verb.
pub fn run(args: &Args) -> Result<ExitCode> {
    let status = simulator().args(&args.options).status().context("the simulator")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs what belongs to the model tier.
pub fn test(report: &mut Report) {
    report.test("every planted bug, 1,000 seeds and small machines exhaustively", || {
        sh::run(simulator().arg("--all"))
    });
    report.test("the sequence protocol under loom", || {
        let mut loom = cargo_with_cfg("loom");
        // A short test does not earn link-time optimisation.
        loom.env("CARGO_PROFILE_RELEASE_LTO", "false");
        sh::run(loom.args([
            "test",
            "--release",
            "--quiet",
            "--package",
            "shared-abi",
            "--test",
            "loom_seq",
        ]))
    });
    report.test("fuzz targets", || {
        let mut fuzz = toolchain::cargo();
        sh::run(
            fuzz.args(["run", "--release", "--quiet", "--package", "fuzz"])
                .current_dir(sh::project()),
        )
    });
}

fn simulator() -> Command {
    let mut cargo = cargo_with_cfg("sim");
    cargo.args(["run", "--release", "--quiet", "--package", "sim", "--"]);
    cargo
}

/// A `cargo` that builds with `--cfg NAME`, apart from other builds and optimised.
pub fn cargo_with_cfg(name: &str) -> Command {
    let mut cargo = toolchain::cargo();
    cargo
        .current_dir(sh::project())
        .env("CARGO_TARGET_DIR", sh::project().join("target").join(name))
        .env("RUSTFLAGS", format!("--cfg {name}"));
    cargo
}
