// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask check`: what has to hold before anything is committed, short of running the tests.

use std::fs;

use anyhow::{Result, bail, ensure};

use crate::sh;
use crate::{checkobj, sim, tidy, toolchain, xen};

/// One check with its name.
type Check = (&'static str, fn() -> Result<()>);

const CHECKS: &[Check] = &[
    ("house rules", tidy::check),
    ("format", || cargo(&["fmt", "--all", "--check"])),
    ("lints", || {
        cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])
    }),
    ("lints of the simulator", || {
        let mut clippy = sim::cargo_with_cfg("sim");
        sh::run(clippy.args(["clippy", "--quiet", "--package", "sim", "--", "-D", "warnings"]))
    }),
    ("documentation", || cargo(&["doc", "--quiet", "--workspace", "--no-deps"])),
    ("generated header", header),
    ("Rust objects", checkobj::check),
    ("insertions into Xen", || xen::patch().map(drop)),
];

/// Runs every check, and fails if any of them does.
pub fn run() -> Result<()> {
    let mut failed = Vec::new();
    for (name, check) in CHECKS {
        match check() {
            Ok(()) => println!("ok      {name}"),
            Err(error) => {
                println!("FAILED  {name}: {error:#}");
                failed.push(*name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} checks failed: {}", failed.len(), CHECKS.len(), failed.join(", "));
    }
    Ok(())
}

fn cargo(args: &[&str]) -> Result<()> {
    let mut cargo = toolchain::cargo();
    cargo.args(args).env("RUSTDOCFLAGS", "-D warnings").current_dir(sh::project());
    sh::run(&mut cargo)
}

/// The C header is generated from the Rust ABI and committed; both must agree.
fn header() -> Result<()> {
    let path = sh::project().join("shared-abi/include/perfctr_abi.h");
    let mut generator = toolchain::cargo();
    generator
        .args(["run", "--quiet", "--package", "shared-abi", "--example", "c_header"])
        .current_dir(sh::project());
    let generated = sh::output(&mut generator)?;
    ensure!(
        fs::read_to_string(&path)? == generated,
        "{} differs from what the ABI crate generates; write it again with\n  \
         cargo run -p shared-abi --example c_header > shared-abi/include/perfctr_abi.h",
        path.display()
    );
    Ok(())
}
