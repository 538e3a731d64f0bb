// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask bench`: what reads, samples and switches cost, beside their peers, on the same
//! emulated PMU.

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::machine::{self, Spec, Status};

/// The machines that are compared.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Machine {
    /// Xen with the driver, Linux with the module.
    Perfctr,
    /// Unmodified Xen with its own virtual PMU, Linux with perf events.
    Vpmu,
    /// Linux with perf events.
    Native,
}

/// Measures what a read, a sample and a switch cost, beside perf events.
#[derive(clap::Args)]
pub struct Args {
    /// On this machine only.
    #[arg(long, value_name = "MACHINE")]
    only: Option<Machine>,
}

/// Runs the benchmarks and prints a table of each.
pub fn run(args: &Args) -> Result<()> {
    let wanted = |machine: &Machine| args.only.is_none_or(|only| only == *machine);
    println!("{:<40}{:>10}", "one read", "instructions");
    for machine in [Machine::Perfctr, Machine::Native].into_iter().filter(wanted) {
        print!("{}", output(machine.spec("read-cost")?)?);
    }
    for (machine, name) in [
        (Machine::Perfctr, "Xen with perfctr, ring 0 is the hypervisor's"),
        (Machine::Vpmu, "Xen with vpmu, ring 0 is the hypervisor's"),
        (Machine::Native, "no hypervisor, ring 0 is the kernel's"),
    ]
    .into_iter()
    .filter(|(machine, _)| wanted(machine))
    {
        print!("\n{name}\n");
        // One CPU for two of them, where there is somebody to share it out.
        let vcpus = if matches!(machine, Machine::Native) { 1..=1 } else { 1..=2 };
        for vcpus in vcpus {
            let mut spec = machine.spec("sample-cost")?.deterministic();
            spec.topology.cpu.push_str(",pmu-tally=on");
            if let Some(xen) = &mut spec.topology.xen {
                xen.add(&format!("dom0_max_vcpus={vcpus}"));
            }
            print!("{}", output(spec)?);
        }
    }
    Ok(())
}

impl Machine {
    /// A run of this program on it.
    fn spec(self, program: &str) -> Result<Spec> {
        let topology = if matches!(self, Self::Native) { "native" } else { "pv" };
        let spec = Spec::new(topology, [format!("/work/{program}")])?;
        let mut spec = match self {
            Self::Perfctr => spec,
            Self::Vpmu | Self::Native => spec.stock("vpmu=on"),
        };
        spec.add_program("benches", program)?;
        Ok(spec)
    }
}

/// What the program printed.
fn output(spec: Spec) -> Result<String> {
    let outcome = machine::run(&spec)?;
    if outcome.status != Status::Exited(0) {
        let reason = outcome.explain().unwrap_or_default();
        bail!("{}{reason}", String::from_utf8_lossy(&outcome.stderr));
    }
    String::from_utf8(outcome.stdout).context("the program printed something else than text")
}
