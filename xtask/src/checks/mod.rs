// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Checks conditions that have to hold before anything is committed. The tests are run elsewhere.

mod c_style;
mod generated;
mod objects;
mod tidy;

use std::process::Command;

use anyhow::Result;

pub use self::generated::write as write_headers;
pub use self::objects::check as objects;
use crate::artefacts::packages::licences;
use crate::artefacts::{faults, kernel, kvm, xen};
use crate::tools::sh;
use crate::tools::toolchain::{self, ARM_TARGET, BARE_TARGET};

/// A check of something that has to hold.
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// How long it takes, and so how often it is run.
    pub pace: Pace,
    /// Runs the check.
    pub run: fn() -> Result<()>,
}

/// How long a check takes if little has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// It takes seconds, and is run before every commit.
    Quick,
    /// It takes minutes if much has to be compiled.
    Slow,
    /// It fetches the sources of other releases, which not every mirror has. It is run only if it
    /// is named, and in the long run of the tests.
    Named,
}

use Pace::{Named, Quick, Slow};

/// Every check; the quick ones come first.
pub const CHECKS: &[Check] = &[
    Check { name: "house rules", pace: Quick, run: tidy::check },
    Check { name: "format", pace: Quick, run: || cargo(&["fmt", "--all", "--check"]) },
    Check { name: "layout of C", pace: Quick, run: c_style::check },
    Check { name: "generated headers", pace: Quick, run: generated::check },
    Check { name: "anchors of faults", pace: Quick, run: || faults::check(&sh::project()) },
    Check { name: "lints", pace: Slow, run: lints },
    Check { name: "lints of the simulator", pace: Slow, run: simulator_lints },
    Check {
        name: "documentation",
        pace: Slow,
        run: || cargo(&["doc", "--quiet", "--workspace", "--no-deps", "--all-features"]),
    },
    Check { name: "library elsewhere", pace: Slow, run: elsewhere },
    Check { name: "Rust objects", pace: Slow, run: objects::check },
    Check { name: "kernel module", pace: Slow, run: || objects::check_module(None) },
    Check { name: "kernel module without Xen", pace: Slow, run: objects::check_module_without_xen },
    Check { name: "modules of KVM", pace: Slow, run: || objects::check_kvm(None) },
    Check { name: "licences of crates", pace: Slow, run: licences::check },
    Check { name: "insertions into Xen", pace: Slow, run: || xen::patch(None).map(drop) },
    Check { name: "insertions into Linux", pace: Slow, run: || kvm::patch(None).map(drop) },
    Check {
        name: "kernel module with PREEMPT_RT",
        pace: Named,
        run: || objects::check_module(Some(kernel::RT)),
    },
    Check { name: "insertions into other releases", pace: Named, run: other_releases },
    Check { name: "modules of KVM for other releases", pace: Named, run: other_modules },
];

/// Checks that each anchor is found once in every release of Xen and of Linux.
fn other_releases() -> Result<()> {
    xen::releases()?.iter().try_for_each(|release| xen::patch(Some(release)).map(drop))?;
    kvm::releases()?.iter().try_for_each(|release| kvm::patch(Some(release)).map(drop))
}

fn other_modules() -> Result<()> {
    kvm::releases()?.iter().try_for_each(|release| objects::check_kvm(Some(release)))
}

fn lints() -> Result<()> {
    let what = ["--workspace", "--all-targets", "--features", "perfctr/pfm,libperfctr-rs/serde"];
    cargo(&[&["clippy", "--quiet"], &what[..], &["--", "-D", "warnings"]].concat())
}

/// Checks the library for a machine that is not x86, and its reader for one without an operating
/// system.
fn elsewhere() -> Result<()> {
    const LIBRARY: [&str; 4] = ["check", "--quiet", "--package", "libperfctr-rs"];
    let check = |mut cargo: Command, target, features: &[&str]| {
        cargo.args(LIBRARY).args(["--target", target]).args(features).current_dir(sh::project());
        sh::run(cargo.env("RUSTFLAGS", "-D warnings").env("CARGO_TARGET_DIR", "target/elsewhere"))
    };
    check(toolchain::cargo_for_arm()?, ARM_TARGET, &["--all-features", "--examples"])?;
    check(toolchain::cargo_for_bare_metal()?, BARE_TARGET, &["--no-default-features"])
}

fn simulator_lints() -> Result<()> {
    let mut clippy = toolchain::cargo_with_cfg("sim");
    sh::run(clippy.args(["clippy", "--quiet", "--package", "sim", "--", "-D", "warnings"]))
}

fn cargo(args: &[&str]) -> Result<()> {
    let mut cargo = toolchain::cargo();
    cargo.args(args).env("RUSTDOCFLAGS", "-D warnings").current_dir(sh::project());
    sh::run(&mut cargo)
}
