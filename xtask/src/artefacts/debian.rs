// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A whole Debian system, as a guest has it, to install packages in: systemd, apt, DKMS and the
//! headers of the testbed's kernel.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::artefacts::kernel::Kernel;
use crate::tools::apt;
use crate::tools::cache::{self, Key};

/// What is in it beside what is essential, and apt.
const PACKAGES: &[&str] =
    &["cpio", "dkms", "gcc", "kmod", "libc6-dev", "make", "pkg-config", "systemd-sysv", "udev"];

/// The system.
pub struct System {
    /// All its files.
    pub archive: PathBuf,
    /// Another kernel's release.
    pub other_kernel: String,
    /// The packages with that kernel's headers, which are not installed.
    pub other_headers: Vec<PathBuf>,
}

/// Makes the system for `kernel`.
pub fn system(kernel: &Kernel) -> Result<System> {
    let key = Key::new("debian 1").text(&PACKAGES.join(" ")).text(&kernel.release);
    let dir = cache::artefact("debian", key, |dir| build(kernel, dir))?;
    let headers = cache::files(&dir.join("debs"))?.into_iter().map(|(_, path)| path);
    Ok(System {
        archive: dir.join("root.tar"),
        other_kernel: fs::read_to_string(dir.join("other-kernel"))?,
        other_headers: headers
            .filter(|path| path.extension().is_some_and(|e| e == "deb"))
            .collect(),
    })
}

fn build(kernel: &Kernel, dir: &Path) -> Result<()> {
    let headers = headers(&kernel.release);
    let packages: Vec<&str> = PACKAGES.iter().copied().chain([headers.as_str()]).collect();
    // As where the kernel itself is installed: DKMS would leave these indices behind otherwise.
    let hook = format!("chroot \"$1\" depmod {}", kernel.release);
    apt::system(&packages, &hook, &dir.join("root.tar"))?;
    let other = other_kernel(&kernel.release)?;
    let headers = self::headers(&other);
    let common = apt::depends(&headers)?.into_iter().find(|name| name.ends_with("-common"));
    let common = common.with_context(|| format!("{headers} needs no common headers"))?;
    apt::fetch(&[&headers, &common], false, dir)?;
    Ok(fs::write(dir.join("other-kernel"), other)?)
}

fn headers(release: &str) -> String {
    format!("linux-headers-{release}")
}

/// The newest other kernel of the same version that Debian still has headers of.
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
