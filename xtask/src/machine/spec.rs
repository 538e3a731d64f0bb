// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Describes the needs of one run.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::profile::{Emulator, Host, Hypervisor, Topology};
use crate::artefacts::guest;
use crate::artefacts::rustobj::Purpose;

/// The description of one run.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The machine.
    pub topology: Topology,
    /// The version of Linux, if it is not that of this machine's Debian.
    pub linux: Option<String>,
    /// Whether to load our kernel module before the command.
    pub module: bool,
    /// Parameters for our kernel module.
    pub module_args: String,
    /// A whole system, as an archive for the kernel. The system's own init is the first program,
    /// and ours is one of its services.
    pub system: Option<PathBuf>,
    /// Directories whose contents are put into `/work`. Files of later ones replace those of
    /// earlier ones.
    pub copy: Vec<PathBuf>,
    /// Further files or directories: (path here, path in the guest).
    pub files: Vec<(PathBuf, String)>,
    /// Where to unpack what the command leaves in the guest's `/out`.
    pub out: Option<PathBuf>,
    /// How long the command may run.
    pub timeout: Duration,
    /// Whether to show the command's output while it runs.
    pub stream: bool,
    /// Whether the machine may suspend itself to RAM. It is then woken.
    pub wake: bool,
    /// Whether the machine's button for a non-maskable interrupt is pressed again and again while
    /// the command runs.
    pub press_nmi: bool,
    /// Whether the module reports which of its code is reached, also if its hypervisor does not.
    pub fuzzing: bool,
    /// Variables of the command's environment beside the usual ones: `NAME=value`.
    pub environment: Vec<OsString>,
    /// The program, found through PATH or relative to `/work`, and its arguments.
    pub command: Vec<OsString>,
}

/// How long a machine may take that runs beside others, with the CPU time that these leave.
pub const BESIDE: Duration = Duration::from_secs(2700);

impl Spec {
    /// Describes a run of `command` on the topology called `name`, with the module. Its output is
    /// not shown.
    pub fn new<S: Into<OsString>>(
        name: &str,
        command: impl IntoIterator<Item = S>,
    ) -> Result<Self> {
        let topology = Topology::named(name)?;
        Ok(Self {
            linux: topology.linux_version.clone(),
            topology,
            module: true,
            module_args: String::new(),
            system: None,
            copy: Vec::new(),
            files: Vec::new(),
            out: None,
            timeout: Duration::from_secs(300),
            stream: false,
            wake: false,
            press_nmi: false,
            fuzzing: false,
            environment: Vec::new(),
            command: command.into_iter().map(Into::into).collect(),
        })
    }

    /// Returns what the project's code in the machine is built for.
    pub fn purpose(&self) -> Purpose {
        if self.fuzzing {
            return Purpose::Fuzzing;
        }
        self.topology.xen.as_ref().map_or(Purpose::Use, |xen| xen.flavour.purpose())
    }

    /// Returns the hypervisor, or an error on a topology that has none.
    pub fn hypervisor(&mut self) -> Result<&mut Hypervisor> {
        self.topology.xen.as_mut().context("this topology has no hypervisor")
    }

    /// Returns the host of the virtual machine, or an error on a topology that has none.
    pub fn host(&mut self) -> Result<&mut Host> {
        self.topology.kvm.as_mut().context("this topology has no host")
    }

    /// Adds options of the driver's, as in Xen's argument `perfctr=OPTIONS` or in that of KVM's
    /// module.
    pub fn driver(mut self, options: &str) -> Result<Self> {
        let argument = format!(" perfctr={options}");
        match &mut self.topology.kvm {
            // If an option is given twice, the last one counts.
            Some(host) => host.args.push_str(&argument),
            None => self.hypervisor()?.add(argument.trim_start()),
        }
        Ok(self)
    }

    /// Makes driver and module count the instructions that they execute themselves.
    pub fn with_cost(mut self) -> Result<Self> {
        self.module_args = "cost=1".to_owned();
        self.driver("cost")
    }

    /// Sets the number of virtual CPUs.
    pub fn vcpus(&mut self, number: u32) -> Result<()> {
        match &mut self.topology.kvm {
            Some(host) => host.vcpus = number,
            None => self.hypervisor()?.add(&format!("dom0_max_vcpus={number}")),
        }
        Ok(())
    }

    /// Makes the emulator keep its own tally of what the CPUs execute. The second emulator always
    /// does.
    pub fn keep_tally(&mut self) {
        if self.topology.emulator == Emulator::Qemu {
            self.topology.cpu.push_str(",pmu-tally=on");
        }
    }

    /// Gives the machine one CPU whose clock counts its instructions.
    pub fn deterministic(mut self) -> Self {
        self.topology.cpus = 1;
        self.topology.deterministic = true;
        self
    }

    /// Prepares the machine to run beside others, with the CPU time that these leave: its clock
    /// counts its instructions, so that nothing in it is late, and it may take long. The clock of a
    /// guest of KVM is the host's, so such a machine is not prepared.
    pub fn beside(mut self) -> Self {
        if self.topology.kvm.is_some() {
            return self;
        }
        self.timeout = BESIDE;
        self.deterministic()
    }

    /// Unpacks what the command leaves in `/out` into this directory, and removes the files of an
    /// earlier run from it.
    ///
    /// # Errors
    ///
    /// Fails if the old files cannot be removed.
    pub fn keep_out(&mut self, out: &Path) -> Result<()> {
        if out.exists() {
            fs::remove_dir_all(out)?;
        }
        self.out = Some(out.to_owned());
        Ok(())
    }

    /// Runs without our module, on an unmodified hypervisor if there is one.
    pub fn stock(mut self, xen_args: &str) -> Self {
        self.module = false;
        if let Some(xen) = &mut self.topology.xen {
            xen.stock(xen_args);
        }
        self
    }

    /// Puts a program of one of the project's packages into `/work`.
    pub fn add_program(&mut self, package: &str, program: &str) -> Result<()> {
        let path = guest::program(package, program)?;
        self.files.push((path, format!("/work/{program}")));
        Ok(())
    }
}
