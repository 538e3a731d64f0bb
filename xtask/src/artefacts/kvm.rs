// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds KVM with the driver inside: the modules for Debian's own kernel, from the source package
//! of the same version.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::artefacts::glue::Glue;
use crate::artefacts::kernel::{self, Kernel};
use crate::artefacts::rustobj;
use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::overlay::{self, Files};
use crate::tools::sh::{self, cmd};

/// The version of Linux whose KVM gets lines inserted.
const UPSTREAM: &str = "6.1";

const PACKAGES: &[&str] =
    &["bc", "bison", "build-essential", "flex", "libelf-dev", "libssl-dev", "xz-utils"];

/// KVM's directory in Linux' tree, and the driver's in it.
const KVM: &str = "arch/x86/kvm";
const GLUE: Glue = Glue { host: "kvm", dir: "arch/x86/kvm/perfctr" };

/// The modules: the one that all CPUs share, and one for each vendor's CPUs that is loaded after
/// it.
pub const COMMON: &str = "kvm.ko";
pub const AMD: &str = "kvm-amd.ko";
pub const INTEL: &str = "kvm-intel.ko";
pub const MODULES: [&str; 3] = [COMMON, AMD, INTEL];

/// Builds the modules, and returns their directory.
pub fn modules(kernel: &Kernel) -> Result<PathBuf> {
    let source = source(kernel)?;
    let files = driver(&source)?;
    let mut key = Key::new("kvm 2").text(&source.to_string_lossy());
    for (path, content) in &files {
        key = key.text(path).bytes(content);
    }
    cache::artefact("kvm", key, |dir| {
        let work = cache::root()?.join("work/kvm");
        overlay::apply(&source, &work, &files)?;
        let mut make = cmd("make", [&sh::jobs(), &format!("KERNELRELEASE={}", kernel.release)]);
        make.args([&format!("M={KVM}"), "modules"]).current_dir(&work);
        sh::logged(&mut make, &cache::log("kvm")?)?;
        for module in MODULES {
            fs::copy(work.join(KVM).join(module), dir.join(module)).context(module)?;
        }
        Ok(())
    })
}

/// Puts the modules for Debian 12's kernel into `dir`, and prints which kernel that is.
pub fn write(dir: &Path) -> Result<()> {
    let kernel = kernel::kernel()?;
    let built = modules(&kernel)?;
    fs::create_dir_all(dir)?;
    for module in MODULES {
        let place = dir.join(module);
        println!("{:>9}  {}", fs::copy(built.join(module), &place)?, place.display());
    }
    println!("for Linux {}", kernel.release);
    Ok(())
}

/// Returns what the project changes in Linux' source, as a patch.
pub fn patch() -> Result<String> {
    GLUE.patch(&source(&kernel::kernel()?)?, UPSTREAM)
}

/// Returns the directory of the kernel's source, ready to build modules for it.
fn source(kernel: &Kernel) -> Result<PathBuf> {
    let key = Key::new("linux source 1").text(&kernel.release);
    let dir = cache::artefact("source-linux", key, |dir| {
        apt::install(PACKAGES, "building KVM")?;
        let package = format!("linux-source-{UPSTREAM}");
        let debs = apt::fetch(&[&package], false, dir)?;
        apt::unpack(&debs, dir)?;
        fs::remove_dir_all(dir.join("debs"))?;
        let archive = dir.join(format!("usr/src/{package}.tar.xz"));
        let tree = dir.join("tree");
        fs::create_dir_all(&tree)?;
        let mut tar = cmd("tar", ["--strip-components=1", "--no-same-owner", "-xf"]);
        sh::output(tar.arg(&archive).arg("-C").arg(&tree))?;
        fs::remove_dir_all(dir.join("usr"))?;
        prepare(kernel, &tree)
    })?;
    Ok(dir.join("tree"))
}

/// Configures the source as the kernel is, and gives it the kernel's release.
fn prepare(kernel: &Kernel, tree: &Path) -> Result<()> {
    let headers = kernel::headers(kernel)?;
    for file in [".config", "Module.symvers"] {
        fs::copy(headers.join(file), tree.join(file)).context(file)?;
    }
    for target in ["olddefconfig", "modules_prepare"] {
        let mut make = cmd("make", [&sh::jobs(), target]);
        sh::logged(make.current_dir(tree), &cache::log("kvm-source")?)?;
    }
    let release = format!("#define UTS_RELEASE \"{}\"\n", kernel.release);
    fs::write(tree.join("include/generated/utsrelease.h"), release)?;
    Ok(fs::write(tree.join("include/config/kernel.release"), format!("{}\n", kernel.release))?)
}

/// Returns every file of Linux' tree that the driver adds or changes.
fn driver(source: &Path) -> Result<Files> {
    let mut files = GLUE.files()?;
    files.insert(format!("{}/perfctr_core.o_shipped", GLUE.dir), fs::read(rustobj::kvm()?)?);
    files.extend(GLUE.insertions(source, UPSTREAM)?);
    Ok(files)
}
