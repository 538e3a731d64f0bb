// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Reads what a machine is made of, as the files in `xtask/profiles` describe it.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::artefacts::xen::Flavour;
use crate::tools::{cache, sh};

/// What a machine is emulated by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Emulator {
    /// QEMU's software emulation, which has SVM.
    #[default]
    Qemu,
    /// Bochs, which has VMX.
    Bochs,
}

impl Emulator {
    /// Returns the factor by which things may take longer than in QEMU, since one thread emulates
    /// all of Bochs' CPUs.
    pub fn patience(self) -> u32 {
        match self {
            Self::Qemu => 1,
            Self::Bochs => 4,
        }
    }
}

/// A machine, described by a file in `xtask/profiles`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// What it is emulated by.
    #[serde(default)]
    pub emulator: Emulator,
    /// Number of physical CPUs.
    pub cpus: u32,
    /// The CPU model with its properties, in the emulator's words.
    pub cpu: String,
    /// The properties in which the last CPU differs, in QEMU's words; none by default.
    pub last_cpu: Option<String>,
    /// Memory in MiB, to which room for the copied files is added.
    pub memory_mib: u64,
    /// The version of the guest's kernel, if it is not Debian 12's.
    pub linux_version: Option<String>,
    /// The guest kernel's arguments.
    pub linux: String,
    /// Whether time advances by instructions, 1 ns each, with one host thread for all CPUs. Costs
    /// are then the same in each run, however busy the build machine is.
    #[serde(default)]
    pub deterministic: bool,
    /// The hypervisor, if there is one.
    pub xen: Option<Hypervisor>,
    /// The host, if the machine is one on which another machine is run.
    pub kvm: Option<Host>,
}

/// Linux as the host of a virtual machine. The other fields of a topology describe the physical
/// machine, and the guest's kernel.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The version of Linux, if it is not Debian 12's.
    pub release: Option<String>,
    /// Whether KVM is as it comes, without the driver.
    #[serde(default)]
    pub stock: bool,
    /// Number of the guest's virtual CPUs.
    pub vcpus: u32,
    /// The guest's CPU, in QEMU's words.
    pub cpu: String,
    /// The guest's memory in MiB, to which room for the copied files is added.
    pub memory_mib: u64,
    /// The host kernel's arguments.
    pub linux: String,
    /// The parameters of KVM's module.
    pub args: String,
    /// The parameters of KVM's module for this machine's kind of CPUs.
    #[serde(default)]
    pub vendor_args: String,
    /// Whether the host's administrator lets the guest count.
    pub allow: bool,
    /// Whether nothing competes with the guest's vCPUs, or moves them.
    #[serde(default)]
    pub calm: bool,
}

/// The hypervisor of a topology.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hypervisor {
    /// Which build of it.
    pub flavour: Flavour,
    /// Its version, if it is not that of this machine's Debian.
    pub release: Option<String>,
    /// The hypervisor's file, if it is not the one that is built here.
    #[serde(skip)]
    pub image: Option<PathBuf>,
    /// Its arguments, without those of the console.
    pub args: String,
}

impl Hypervisor {
    /// Adds arguments. If an option is given twice, the last one counts.
    pub fn add(&mut self, args: &str) {
        self.args.push(' ');
        self.args.push_str(args);
    }

    /// Makes the hypervisor Debian's own, with these arguments only.
    pub fn stock(&mut self, args: &str) {
        self.flavour = Flavour::Stock;
        self.args = args.to_owned();
    }
}

/// The version of Linux that hosts of virtual machines have in place of Debian 12's.
static HOST_LINUX: OnceLock<String> = OnceLock::new();

/// How a verb's user chooses the version of Linux that hosts of virtual machines have.
#[derive(Default, clap::Args)]
pub struct HostLinux {
    /// Give the host of a virtual machine this version of Linux, such as 6.12, instead of Debian
    /// 12's.
    #[arg(long, value_name = "VERSION")]
    host_linux: Option<String>,
}

impl HostLinux {
    /// Gives every host that is described from now on the chosen version.
    pub fn choose(&self) {
        if let Some(version) = &self.host_linux {
            // Each verb chooses once.
            HOST_LINUX.get_or_init(|| version.clone());
        }
    }
}

impl Topology {
    /// Reads the profile called `name`.
    pub fn named(name: &str) -> Result<Self> {
        let dir = sh::project().join("xtask/profiles");
        let path = dir.join(format!("{name}.toml"));
        if !path.exists() {
            let known = cache::files(&dir)?;
            let known: Vec<_> =
                known.iter().map(|(file, _)| file.trim_end_matches(".toml")).collect();
            bail!("no topology {name}; there are: {}", known.join(", "));
        }
        let mut topology: Self = toml::from_str(&fs::read_to_string(&path)?)
            .with_context(|| path.display().to_string())?;
        if let (Some(host), Some(version)) = (&mut topology.kvm, HOST_LINUX.get()) {
            host.release = Some(version.clone());
        }
        Ok(topology)
    }
}
