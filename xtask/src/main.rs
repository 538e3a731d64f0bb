// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! One command line for building, checking and testing perfctr: `cargo xtask --help`.

mod apt;
mod bench;
mod cache;
mod check;
mod checkobj;
mod cpio;
mod demo;
mod guest;
mod hooks;
mod kernel;
mod overlay;
mod papi;
mod qemu;
mod rootfs;
mod rustobj;
mod sh;
mod shim;
mod sim;
mod testing;
mod tests;
mod tidy;
mod toolchain;
mod vm;
mod vm_verb;
mod xen;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, checks and tests perfctr")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install and build everything that the other verbs need.
    Setup,
    /// Run the main job: every reading of competing threads against the truth.
    Demo(demo::Args),
    /// Measure what a read costs, beside its peers.
    Bench,
    /// Run a command in the testbed's guest.
    Vm(vm_verb::Args),
    /// Run every test.
    Test(testing::Args),
    /// Check format, lints, house rules, documentation, generated files and the Rust objects.
    Check,
    /// Check the Rust objects that are linked into Xen and into the kernel module.
    CheckObj,
    /// Run PAPI's own tests on the C library with perfctr's interface.
    Papi(papi::Args),
    /// Build and install the C library with perfctr's interface.
    PapiShim(shim::Args),
    /// Run the simulator of hosts and guests around the real cores.
    Sim(sim::Args),
    /// Print what the project changes in Xen's source, as a patch.
    XenPatch,
}

fn main() -> ExitCode {
    match run(Cli::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Setup => setup()?,
        Verb::Demo(args) => return demo::run(&args),
        Verb::Bench => bench::run()?,
        Verb::Vm(args) => return vm_verb::run(args),
        Verb::Test(args) => return testing::run(&args),
        Verb::Check => check::run()?,
        Verb::CheckObj => checkobj::check()?,
        Verb::Papi(args) => return papi::run(&args),
        Verb::PapiShim(args) => return shim::run(&args),
        Verb::Sim(args) => return sim::run(&args),
        Verb::XenPatch => print!("{}", xen::patch()?),
    }
    Ok(ExitCode::SUCCESS)
}

fn setup() -> Result<()> {
    qemu::qemu()?;
    let kernel = kernel::kernel()?;
    rootfs::rootfs(&kernel)?;
    guest::init()?;
    xen::xen(xen::Flavour::Stock)?;
    xen::xen(xen::Flavour::Perfctr)?;
    guest::module(&kernel)?;
    println!("ready; artefacts are in {}", cache::root()?.display());
    Ok(())
}
