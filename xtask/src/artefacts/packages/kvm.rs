// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Stages KVM's modules with the driver, which get a package for each kernel, and describes these
//! packages to debhelper.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::write;
use crate::artefacts::kernel::{self, Kernel};
use crate::artefacts::kvm;
use crate::tools::cache;
use crate::tools::sh::{self, cmd};

/// The versions of Linux whose kernels get packages in a release: those of Debian's stable
/// releases.
pub const VERSIONS: &[&str] = &[kernel::USUAL, "6.12"];

/// The folder with the files that are the same for all kernels: the files of the hosts' package,
/// and in `modules` the descriptions of the modules' packages. In them `#RELEASE#` stands for the
/// kernel's release, and `#LINUX#` for the version of its package.
const FOLDER: &str = "packaging/kvm";

/// The files of the hosts' package that debhelper has no place for: (in the folder, below `/`).
const FILES: [(&str, &str); 3] = [
    ("domains", "etc/perfctr/domains"),
    ("kernel-hook", "etc/kernel/postinst.d/perfctr-kvm"),
    ("perfctr-domains.service", "lib/systemd/system/perfctr-domains.service"),
];

/// The page of the book about hosts, which is in the hosts' package.
const PAGE: &str = "docs/hosts.md";

/// Returns the name of the package with the modules for a kernel of this release.
pub fn package(release: &str) -> String {
    format!("perfctr-kvm-modules-{release}")
}

/// Returns the directory of a kernel's modules in which those with the driver are, below `/`.
/// Depmod prefers what is in `updates` to the kernel's own modules.
pub fn directory(release: &str) -> String {
    format!("lib/modules/{release}/updates/perfctr")
}

/// Returns the kernels of these versions of Linux.
pub fn kernels(versions: &[&str]) -> Result<Vec<Kernel>> {
    versions.iter().map(|version| kernel::of(Some(version))).collect()
}

/// Puts the files of the hosts' package, and the modules for these kernels, into `stage`, at the
/// places that they will have below `/`.
pub fn stage(kernels: &[Kernel], stage: &Path) -> Result<()> {
    let folder = sh::project().join(FOLDER);
    for (name, place) in FILES {
        let to = stage.join(place);
        fs::create_dir_all(to.parent().context("a file lies in a directory")?)?;
        // The copy keeps the permissions, since one of the files is executed.
        fs::copy(folder.join(name), to).context(name)?;
    }
    write(&stage.join("hosts.md"), &fs::read(sh::project().join(PAGE))?)?;
    for kernel in kernels {
        let built = kvm::modules(kernel)?;
        let place = stage.join(directory(&kernel.release));
        fs::create_dir_all(&place)?;
        for module in kvm::MODULES {
            // debhelper leaves modules as they are, with descriptions for debuggers.
            let mut strip = cmd("strip", ["--strip-debug", "-o"]);
            sh::output(strip.arg(place.join(module)).arg(built.join(module)))?;
        }
        let patch = stage.join(patch_folder(&kernel.release)).join("linux.patch");
        write(&patch, kvm::patch(Some(&kernel.version))?.as_bytes())?;
    }
    Ok(())
}

/// Returns the directory below `stage` with a kernel's patch. Every package calls it the same.
fn patch_folder(release: &str) -> String {
    format!("patches/{release}")
}

/// Adds the packages for these kernels to the folder `debian`.
pub fn describe(kernels: &[Kernel], debian: &Path) -> Result<()> {
    let control = debian.join("control");
    let mut packages = fs::read_to_string(&control)?;
    for kernel in kernels {
        let (release, linux) = (&kernel.release, kernel.package_version()?);
        let package = package(release);
        for (name, path) in cache::files(&sh::project().join(FOLDER).join("modules"))? {
            let text = fill_in(&fs::read_to_string(&path)?, release, &linux)
                .with_context(|| path.display().to_string())?;
            if name == "control" {
                packages += &text;
            } else {
                fs::write(debian.join(format!("{package}.{name}")), text)?;
            }
        }
        let install = format!("{}\n", directory(release));
        fs::write(debian.join(format!("{package}.install")), install)?;
        let docs = format!("stage/{}/linux.patch\n", patch_folder(release));
        fs::write(debian.join(format!("{package}.docs")), docs)?;
    }
    Ok(fs::write(control, packages)?)
}

/// Fills in a text for one kernel.
fn fill_in(text: &str, release: &str, linux: &str) -> Result<String> {
    let text = text.replace("#RELEASE#", release).replace("#LINUX#", linux);
    let left = text.replace("#DEBHELPER#", "").lines().find_map(|line| {
        let (_, rest) = line.split_once('#')?;
        let (name, _) = rest.split_once('#')?;
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase());
        is_name.then(|| name.to_owned())
    });
    ensure!(left.is_none(), "expected #RELEASE# or #LINUX#, found #{}#", left.unwrap_or_default());
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(name: &str) -> String {
        let path = sh::project().join(FOLDER).join("modules").join(name);
        fill_in(&fs::read_to_string(path).unwrap(), "6.1.0-7-amd64", "6.1.20-1").unwrap()
    }

    #[test]
    fn modules_are_for_one_version_of_one_kernel() {
        let control = template("control");
        let name = format!("\nPackage: {}\n", package("6.1.0-7-amd64"));
        assert!(control.starts_with(&name), "{control}");
        let needed = "linux-image-6.1.0-7-amd64 (= 6.1.20-1) | \
                      linux-image-6.1.0-7-amd64-unsigned (= 6.1.20-1)\n";
        assert!(control.contains(needed), "{control}");
        assert!(template("postrm").contains("\n#DEBHELPER#\n"));
    }

    #[test]
    fn nothing_is_left_to_fill_in() {
        let error = fill_in("# A\nfor #RELEASE# and #KERNEL#\n", "6.1", "6").unwrap_err();
        assert_eq!(error.to_string(), "expected #RELEASE# or #LINUX#, found #KERNEL#");
        fill_in("# 1 # 2 #\n", "6.1", "6").unwrap();
    }

    #[test]
    fn the_hook_looks_where_the_modules_are() {
        let hook = fs::read_to_string(sh::project().join(FOLDER).join("kernel-hook")).unwrap();
        let module = format!("/{}/{}", directory("$release"), kvm::COMMON);
        assert!(hook.contains(&module), "no {module} in\n{hook}");
        assert!(hook.contains(&package("$release")), "{hook}");
    }
}
