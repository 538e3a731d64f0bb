// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Builds KVM with the driver inside: the modules for a kernel of Debian's, from the source package
//! of the same version.
//!
//! Modules for this machine's release of Debian are built in the whole source, which is configured
//! as the kernel is. Those for another release are built in a system of that release, in whose
//! headers KVM's directory is put.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::artefacts::glue::Glue;
use crate::artefacts::kernel::{self, Kernel};
use crate::artefacts::rustobj;
use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::chroot::Chroot;
use crate::tools::overlay::{self, Files};
use crate::tools::sh::{self, cmd};

const PACKAGES: &[&str] =
    &["bc", "bison", "build-essential", "flex", "libelf-dev", "libssl-dev", "xz-utils"];

/// KVM's directory in Linux' tree, and the driver's in it.
const KVM: &str = "arch/x86/kvm";
const GLUE: Glue = Glue { host: "kvm", dir: "arch/x86/kvm/perfctr" };

/// What KVM is built from beside the kernel's headers.
const SOURCES: [&str; 3] = [KVM, "arch/x86/include/asm/kvm_host.h", "virt/kvm"];

/// The modules: the one that all CPUs share, and one for each vendor's CPUs that is loaded after
/// it.
pub const COMMON: &str = "kvm.ko";
pub const AMD: &str = "kvm-amd.ko";
pub const INTEL: &str = "kvm-intel.ko";
pub const MODULES: [&str; 3] = [COMMON, AMD, INTEL];

/// Returns the versions of Linux whose KVM gets lines inserted.
pub fn releases() -> Result<Vec<String>> {
    GLUE.releases()
}

/// Builds the modules, and returns their directory.
pub fn modules(kernel: &Kernel) -> Result<PathBuf> {
    let source = source(kernel)?;
    let files = driver(kernel, &source)?;
    let mut key = Key::new("kvm 2").text(&source.to_string_lossy());
    for (path, content) in &files {
        key = key.text(path).bytes(content);
    }
    let name = named("kvm", kernel);
    cache::artefact(&name, key, |dir| match &kernel.system {
        Some(system) => build_in(system, kernel, &source, &files, dir),
        None => build(kernel, &source, &files, dir),
    })
}

/// Returns the name of what is made for this kernel.
fn named(what: &str, kernel: &Kernel) -> String {
    if kernel.version == kernel::USUAL {
        what.to_owned()
    } else {
        format!("{what}-{}", kernel.version)
    }
}

/// Builds the modules in the kernel's whole source, and copies them into `dir`.
fn build(kernel: &Kernel, source: &Path, files: &Files, dir: &Path) -> Result<()> {
    let work = cache::scratch("kvm")?;
    overlay::apply(source, &work, files)?;
    let mut make = cmd("make", [&sh::jobs(), &format!("KERNELRELEASE={}", kernel.release)]);
    make.args([&format!("M={KVM}"), "modules"]).current_dir(&work);
    sh::logged(&mut make, &cache::log("kvm")?)?;
    for module in MODULES {
        fs::copy(work.join(KVM).join(module), dir.join(module)).context(module)?;
    }
    Ok(())
}

/// Builds the modules in the headers of another release's system, and copies them into `dir`. The
/// system is kept, so that the next build only compiles the affected files.
fn build_in(
    system: &Path,
    kernel: &Kernel,
    source: &Path,
    files: &Files,
    dir: &Path,
) -> Result<()> {
    let work = cache::root()?.join("work");
    let tree = work.join(named("kvm-tree", kernel));
    overlay::apply(source, &tree, files)?;
    let debian = Chroot::kept(system, &work.join(named("kvm", kernel)))?;
    // The kernel's own directory of headers refers to the directory that all flavours share.
    let shared = debian.run("echo /usr/src/linux-headers-*-common")?;
    let shared = shared.trim();
    sh::as_root(cmd("cp", ["-a"]).arg(tree.join(".")).arg(debian.path(shared)))?;
    debian.run(&format!(
        "make {} -C /lib/modules/{}/build M={shared}/{KVM} modules",
        sh::jobs(),
        kernel.release
    ))?;
    for module in MODULES {
        debian.get(&format!("{shared}/{KVM}/{module}"), &dir.join(module))?;
    }
    Ok(())
}

/// Puts the modules for a version's kernel, or for Debian 12's, into `dir`, and prints which kernel
/// that is.
pub fn write(version: Option<&str>, dir: &Path) -> Result<()> {
    let kernel = kernel::of(version)?;
    let built = modules(&kernel)?;
    fs::create_dir_all(dir)?;
    for module in MODULES {
        let place = dir.join(module);
        println!("{:>9}  {}", fs::copy(built.join(module), &place)?, place.display());
    }
    println!("for Linux {}", kernel.release);
    Ok(())
}

/// Returns the project's changes to the source of a version of Linux, or of Debian 12's, as a
/// patch.
pub fn patch(version: Option<&str>) -> Result<String> {
    let kernel = kernel::of(version)?;
    GLUE.patch(&source(&kernel)?, &kernel.version)
}

/// Returns the directory of the kernel's source, ready to build modules for it.
fn source(kernel: &Kernel) -> Result<PathBuf> {
    let key = Key::new("linux source 1").text(&kernel.release);
    let dir = cache::artefact(&named("source-linux", kernel), key, |dir| {
        let archive = kernel::fetch_source(kernel, dir)?;
        let tree = dir.join("tree");
        fs::create_dir_all(&tree)?;
        let mut tar = cmd("tar", ["--strip-components=1", "--no-same-owner", "-xf"]);
        tar.arg(&archive).arg("-C").arg(&tree);
        if kernel.system.is_none() {
            apt::install(PACKAGES, "building KVM")?;
            sh::output(&mut tar)?;
            check_version(kernel, &fs::read_to_string(tree.join("Makefile"))?)?;
            prepare(kernel, &tree)?;
        } else {
            apt::install(&["xz-utils"], "unpacking sources")?;
            let part = |part: &str| format!("linux-source-{}/{part}", kernel.version);
            tar.args(["Makefile"].iter().chain(&SOURCES).map(|name| part(name)));
            sh::output(&mut tar)?;
            // The headers have a makefile of their own.
            let makefile = tree.join("Makefile");
            check_version(kernel, &fs::read_to_string(&makefile)?)?;
            fs::remove_file(makefile)?;
        }
        Ok(fs::remove_dir_all(dir.join("usr"))?)
    })?;
    Ok(dir.join("tree"))
}

/// Fails unless the source with this makefile has the version of the kernel. A mirror may have a
/// later one by now.
fn check_version(kernel: &Kernel, makefile: &str) -> Result<()> {
    let value = |name: &str| {
        let line = makefile.lines().find_map(|line| line.strip_prefix(name)?.split_once('='));
        line.map(|(_, value)| value.trim().to_owned()).context(name.to_owned())
    };
    let version = [value("VERSION")?, value("PATCHLEVEL")?, value("SUBLEVEL")?].join(".");
    let package = kernel.package_version()?;
    ensure!(
        package.strip_prefix(&version).is_some_and(|rest| rest.starts_with('-')),
        "the source is {version}, but the kernel is {package}; remove the kernel from the cache"
    );
    Ok(())
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
fn driver(kernel: &Kernel, source: &Path) -> Result<Files> {
    let mut files = GLUE.files()?;
    files.insert(format!("{}/perfctr_core.o_shipped", GLUE.dir), fs::read(rustobj::kvm()?)?);
    files.extend(GLUE.insertions(source, &kernel.version)?);
    Ok(files)
}
