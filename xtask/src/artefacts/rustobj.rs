// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds the Rust parts of the hypervisor driver and of the kernel module. Each part is one object
//! file, which the other project's own build links.
//!
//! Cargo builds a static library for the bare-metal target. The object of the boundary crate, into
//! which everything is inlined, is taken out of it. Code that no entry refers to is dropped, and
//! every symbol but the entries is made local. C has to provide the symbols that remain undefined.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::artefacts::symbol_names;
use crate::tools::cache;
use crate::tools::sh::{self, cmd};
use crate::tools::toolchain::{self, BARE_TARGET};

/// The beginning of the names of entries that C calls.
pub const ENTRY_PREFIX: &str = "perfctr_core_";

/// The flags that both objects are compiled with.
const FLAGS: &[&str] = &[
    "-Cno-redzone=yes",
    "-Cforce-unwind-tables=no",
    // An indirect jump would need the speculation barriers of the program into which it is linked.
    "-Cjump-tables=no",
    // Returns jump to the return thunk of the program into which the code is linked, as the returns
    // of that program's C code do.
    "-Zfunction-return=thunk-extern",
    // With `plt` the compiled code calls `memcpy` directly and not through a table of addresses
    // (GOT), which neither Xen nor a Linux module has. The core library is compiled to use such a
    // table, and link-time optimisation would apply that to all code, so it is off. Inlining across
    // crates replaces it.
    "-Zplt=yes",
    "-Zcross-crate-inline-threshold=always",
];

/// The purpose that code is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It is going to be used.
    Use,
    /// It is going to be fuzzed, and reports which of its basic blocks are executed.
    Fuzzing,
}

/// The flags that have every basic block call `__sanitizer_cov_trace_pc`.
const COVERAGE_FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=3",
    "-Cllvm-args=-sanitizer-coverage-trace-pc",
];

/// Where the code is linked, which decides how it is addressed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Placement {
    /// Anywhere, as in Xen, which is not in the top 2 GiB.
    PositionIndependent,
    /// In the top 2 GiB of the address space, as Linux modules, which must not have a GOT.
    Kernel,
}

impl Placement {
    /// Returns the compiler's name of the code model.
    const fn model(self) -> &'static str {
        match self {
            Self::PositionIndependent => "pic",
            Self::Kernel => "static",
        }
    }
}

/// Builds Xen's object file of the driver.
pub fn hypervisor(purpose: Purpose) -> Result<PathBuf> {
    hypervisor_of(&sh::project(), purpose)
}

/// Builds KVM's object file of the driver, which is linked into a module of Linux.
pub fn kvm() -> Result<PathBuf> {
    object(&sh::project(), "hv-driver-ffi", Placement::Kernel, Purpose::Use)
}

/// Builds the object file of the kernel module.
pub fn module(purpose: Purpose) -> Result<PathBuf> {
    module_of(&sh::project(), purpose)
}

/// Builds Xen's object file of the driver from a copy of the project.
pub fn hypervisor_of(project: &Path, purpose: Purpose) -> Result<PathBuf> {
    object(project, "hv-driver-ffi", Placement::PositionIndependent, purpose)
}

/// Builds the object file of the kernel module from a copy of the project.
pub fn module_of(project: &Path, purpose: Purpose) -> Result<PathBuf> {
    object(project, "guest-kmod-ffi", Placement::Kernel, purpose)
}

fn object(
    project: &Path,
    package: &str,
    placement: Placement,
    purpose: Purpose,
) -> Result<PathBuf> {
    let _lock = crate::tools::cache::lock(package)?;
    let mut flags = FLAGS.to_vec();
    let mut dir = format!("{package}-{}", placement.model());
    if purpose == Purpose::Fuzzing {
        flags.extend(COVERAGE_FLAGS);
        dir.push_str("-fuzzing");
    }
    let target_dir = project.join("target/bare").join(dir);
    let library = build(project, package, placement, &flags, &target_dir)?;
    let work = target_dir.join("object");
    cache::empty(&work)?;
    sh::output(cmd("ar", ["x"]).arg(&library).current_dir(&work))?;
    let complete = crate_object(&work, &package.replace('-', "_"))?;
    let reduced = work.join("perfctr_core.o");
    reduce(&complete, &reduced, placement)?;
    // Another run may still be using the object, so it is replaced in one step.
    let object = target_dir.join("perfctr_core.o");
    fs::rename(&reduced, &object)?;
    Ok(object)
}

fn build(
    project: &Path,
    package: &str,
    placement: Placement,
    flags: &[&str],
    target_dir: &Path,
) -> Result<PathBuf> {
    let mut cargo = toolchain::cargo_for_bare_metal()?;
    cargo
        .args(["build", "--quiet", "--release", "--package", package])
        .args(["--target", BARE_TARGET, "--target-dir"])
        .arg(target_dir)
        .env("RUSTFLAGS", format!("-Crelocation-model={} {}", placement.model(), flags.join(" ")))
        // Some of the flags are not stable yet.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .current_dir(project);
    sh::run(&mut cargo)?;
    let library = format!("lib{}.a", package.replace('-', "_"));
    Ok(target_dir.join(BARE_TARGET).join("release").join(library))
}

/// Returns the member of the unpacked library with the crate's own code.
fn crate_object(dir: &Path, crate_name: &str) -> Result<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for (name, path) in crate::tools::cache::files(dir)? {
        if name.starts_with(crate_name) && name.ends_with(".o") {
            found.push(path);
        }
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        n => bail!("{n} objects of {crate_name} in the library, expected one"),
    }
}

/// Keeps the entries and everything that they need. Sections that only a debugger or an unwinder
/// uses are removed. In Xen's object, functions get names that Xen can read.
fn reduce(complete: &Path, object: &Path, placement: Placement) -> Result<()> {
    let symbols = sh::output(cmd("nm", ["--defined-only", "-g", "-j"]).arg(complete))?;
    let entries: Vec<&str> = symbols.lines().filter(|s| s.starts_with(ENTRY_PREFIX)).collect();
    ensure!(!entries.is_empty(), "{} has no symbol {ENTRY_PREFIX}*", complete.display());
    let linked = object.with_extension("linked.o");
    let mut ld = Command::new("ld");
    ld.args(["-r", "--gc-sections", "-o"]).arg(&linked);
    for entry in &entries {
        ld.args(["-u", entry]);
    }
    sh::output(ld.arg(complete)).context("linking the Rust object")?;
    let mut objcopy = cmd("objcopy", ["--strip-debug", "-w"]);
    objcopy.arg(format!("--keep-global-symbol={ENTRY_PREFIX}*"));
    for section in [".eh_frame", ".rela.eh_frame", ".comment", ".llvmbc", ".llvmcmd"] {
        objcopy.args(["-R", section]);
    }
    let names = object.with_extension("names");
    if placement == Placement::PositionIndependent {
        let symbols = sh::output(cmd("nm", ["--defined-only", "-j"]).arg(&linked))?;
        fs::write(&names, symbol_names::renamed(&symbols.lines().collect::<Vec<_>>()))?;
        objcopy.arg("--redefine-syms").arg(&names);
    }
    sh::output(objcopy.arg(&linked).arg(object))?;
    fs::remove_file(linked)?;
    Ok(())
}
