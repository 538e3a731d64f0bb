// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask bench`: what reads, samples and switches cost, beside their peers, on the same
//! emulated PMU.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::artefacts::guest;
use crate::machine::{self, Spec, Status};
use crate::suites::tenants;
use crate::tools::sh;

/// The Linux whose KVM has a mediated PMU: an earlier one has none.
const MEDIATED: &str = "7.3";

/// The machines that are compared.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Machine {
    /// Xen with the driver, Linux with the module.
    Perfctr,
    /// Unmodified Xen with its own virtual PMU, Linux with perf events.
    Vpmu,
    /// Xen with the driver, and the module in a PVH guest.
    Pvh,
    /// Unmodified Xen with its own virtual PMU, and perf events in a PVH guest.
    PvhVpmu,
    /// A guest of KVM with the driver, and the module in it.
    Kvm,
    /// A guest of KVM with its own virtual PMU, and perf events in it.
    KvmVpmu,
    /// The same of a later Linux, whose KVM gives guests the counters themselves.
    KvmMediated,
    /// A guest of KVM without counters.
    KvmNone,
    /// Linux with perf events.
    Native,
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Reads, and a thread's TSC beside a bare RDTSC on this very machine.
    Read,
    /// System calls, samples and switches.
    Switch,
    /// In guests of KVM: exits that switch no vCPU, RDPMC, and having another event counted.
    Operations,
}

/// Measures what a read, a sample and a switch cost, beside perf events.
#[derive(clap::Args)]
pub struct Args {
    /// This alone.
    what: Option<What>,
    /// On this machine only.
    #[arg(long, value_name = "MACHINE")]
    only: Option<Machine>,
}

/// Runs the benchmarks and prints a table of each.
pub fn run(args: &Args) -> Result<()> {
    let wanted = |machine: &&Machine| args.only.is_none_or(|only| only == **machine);
    let machines: Vec<Machine> = Machine::value_variants().iter().filter(wanted).copied().collect();
    let asked = |what| args.what.is_none_or(|only| only == what);
    if asked(What::Read) {
        reads(&machines)?;
    }
    if asked(What::Switch) {
        switches(&machines)?;
    }
    if asked(What::Operations) {
        operations(&machines)?;
    }
    Ok(())
}

fn reads(machines: &[Machine]) -> Result<()> {
    println!("on this machine, one reading");
    print!("{}", sh::output(&mut Command::new(guest::programs("benches")?.join("tsc-ratio")))?);
    println!("\none read, instructions");
    // In PV guests vpmu lets nobody read directly.
    let nobody = [Machine::Vpmu, Machine::KvmNone];
    for machine in machines.iter().filter(|machine| !nobody.contains(machine)) {
        for line in output(machine.spec("read-cost", 1)?)?.lines() {
            println!("{}{line}", machine.prefix());
        }
    }
    Ok(())
}

fn switches(machines: &[Machine]) -> Result<()> {
    for machine in machines.iter().filter(|machine| **machine != Machine::KvmNone) {
        print!("\n{}\n", machine.heading());
        // One CPU for two of them, where there is somebody to share it out.
        let vcpus = if matches!(machine, Machine::Native) { 1..=1 } else { 1..=2 };
        for vcpus in vcpus {
            print!("{}", output(machine.spec("sample-cost", vcpus)?)?);
        }
    }
    Ok(())
}

fn operations(machines: &[Machine]) -> Result<()> {
    for machine in machines.iter().filter(|machine| machine.is_guest_of_kvm()) {
        let mut spec = machine.spec("sample-cost", 1)?;
        spec.command.push("operations".into());
        print!("\n{}\n{}", machine.heading(), output(spec)?);
    }
    Ok(())
}

impl Machine {
    const fn is_guest_of_kvm(self) -> bool {
        matches!(self, Self::Kvm | Self::KvmVpmu | Self::KvmMediated | Self::KvmNone)
    }

    /// A run of this program on it, in a guest of so many vCPUs.
    fn spec(self, program: &str, vcpus: u32) -> Result<Spec> {
        let topology = match self {
            Self::Perfctr | Self::Vpmu => "pv",
            Self::Native => "native",
            Self::Pvh => return tenants::bench(program, vcpus, false),
            Self::PvhVpmu => return tenants::bench(program, vcpus, true),
            Self::Kvm | Self::KvmVpmu | Self::KvmMediated | Self::KvmNone => {
                return self.guest_of_kvm(program, vcpus);
            }
        };
        let mut spec = Spec::new(topology, [format!("/work/{program}")])?.deterministic();
        if self != Self::Perfctr {
            spec = spec.stock("vpmu=on");
        }
        spec.topology.cpu.push_str(",pmu-tally=on");
        if let Some(xen) = &mut spec.topology.xen {
            xen.add(&format!("dom0_max_vcpus={vcpus}"));
        }
        spec.add_program("benches", program)?;
        Ok(spec)
    }

    /// A guest of so many vCPUs on a host with one CPU.
    fn guest_of_kvm(self, program: &str, vcpus: u32) -> Result<Spec> {
        let mut spec = Spec::new("kvm", [format!("/work/{program}")])?.deterministic();
        spec.vcpus(vcpus)?;
        let host = spec.topology.kvm.as_mut().context("no host")?;
        host.calm = true;
        if self != Self::Kvm {
            spec.module = false;
            (host.args, host.allow) = ("enable_pmu=1".to_owned(), false);
            host.cpu = host.cpu.replace("pmu=off", "pmu=on");
        }
        match self {
            Self::KvmMediated => {
                host.release = Some(MEDIATED.to_owned());
                host.amd_args = "enable_mediated_pmu=1".to_owned();
            }
            Self::KvmNone => host.args = "enable_pmu=0".to_owned(),
            _ => {}
        }
        spec.timeout = Duration::from_secs(1800);
        spec.add_program("benches", program)?;
        Ok(spec)
    }

    /// What its table of samples and switches begins with.
    const fn heading(self) -> &'static str {
        match self {
            Self::Perfctr => "Xen with perfctr, ring 0 is the hypervisor's",
            Self::Vpmu => "Xen with vpmu, ring 0 is the hypervisor's",
            Self::Pvh => "PVH with perfctr, ring 0 is the hypervisor's",
            Self::PvhVpmu => "PVH with vpmu, ring 0 is the hypervisor's",
            Self::Kvm => "KVM with perfctr, ring 0 is the host's",
            Self::KvmVpmu => "KVM with its PMU, ring 0 is the host's",
            Self::KvmMediated => "KVM with its mediated PMU, ring 0 is the host's",
            Self::KvmNone => "KVM without a PMU, ring 0 is the host's",
            Self::Native => "no hypervisor, ring 0 is the kernel's",
        }
    }

    /// What its reads begin with, where programs alone do not tell it apart.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Pvh => "PVH: ",
            Self::PvhVpmu => "PVH, vpmu: ",
            Self::Kvm => "KVM: ",
            Self::KvmVpmu => "KVM, its PMU: ",
            Self::KvmMediated => "KVM, its mediated PMU: ",
            _ => "",
        }
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
