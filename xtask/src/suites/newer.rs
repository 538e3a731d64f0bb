// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs the README's two commands on a fresh Debian 13, which is a directory here. It has only git,
//! a linker and rustup's Rust, a clone of the last commit, and an empty cache.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::artefacts::debian;
use crate::suites::report::Report;
use crate::tools::cache;
use crate::tools::chroot::Chroot;
use crate::tools::sh::{self, cmd};

/// The directory with the clone.
const PROJECT: &str = "/root/perfctr";

/// The variables that rustup sets for whoever logs in there.
const VARIABLES: &[&str] =
    &["HOME=/root", "PATH=/root/.cargo/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"];

/// Runs one command after the other.
pub fn run(report: &mut Report) -> Result<()> {
    let _lock = cache::lock("debian-13-test")?;
    let debian = Chroot::unpack(&debian::newer()?, &cache::scratch("debian-13")?)?;
    install_rust(&debian)?;
    let mut clone = cmd("git", ["clone", "--quiet", "--no-hardlinks"]);
    sh::as_root(clone.arg(sh::project()).arg(debian.path(PROJECT)))?;
    for verb in ["demo", "test"] {
        let mut last = String::new();
        report.test(&format!("cargo xtask {verb}"), || {
            last = xtask(&debian, verb)?;
            Ok(())
        });
        report.note(format!("cargo xtask {verb} on Debian 13: {last}"));
    }
    debian.remove()
}

/// Installs the toolchain that builds the project, and the commands that find it.
fn install_rust(debian: &Chroot) -> Result<()> {
    let toolchain = sh::output(&mut cmd("rustc", ["--print", "sysroot"]))?;
    debian.put(&[toolchain.trim()], "root/.rustup/toolchains")?;
    let rustup = sh::output(&mut cmd("sh", ["-c", "command -v rustup"]))
        .context("rustup is needed, whose Rust a fresh system gets")?;
    let commands = Path::new(rustup.trim()).parent().context("rustup is in a directory")?;
    let commands: Vec<PathBuf> =
        cache::files(commands)?.into_iter().map(|(_, path)| path).collect();
    debian.put(&commands, "root/.cargo/bin")
}

/// Runs a verb. Returns the last line that it wrote.
fn xtask(debian: &Chroot, verb: &str) -> Result<String> {
    let log = cache::log(&format!("debian-13-{verb}"))?;
    if log.exists() {
        fs::remove_file(&log)?;
    }
    let script = format!("cd {PROJECT}; cargo xtask {verb}");
    sh::step(&format!("cargo xtask {verb}, see {}", log.display()), || {
        debian.run_on_machine(&script, VARIABLES, &log)
    })?;
    let printed = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    Ok(printed.lines().last().unwrap_or_default().to_owned())
}
