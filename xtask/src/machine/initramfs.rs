// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes the part of the initramfs that belongs to one run, which `testbed/init` reads.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, Result};

use super::spec::Spec;
use crate::artefacts::guest;
use crate::artefacts::kernel::{self, Kernel};
use crate::artefacts::rootfs::{self, BOOT_MODULES, XEN_MODULES};
use crate::tools::cpio::Archive;

/// The environment of every command.
const ENVIRONMENT: [&str; 4] = [
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:.",
    "HOME=/root",
    "TERM=dumb",
    "LANG=C.UTF-8",
];

/// The unit that runs our init as a service of a whole system. Debian's script for Xen's tools,
/// where there is one, mounts the file system of these tools first.
const SERVICE: &str = "[Unit]\nDescription=The testbed's command\nAfter=xen.service\n\
    [Service]\nExecStart=/usr/sbin/testbed-init\nStandardOutput=journal+console\n";

/// Makes the guest's root file system together with the run's part, for a machine whose kernel is
/// not started by QEMU.
pub fn complete(spec: &Spec) -> Result<Vec<u8>> {
    let layer = layer(spec, &kernel::of(spec.linux.as_deref())?)?;
    Ok([fs::read(rootfs::rootfs()?)?, layer].concat())
}

/// Makes an archive to be unpacked over the guest's root file system.
pub fn layer(spec: &Spec, kernel: &Kernel) -> Result<Vec<u8>> {
    let mut archive = Archive::new(BufWriter::new(Vec::new()));
    let init = fs::read(guest::init()?)?;
    if spec.system.is_some() {
        archive.file("usr/sbin/testbed-init", 0o755, &init)?;
        let units = "etc/systemd/system";
        archive.file(&format!("{units}/testbed.service"), 0o644, SERVICE.as_bytes())?;
        let wanted = format!("{units}/multi-user.target.wants/testbed.service");
        archive.symlink(&wanted, b"../testbed.service")?;
    } else {
        archive.file("init", 0o755, &init)?;
    }
    let xen_modules = if spec.topology.xen.is_some() { XEN_MODULES } else { &[] };
    let mut modules = boot_modules(&mut archive, kernel, xen_modules)?;
    if spec.module {
        let module = guest::module(kernel, spec.purpose())?;
        archive.file("usr/lib/perfctr/perfctr.ko", 0o644, &fs::read(module)?)?;
        modules.push(format!("/lib/perfctr/perfctr.ko {}", spec.module_args));
    }
    for dir in &spec.copy {
        archive.tree("work", dir)?;
    }
    for (path, name) in &spec.files {
        let name = name.trim_start_matches('/');
        if path.is_dir() {
            archive.tree(name, path)?;
        } else {
            let content = fs::read(path).with_context(|| path.display().to_string())?;
            archive.file(name, 0o755, &content)?;
        }
    }
    let mut environment: Vec<OsString> = ENVIRONMENT.map(OsString::from).into();
    environment.extend_from_slice(&spec.environment);
    archive.file("etc/testbed/modules", 0o644, modules.join("\n").as_bytes())?;
    archive.file("etc/testbed/argv", 0o644, &nul_ended(&spec.command))?;
    archive.file("etc/testbed/environment", 0o644, &nul_ended(&environment))?;
    Ok(archive.finish()?.into_inner()?)
}

/// Returns an archive that makes the first program write to I/O ports, because there is no virtio
/// device.
pub fn io_ports() -> Result<Vec<u8>> {
    let mut archive = Archive::new(BufWriter::new(Vec::new()));
    archive.file("etc/testbed/io-ports", 0o644, b"")?;
    Ok(archive.finish()?.into_inner()?)
}

/// Adds the kernel's modules that every machine needs, and `further` ones. Returns the modules to
/// load.
pub fn boot_modules(
    archive: &mut Archive<impl Write>,
    kernel: &Kernel,
    further: &[&str],
) -> Result<Vec<String>> {
    let mut modules = Vec::new();
    for module in BOOT_MODULES.iter().chain(further) {
        if let Some(content) = kernel.module(module)? {
            let path = format!("/lib/modules/{}/kernel/{module}", kernel.release);
            archive.file(&format!("usr{path}"), 0o644, &content)?;
            modules.push(path);
        }
    }
    Ok(modules)
}

/// Returns words as the init reads them, each with a NUL at its end.
pub fn nul_ended(words: &[impl AsRef<OsStr>]) -> Vec<u8> {
    let bytes = |word| OsStr::as_bytes(word).iter().copied().chain([0]);
    words.iter().map(AsRef::as_ref).flat_map(bytes).collect()
}
