// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Prepares the software that a machine boots, in any emulator.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::hardware::{LINUX_ARGS, linux_args};
use super::profile::Emulator;
use super::spec::Spec;
use super::{host, initramfs};
use crate::artefacts::kernel::{self, Kernel};
use crate::artefacts::{rootfs, xen};

/// What a machine boots, beside the emulator's own firmware.
pub struct Software {
    /// The hypervisor, with its arguments.
    pub xen: Option<(PathBuf, String)>,
    /// The kernel, and its image as a boot loader takes it.
    pub kernel: Kernel,
    /// Its arguments.
    pub linux: String,
    /// The size of its initramfs, which is the file `initrd` of the run's directory.
    pub files_mib: u64,
}

impl Software {
    /// Builds or finds what is booted, and writes the initramfs.
    pub fn write(spec: &Spec, dir: &Path) -> Result<Self> {
        let topology = &spec.topology;
        let mut kernel = kernel::of(spec.linux.as_deref())?;
        let mut layer = initramfs::layer(spec, &kernel)?;
        let mut linux = linux_args(spec);
        if let Some(host) = &topology.kvm {
            let mut guest = fs::read(rootfs::rootfs()?)?;
            guest.extend(&layer);
            layer = host::layer(host, spec, &kernel, &guest, layer.len() as u64 >> 20)?;
            kernel = host::kernel(host)?;
            linux = format!("{LINUX_ARGS} {}", host.linux);
        }
        if topology.emulator == Emulator::Bochs {
            layer.extend(initramfs::io_ports()?);
        }
        let mut initrd = File::create(dir.join("initrd"))?;
        let mut base = File::open(rootfs::rootfs()?)?;
        std::io::copy(&mut base, &mut initrd)?;
        let mut files = layer.len() as u64;
        if let Some(system) = &spec.system {
            files += std::io::copy(&mut File::open(system)?, &mut initrd)?;
        }
        initrd.write_all(&layer)?;
        let xen = topology.xen.as_ref().map(|hypervisor| {
            let image = match &hypervisor.image {
                Some(image) => image.clone(),
                None => xen::xen(hypervisor.flavour, hypervisor.release.as_deref())?,
            };
            let args = format!("console=com1 com1=115200,8n1 noreboot {}", hypervisor.args);
            Ok::<_, anyhow::Error>((image, args))
        });
        Ok(Self { xen: xen.transpose()?, kernel, linux, files_mib: files >> 20 })
    }
}
