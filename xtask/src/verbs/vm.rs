// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask vm` runs any program in the testbed's guest.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use crate::artefacts::guest;
use crate::artefacts::rootfs;
use crate::artefacts::shim;
use crate::artefacts::xen::Flavour;
use crate::machine::{self, HostLinux, Spec};
use crate::tools::cache;

/// Boots the testbed, runs CMD in the guest's /work, and returns CMD's exit status.
///
/// The perfctr module is loaded. The command perfctr and the C library libperfctr.so.6 are where
/// programs look for them, and so are the Debian programs that --with names. The status is 128 + N
/// if signal N ended CMD, 124 if it ran too long, 125 if the machine or the module failed. CMD
/// reads nothing from standard input. What it changes in the guest is lost, except what it leaves
/// in /out (see --out).
#[derive(clap::Args)]
pub struct Args {
    /// Boot this machine, which is described in xtask/profiles.
    #[arg(long, default_value = "pv")]
    topology: String,
    /// Copy the contents of a directory into the guest's /work; files of later ones replace those
    /// of earlier ones.
    #[arg(long, value_name = "DIR")]
    copy: Vec<PathBuf>,
    /// Copy what CMD leaves in the guest's /out into a directory here.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// End CMD after this many seconds.
    #[arg(long, default_value_t = 300, value_name = "S")]
    timeout: u64,
    /// Boot this hypervisor instead of the topology's own.
    #[arg(long)]
    xen: Option<Flavour>,
    /// Boot this release of the hypervisor, such as 4.20, instead of that of this machine's Debian.
    #[arg(long, value_name = "RELEASE")]
    xen_release: Option<String>,
    /// Boot this version of the kernel, such as 6.12, instead of that of this machine's Debian.
    #[arg(long, value_name = "VERSION")]
    linux: Option<String>,
    #[command(flatten)]
    host_linux: HostLinux,
    /// Give the machine's CPUs these further features, such as pmu-tally=on.
    #[arg(long, value_name = "FEATURES")]
    cpu: Option<String>,
    /// Give the hypervisor these further arguments.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    xen_args: String,
    /// Give the guest's kernel these further arguments.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    linux_args: String,
    /// Install Debian's package in the guest.
    #[arg(long = "with", value_name = "PACKAGE")]
    packages: Vec<Package>,
    /// Put this program of tests/vm, with which a suite tests, into the guest's /work.
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Do not load the perfctr module.
    #[arg(long)]
    no_module: bool,
    /// Say how long booting took and where the console's log is.
    #[arg(long, short)]
    verbose: bool,
    /// Run this command with these arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// A Debian package that a guest does not have by itself.
#[derive(Clone, Copy, ValueEnum)]
enum Package {
    /// Linux's perf.
    Perf,
    /// rr, which records programs and replays them.
    Rr,
    /// The debugger that rr starts if a recording is replayed step by step.
    Gdb,
}

impl Package {
    /// Returns the directory trees that are laid over the userland.
    fn trees(self) -> Result<Vec<PathBuf>> {
        match self {
            Self::Perf => Ok(vec![rootfs::perf()?]),
            Self::Rr => Ok(vec![rootfs::rr()?]),
            Self::Gdb => Ok(vec![rootfs::python()?, rootfs::debugger()?]),
        }
    }
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode> {
    args.host_linux.choose();
    let mut spec = Spec::new(&args.topology, args.command)?;
    for package in args.packages {
        spec.files.extend(package.trees()?.into_iter().map(|tree| (tree, "/".into())));
    }
    if let Some(program) = &args.program {
        spec.add_program("vm-tests", program)?;
    }
    spec.module = !args.no_module;
    spec.copy = args.copy;
    spec.out = args.out;
    spec.timeout = Duration::from_secs(args.timeout);
    spec.stream = true;
    spec.topology.linux = format!("{} {}", spec.topology.linux, args.linux_args);
    if !args.xen_args.is_empty() {
        spec.hypervisor()?.add(&args.xen_args);
    }
    if args.xen_release.is_some() {
        spec.hypervisor()?.release = args.xen_release;
    }
    if let Some(features) = &args.cpu {
        spec.topology.cpu.push_str(&format!(",{features}"));
    }
    spec.linux = args.linux.or(spec.linux);
    if let Some(flavour) = args.xen {
        spec.hypervisor()?.flavour = flavour;
    }
    spec.files.push((guest::program("perfctr", "perfctr")?, "/usr/bin/perfctr".to_owned()));
    if spec.module {
        spec.files.extend(library()?);
    }
    let outcome = machine::run(&spec)?;
    if let Some(reason) = outcome.explain() {
        eprintln!("xtask vm: {reason}");
    }
    if args.verbose {
        let seconds = outcome.boot_time.map_or(f64::NAN, |time| time.as_secs_f64());
        eprintln!("xtask vm: booted in {seconds:.1} s; console: {}", outcome.console.display());
    }
    Ok(ExitCode::from(u8::try_from(outcome.status.code()).unwrap_or(u8::MAX)))
}

/// Returns the C library and its command, with the places where programs in the guest find them.
fn library() -> Result<Vec<(PathBuf, String)>> {
    let _lock = cache::lock("guest-library")?;
    let prefix = cache::root()?.join("guest-library");
    fs::create_dir_all(&prefix)?;
    shim::install(&prefix)?;
    Ok(vec![
        shim::LIBRARY.in_guest(&prefix),
        (prefix.join("bin/perfex"), "/usr/bin/perfex".to_owned()),
    ])
}
