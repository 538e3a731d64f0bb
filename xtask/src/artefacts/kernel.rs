// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The guest's kernel: Debian's image, unmodified and not installed on this machine, and the
//! headers to build our module against.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::sh::{self, cmd};

/// A kernel image with its modules.
pub struct Kernel {
    /// Its release, such as `6.1.0-30-amd64`.
    pub release: String,
    /// The kernel as an ELF file, which both Xen and QEMU boot. It is what the compressed boot
    /// image contains; unpacking it here is much quicker than in an emulated machine.
    pub image: PathBuf,
    /// The directory `/lib/modules/RELEASE/kernel` of its package.
    pub modules: PathBuf,
}

/// Debian's plain amd64 kernel. The smaller cloud flavour lacks `CONFIG_XEN_DOM0`.
pub fn kernel() -> Result<Kernel> {
    let dir = cache::artefact("linux", Key::new("linux 2"), |dir| {
        apt::install(&["xz-utils"], "unpacking the kernel")?;
        let depends = apt::depends("linux-image-amd64")?;
        let image = depends
            .iter()
            .find(|name| name.starts_with("linux-image-"))
            .context("linux-image-amd64 names no kernel image")?;
        let debs = apt::fetch(&[image.as_str()], false, dir)?;
        apt::unpack(&debs, dir)?;
        fs::remove_dir_all(dir.join("debs"))?;
        let release = image.trim_start_matches("linux-image-");
        decompress(&dir.join(format!("boot/vmlinuz-{release}")), &dir.join("vmlinux"))?;
        fs::write(dir.join("release"), release)?;
        Ok(())
    })?;
    let release = fs::read_to_string(dir.join("release"))?;
    Ok(Kernel {
        image: dir.join("vmlinux"),
        modules: dir.join(format!("lib/modules/{release}/kernel")),
        release,
    })
}

/// Takes the compressed kernel out of a boot image, by the setup header that the Linux x86 boot
/// protocol describes.
fn decompress(image: &Path, vmlinux: &Path) -> Result<()> {
    let bytes = fs::read(image)?;
    let word = |at: usize| -> Result<usize> {
        let field = bytes.get(at..at + 4).context("the boot image is too short")?;
        Ok(u32::from_le_bytes(field.try_into()?) as usize)
    };
    let setup_sectors = usize::from(bytes[0x1f1]);
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    // The payload ends with the unpacked size, which is not part of the xz stream.
    let end = start + word(0x24c)? - 4;
    let payload = bytes.get(start..end).context("the boot image has no payload")?;
    let packed = vmlinux.with_extension("xz");
    fs::write(&packed, payload)?;
    sh::output(&mut cmd("xz", [OsStr::new("-d"), packed.as_os_str()])).map(drop)
}

/// Installs the headers that match `kernel` and returns their directory.
pub fn headers(kernel: &Kernel) -> Result<PathBuf> {
    let package = format!("linux-headers-{}", kernel.release);
    apt::install(&[&package, "make", "gcc", "libc6-dev"], "building the kernel module")?;
    Ok(Path::new("/usr/src").join(package))
}
