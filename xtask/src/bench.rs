// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask bench`: what reads, samples and switches cost, beside their peers, on the same
//! emulated PMU.

use anyhow::{Context, Result, bail};

use crate::guest;
use crate::vm::{self, Spec, Status};
use crate::xen::Flavour;

/// The machines that are compared.
#[derive(Clone, Copy)]
enum Machine {
    /// Xen with the driver, Linux with the module.
    Perfctr,
    /// Unmodified Xen with its own virtual PMU, Linux with perf events.
    Vpmu,
    /// Linux with perf events.
    Native,
}

/// Runs the benchmarks on all machines and prints a table of each.
pub fn run() -> Result<()> {
    println!("{:<40}{:>10}", "one read", "instructions");
    for machine in [Machine::Perfctr, Machine::Native] {
        print!("{}", output(machine.spec("read-cost")?)?);
    }
    for (machine, name) in [
        (Machine::Perfctr, "Xen with perfctr, ring 0 is the hypervisor's"),
        (Machine::Vpmu, "Xen with vpmu, ring 0 is the hypervisor's"),
        (Machine::Native, "no hypervisor, ring 0 is the kernel's"),
    ] {
        let mut spec = machine.spec("sample-cost")?;
        spec.topology.cpus = 1;
        spec.topology.cpu.push_str(",pmu-tally=on");
        spec.topology.deterministic = true;
        if let Some(xen) = &mut spec.topology.xen {
            // The last of two options counts.
            xen.args.push_str(" dom0_max_vcpus=1");
        }
        print!("\n{name}\n{}", output(spec)?);
    }
    Ok(())
}

impl Machine {
    /// A run of this program on it.
    fn spec(self, program: &str) -> Result<Spec> {
        let path = format!("/work/{program}");
        let topology = if matches!(self, Self::Native) { "native" } else { "pv" };
        let mut spec = Spec::new(topology, [&path])?;
        if let (Self::Vpmu, Some(xen)) = (self, &mut spec.topology.xen) {
            xen.flavour = Flavour::Stock;
            xen.args = "vpmu=on".to_owned();
        }
        spec.module = matches!(self, Self::Perfctr);
        spec.files.push((guest::programs("benches")?.join(program), path.clone()));
        Ok(spec)
    }
}

/// What the program printed.
fn output(spec: Spec) -> Result<String> {
    let outcome = vm::run(&spec)?;
    if outcome.status != Status::Exited(0) {
        let reason = outcome.explain().unwrap_or_default();
        bail!("{}{reason}", String::from_utf8_lossy(&outcome.stderr));
    }
    String::from_utf8(outcome.stdout).context("the program printed something else than text")
}
