// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The guest's kernel: Debian's image, unmodified and not installed on this machine, and the
//! headers to build our module against.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::apt;
use crate::cache::{self, Key};

/// A kernel image with its modules.
pub struct Kernel {
    /// Its release, such as `6.1.0-30-amd64`.
    pub release: String,
    /// The boot image.
    pub image: PathBuf,
    /// The directory `/lib/modules/RELEASE/kernel` of its package.
    pub modules: PathBuf,
}

/// Debian's plain amd64 kernel. The smaller cloud flavour lacks `CONFIG_XEN_DOM0`.
pub fn kernel() -> Result<Kernel> {
    let dir = cache::artefact("linux", Key::new("linux 1"), |dir| {
        let depends = apt::depends("linux-image-amd64")?;
        let image = depends
            .iter()
            .find(|name| name.starts_with("linux-image-"))
            .context("linux-image-amd64 names no kernel image")?;
        let debs = apt::fetch(&[image.as_str()], false, dir)?;
        apt::unpack(&debs, dir)?;
        fs::remove_dir_all(dir.join("debs"))?;
        fs::write(dir.join("release"), image.trim_start_matches("linux-image-"))?;
        Ok(())
    })?;
    let release = fs::read_to_string(dir.join("release"))?;
    Ok(Kernel {
        image: dir.join(format!("boot/vmlinuz-{release}")),
        modules: dir.join(format!("lib/modules/{release}/kernel")),
        release,
    })
}

/// Installs the headers that match `kernel` and returns their directory.
pub fn headers(kernel: &Kernel) -> Result<PathBuf> {
    let package = format!("linux-headers-{}", kernel.release);
    apt::install(&[&package, "make", "gcc", "libc6-dev"], "building the kernel module")?;
    Ok(Path::new("/usr/src").join(package))
}
