// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes whole Debian systems. Some are guests and hosts in which packages are installed, with
//! systemd, apt, DKMS and the headers of the testbed's kernel. Others are systems in which this
//! project is built.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::artefacts::kernel::Kernel;
use crate::artefacts::xen;
use crate::tools::apt;
use crate::tools::cache::{self, Key};

/// The packages of a guest's system, beside the essential ones and apt.
const PACKAGES: &[&str] = &[
    "cpio",
    "dkms",
    "gcc",
    "kmod",
    "libc6-dev",
    "make",
    "papi-tools",
    "pkg-config",
    "python3",
    "systemd-sysv",
    "udev",
];

/// The packages that build packages. `packaging/debian/control` names those of them that it needs.
pub const PACKAGING: &[&str] =
    &["build-essential", "debhelper", "dh-dkms", "dh-python", "dpkg-dev", "help2man"];

/// The packages that a host has in addition: a boot menu, Debian's own Xen in it, and Xen's tools.
/// It has a kernel, too.
const HOST: &[&str] = &["grub2-common", "xen-hypervisor-4.17-amd64", "xen-utils-4.17"];

/// The packages of a host of virtual machines, beside its kernel: those that run the machines, and
/// those that sign a kernel's modules.
const KVM_HOST: &[&str] = &[
    "cpio",
    "kmod",
    "libvirt-clients",
    "libvirt-daemon-driver-qemu",
    "libvirt-daemon-system",
    "openssl",
    "qemu-system-x86",
    "systemd-sysv",
    "udev",
];

/// Returns an archive of all files of a guest's system for `kernel`.
pub fn guest(kernel: &Kernel) -> Result<PathBuf> {
    system("debian", kernel, &[])
}

/// Returns an archive of all files of a host's system.
pub fn host(kernel: &Kernel) -> Result<PathBuf> {
    let image = format!("linux-image-{}", kernel.release);
    system("debian-host", kernel, &[HOST, &[&image]].concat())
}

/// Returns an archive of all files of a system that is a host of virtual machines.
pub fn kvm_host(kernel: &Kernel) -> Result<PathBuf> {
    let image = format!("linux-image-{}", kernel.release);
    let kbuild = format!("linux-kbuild-{}", kernel.version);
    let packages = [KVM_HOST, &[&kbuild, &image]].concat();
    let key = Key::new("kvm host 1").text(&packages.join(" "));
    let dir = cache::artefact("debian-kvm", key, |dir| {
        apt::system(&packages, "true", &dir.join("root.tar"))
    })?;
    Ok(dir.join("root.tar"))
}

/// Returns an archive of all files of a system that makes packages of what was built elsewhere.
pub fn packager() -> Result<PathBuf> {
    let tools = [PACKAGING, &["lintian"]].concat();
    let key = Key::new("packager 1").text(&tools.join(" "));
    let dir = cache::artefact("debian-packager", key, |dir| {
        apt::system(&tools, "true", &dir.join("root.tar"))
    })?;
    Ok(dir.join("root.tar"))
}

/// Returns an archive of all files of a system that builds the packages with Debian's own tools.
pub fn builder() -> Result<PathBuf> {
    let rust = ["cargo-web", "rust-web-src", "rustc-web"];
    let tools = [PACKAGING, xen::PACKAGES, &rust, &["lintian", "xz-utils"]].concat();
    let key = Key::new("builder 1").text(&tools.join(" "));
    let dir = cache::artefact("debian-builder", key, |dir| {
        apt::system(&tools, "true", &dir.join("root.tar"))
    })?;
    Ok(dir.join("root.tar"))
}

/// Returns an archive of all files of a fresh system of the release after the testbed's. It has git
/// and what rustup needs: a linker, and certificates by which to trust servers.
pub fn newer() -> Result<PathBuf> {
    let packages = ["ca-certificates", "gcc", "git", "libc6-dev"];
    let key = Key::new("newer 1").text(apt::NEWER).text(&packages.join(" "));
    let dir = cache::artefact("debian-newer", key, |dir| {
        apt::system_of(&[apt::NEWER.to_owned()], &packages, "true", &dir.join("root.tar"))
    })?;
    Ok(dir.join("root.tar"))
}

fn system(name: &str, kernel: &Kernel, more: &[&str]) -> Result<PathBuf> {
    let headers = headers(&kernel.release);
    let packages = [PACKAGES, more, &[&headers]].concat();
    let key = Key::new("debian 2").text(&packages.join(" "));
    // depmod makes the indices as it does where the kernel itself is installed. Otherwise DKMS
    // would leave them behind.
    let hook = format!("chroot \"$1\" depmod {}", kernel.release);
    let dir =
        cache::artefact(name, key, |dir| apt::system(&packages, &hook, &dir.join("root.tar")))?;
    Ok(dir.join("root.tar"))
}

/// Another kernel of the testbed's release.
pub struct Other {
    /// Its release.
    pub release: String,
    /// The packages with its headers.
    pub headers: Vec<PathBuf>,
}

/// Returns the newest kernel of the same version as `kernel` that Debian has beside it.
pub fn other(kernel: &Kernel) -> Result<Other> {
    let key = Key::new("other kernel 1").text(&kernel.release);
    let dir = cache::artefact("other-kernel", key, |dir| {
        let other = other_kernel(&kernel.release)?;
        let headers = headers(&other);
        let common = apt::depends(&headers)?.into_iter().find(|name| name.ends_with("-common"));
        let common = common.with_context(|| format!("{headers} needs no common headers"))?;
        apt::fetch(&[&headers, &common], false, dir)?;
        Ok(fs::write(dir.join("release"), other)?)
    })?;
    let mut headers: Vec<PathBuf> =
        cache::files(&dir.join("debs"))?.into_iter().map(|(_, path)| path).collect();
    headers.retain(|path| path.extension().is_some_and(|kind| kind == "deb"));
    Ok(Other { release: fs::read_to_string(dir.join("release"))?, headers })
}

fn headers(release: &str) -> String {
    format!("linux-headers-{release}")
}

/// Returns the release of the newest other kernel of the same version that Debian still has headers
/// of.
fn other_kernel(release: &str) -> Result<String> {
    let (version, _) = release.split_once('-').context("a release has a number")?;
    let prefix = headers(&format!("{version}-"));
    let number = |name: &str| -> Option<u32> {
        name.strip_prefix(&prefix)?.strip_suffix("-amd64")?.parse().ok()
    };
    let names = apt::names(&prefix)?;
    let others = names.iter().filter(|name| **name != headers(release));
    let newest = others.filter_map(|name| Some((number(name)?, name))).max();
    let (_, name) = newest.with_context(|| format!("no headers {prefix}* but {release}'s"))?;
    Ok(name.trim_start_matches("linux-headers-").to_owned())
}
