// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Finds a Rust compiler for targets that a machine may lack, the bare-metal one above all.
//!
//! The compiler in use may have the target installed, or rustup may install it. Where rustup's
//! server cannot be reached, Debian's `rustc-web` builds the core library from `rust-web-src`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::tools::sh::{self, cmd};
use crate::tools::{apt, cache};

/// The target of code that runs without an operating system.
pub const BARE_TARGET: &str = "x86_64-unknown-none";

/// A target that is not x86.
pub const ARM_TARGET: &str = "aarch64-unknown-linux-gnu";

/// The directory in the project where an archive of the sources has the crates.
pub const VENDOR: &str = "vendor";

/// The directory of `rust-web-src` with the crates that the core library's sources name.
const CORE_CRATES: &str = "/usr/lib/rustlib/src/rust/library/vendor";

/// How long rustup may take: it hangs if a server cannot be reached. Unit: seconds.
const RUSTUP_TIMEOUT: &str = "10";

/// Returns a `cargo` command whose compiler can build for [`BARE_TARGET`].
pub fn cargo_for_bare_metal() -> Result<Command> {
    cargo_for(BARE_TARGET, "core,compiler_builtins")
}

/// Returns a `cargo` command whose compiler can build for [`ARM_TARGET`].
pub fn cargo_for_arm() -> Result<Command> {
    cargo_for(ARM_TARGET, "std,panic_abort")
}

/// Returns a `cargo` command for a target that this machine may lack. The target's core library
/// needs the crates in `library`.
fn cargo_for(target: &str, library: &str) -> Result<Command> {
    let rustup_failed = cache::root()?.join("rustup-unreachable");
    if has_target(target)? || (!rustup_failed.exists() && add_target(target)) {
        return Ok(cargo());
    }
    fs::write(rustup_failed, "")?;
    apt::install(
        &["rustc-web", "rust-web-src"],
        "the target's core library, as rustup's server cannot be reached",
    )?;
    if !Path::new("/usr/bin/rustc").exists() {
        bail!("rustc-web did not install /usr/bin/rustc");
    }
    vendor_core()?;
    let mut cargo = cargo();
    cargo
        .env("RUSTC", "/usr/bin/rustc")
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_UNSTABLE_BUILD_STD", library);
    Ok(cargo)
}

/// Copies the crates that the core library's sources name into an archive's directory of crates.
/// There all crates have to be in one directory.
fn vendor_core() -> Result<()> {
    let vendor = sh::project().join(VENDOR);
    if !vendor.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(CORE_CRATES).context(CORE_CRATES)? {
        let entry = entry?;
        let link = vendor.join(entry.file_name());
        if fs::symlink_metadata(&link).is_err() {
            symlink(entry.path(), link)?;
        }
    }
    Ok(())
}

/// Returns the `cargo` that started us, without the variables that it set for us.
pub fn cargo() -> Command {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut cargo = cmd(&program, [""; 0]);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Returns a `cargo` that builds with `--cfg NAME`, optimised and in a directory of its own.
pub fn cargo_with_cfg(name: &str) -> Command {
    let mut cargo = cargo();
    cargo
        .current_dir(sh::project())
        .env("CARGO_TARGET_DIR", sh::project().join("target").join(name))
        .env("RUSTFLAGS", format!("--cfg {name}"));
    cargo
}

fn has_target(target: &str) -> Result<bool> {
    let sysroot = sh::output(&mut rustc(["--print", "sysroot"]))?;
    Ok(Path::new(sysroot.trim()).join("lib/rustlib").join(target).exists())
}

fn add_target(target: &str) -> bool {
    let args = [RUSTUP_TIMEOUT, "rustup", "target", "add", target];
    cmd("timeout", args).current_dir(sh::project()).status().is_ok_and(|s| s.success())
}

fn rustc<const N: usize>(args: [&str; N]) -> Command {
    let mut rustc = cmd("rustc", args);
    rustc.current_dir(sh::project());
    rustc
}
