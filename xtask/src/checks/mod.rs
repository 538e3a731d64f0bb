// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What has to hold before anything is committed, short of running the tests.

mod generated;
mod objects;
mod tidy;

use anyhow::Result;

pub use self::generated::write as write_headers;
pub use self::objects::check as objects;
use crate::artefacts::xen;
use crate::tools::{sh, toolchain};

/// One check with its name.
type Check = (&'static str, fn() -> Result<()>);

/// Every check; the quick ones come first.
pub const CHECKS: &[Check] = &[
    ("house rules", tidy::check),
    ("format", || cargo(&["fmt", "--all", "--check"])),
    ("lints", || {
        cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])
    }),
    ("lints of the simulator", || {
        let mut clippy = toolchain::cargo_with_cfg("sim");
        sh::run(clippy.args(["clippy", "--quiet", "--package", "sim", "--", "-D", "warnings"]))
    }),
    ("documentation", || cargo(&["doc", "--quiet", "--workspace", "--no-deps"])),
    ("generated headers", generated::check),
    ("Rust objects", objects::check),
    ("insertions into Xen", || xen::patch().map(drop)),
];

fn cargo(args: &[&str]) -> Result<()> {
    let mut cargo = toolchain::cargo();
    cargo.args(args).env("RUSTDOCFLAGS", "-D warnings").current_dir(sh::project());
    sh::run(&mut cargo)
}
