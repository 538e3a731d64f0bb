// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! KVM with the driver inside: the modules of Debian's own kernel, which they are loaded into,
//! built from the source package of the same version.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::artefacts::kernel::{self, Kernel};
use crate::artefacts::rustobj;
use crate::tools::cache::{self, Key};
use crate::tools::overlay::{self, Files};
use crate::tools::sh::{self, cmd};
use crate::tools::{apt, hooks};

/// The version of Linux whose KVM has lines inserted.
const UPSTREAM: &str = "6.1";

const PACKAGES: &[&str] =
    &["bc", "bison", "build-essential", "flex", "libelf-dev", "libssl-dev", "xz-utils"];

/// Where KVM is in Linux' tree, and the driver in it.
const KVM: &str = "arch/x86/kvm";
const DRIVER_DIR: &str = "arch/x86/kvm/perfctr";
/// The files of the glue directory that describe the insertions into each version.
const HOOKS: &str = "hooks";

/// The modules, in the order in which they are loaded.
pub const MODULES: [&str; 2] = ["kvm.ko", "kvm-amd.ko"];

/// The directory with the modules.
pub fn modules(kernel: &Kernel) -> Result<PathBuf> {
    let source = source(kernel)?;
    let files = driver(&source)?;
    let mut key = Key::new("kvm 1").text(&source.to_string_lossy());
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

/// Puts the modules for Debian 12's kernel into `dir`, and says which kernel that is.
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

/// What the project changes in Linux' source, as a patch.
pub fn patch() -> Result<String> {
    let source = source(&kernel::kernel()?)?;
    let mut files = glue()?;
    files.extend(hooked(&source)?);
    let scratch = cache::root()?.join("work");
    fs::create_dir_all(&scratch)?;
    overlay::diff(&source, &files, &scratch)
}

/// The kernel's source, ready to build modules for it.
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

/// Configures it as the kernel is, and says that it is of that release.
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

/// Every file of Linux' tree that the driver adds or changes.
fn driver(source: &Path) -> Result<Files> {
    let mut files = glue()?;
    files.insert(format!("{DRIVER_DIR}/perfctr_core.o_shipped"), fs::read(rustobj::kvm()?)?);
    files.extend(hooked(source)?);
    Ok(files)
}

fn glue_dir() -> PathBuf {
    sh::project().join("hv-driver/glue/kvm")
}

/// The driver's own files, in C.
fn glue() -> Result<Files> {
    let mut files = overlay::read(&glue_dir(), DRIVER_DIR)?;
    files.retain(|name, _| !name.starts_with(&format!("{DRIVER_DIR}/{HOOKS}/")));
    files.extend(rustobj::hypervisor_headers(DRIVER_DIR)?);
    Ok(files)
}

/// Linux' files that call it.
fn hooked(source: &Path) -> Result<Files> {
    hooks::apply(source, &glue_dir().join(HOOKS).join(format!("linux-{UPSTREAM}.toml")))
}
