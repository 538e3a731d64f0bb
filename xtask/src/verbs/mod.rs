// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The command line. Each verb is a file.

mod bench;
mod check;
mod costs;
mod demo;
mod dist;
mod faults;
mod figures;
mod hook;
mod install;
mod install_c;
mod mutants;
mod papi_shim;
mod readme;
mod setup;
mod sim;
mod test;
mod vm;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::artefacts::{kvm, source, xen};
use crate::checks;
use crate::suites::papi;

/// The command line.
#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, checks and tests perfctr")]
pub struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install and build everything that the other verbs need.
    Setup {
        /// Install and build the other versions of Xen and Linux, too.
        #[arg(long)]
        versions: bool,
    },
    /// Run the main job: every reading of competing threads against the truth.
    Demo(demo::Args),
    /// Measure what a read costs, beside its peers.
    Bench(bench::Args),
    /// Compare the book's tables of costs with what is measured.
    Figures(figures::Args),
    /// Run a command in the testbed's guest.
    Vm(vm::Args),
    /// Run every test.
    Test(test::Args),
    /// Check format, lints, house rules, documentation, generated files and the Rust objects.
    Check(check::Args),
    /// Write the C headers that are generated from Rust.
    Headers,
    /// Check the Rust objects that are linked into Xen, into KVM and into the kernel module.
    CheckObj,
    /// Let git run the quick checks before each commit.
    Hook,
    /// Run PAPI's own tests on the C library with perfctr's interface.
    Papi(papi::Args),
    /// Build and install the C library with perfctr's interface.
    PapiShim(papi_shim::Args),
    /// Build and install the command `perfctr` with its man pages and completions.
    Install(install::Args),
    /// Build and install the library for C and C++.
    InstallC(install_c::Args),
    /// Build Debian packages.
    Dist(dist::Args),
    /// Write an archive of the sources with all crates, which is built without a network.
    Source {
        /// Put the archive into this directory.
        #[arg(default_value = "target/dist")]
        dir: PathBuf,
    },
    /// Run the commands that the README begins with, and write there what they print.
    Readme,
    /// Run the simulator of hosts and guests around the real cores.
    Sim(sim::Args),
    /// Put small faults into the cores, and see that tests notice.
    Mutants(mutants::Args),
    /// Put each fault of tests/faults in force, and see that a test notices.
    Faults(faults::Args),
    /// Build KVM's modules with the driver inside.
    Kvm {
        /// Take the kernel of this version, such as 6.12, instead of Debian 12's.
        #[arg(long, value_name = "VERSION")]
        release: Option<String>,
        /// Put the modules into this directory.
        #[arg(default_value = "target/dist")]
        dir: PathBuf,
    },
    /// Print what the project changes in the source of Linux, as a patch.
    KvmPatch {
        /// Take this version, such as 6.12, instead of Debian 12's.
        release: Option<String>,
    },
    /// Print what the project changes in Xen's source, as a patch.
    XenPatch {
        /// Take this release, such as 4.20, instead of that of this machine's Debian.
        release: Option<String>,
    },
}

impl Cli {
    /// Runs the verb that was asked for.
    pub fn run(self) -> Result<ExitCode> {
        match self.verb {
            Verb::Setup { versions } => setup::run(versions)?,
            Verb::Demo(args) => return demo::run(&args),
            Verb::Bench(args) => bench::run(&args)?,
            Verb::Figures(args) => figures::run(&args)?,
            Verb::Vm(args) => return vm::run(args),
            Verb::Test(args) => return test::run(&args),
            Verb::Check(args) => check::run(&args)?,
            Verb::Headers => checks::write_headers()?,
            Verb::CheckObj => checks::objects()?,
            Verb::Hook => hook::run()?,
            Verb::Papi(args) => return papi::run(&args),
            Verb::PapiShim(args) => return papi_shim::run(&args),
            Verb::Install(args) => install::run(&args)?,
            Verb::InstallC(args) => install_c::run(&args)?,
            Verb::Dist(args) => dist::run(&args)?,
            Verb::Source { dir } => println!("{}", source::archive(&dir)?.display()),
            Verb::Readme => readme::run()?,
            Verb::Sim(args) => return sim::run(&args),
            Verb::Mutants(args) => mutants::run(&args)?,
            Verb::Faults(args) => return faults::run(args),
            Verb::Kvm { release, dir } => kvm::write(release.as_deref(), &dir)?,
            Verb::KvmPatch { release } => print!("{}", kvm::patch(release.as_deref())?),
            Verb::XenPatch { release } => print!("{}", xen::patch(release.as_deref())?),
        }
        Ok(ExitCode::SUCCESS)
    }
}
