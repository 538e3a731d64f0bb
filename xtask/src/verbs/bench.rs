// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask bench` measures what reads, samples and switches cost, beside their peers, on the
//! same emulated PMU.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use super::costs::{self, Cost, Costs, Subject, page};
use crate::artefacts::guest;
use crate::machine::{self, Spec, Status};
use crate::suites::report::Volume;
use crate::suites::{scale, tenants};
use crate::tools::sh;

/// The version of Linux whose KVM has a mediated PMU. Earlier ones have none.
const MEDIATED: &str = "7.3";

/// How long a machine may take for its measurements. Samples and switches of vCPUs are measured
/// seven times, which takes minutes on a busy machine.
const LIMIT: Duration = Duration::from_secs(1800);

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
    /// A guest of KVM on a later Linux, whose KVM gives guests the counters themselves, and perf
    /// events in it.
    KvmMediated,
    /// A guest of KVM without counters.
    KvmNone,
    /// A guest of KVM on VT-x with the driver, and the module in it.
    VmxKvm,
    /// A guest of KVM on VT-x with its own virtual PMU, and perf events in it.
    VmxKvmVpmu,
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
    /// Samples of a whole host, and what the option for them costs switches of vCPUs.
    Host,
    /// How costs grow with the number of vCPUs, threads, users and counters. This is measured only
    /// if it is named.
    Growth,
}

/// The driver's option for samples of the host.
const PROFILE: &str = "profile";
/// A switch of vCPUs as a whole. `benches/src/sample_cost/host.rs` has the same name.
const WHOLE_SWITCH: &str = "a whole switch of vCPUs";
/// The table that has the difference of two of them.
const SWITCH: &str = "a switch of vCPUs";

/// Measures what a read, a sample and a switch cost, beside perf events.
#[derive(Default, clap::Args)]
pub struct Args {
    /// Measure this alone.
    what: Option<What>,
    /// Measure on this machine only.
    #[arg(long, value_name = "MACHINE")]
    only: Option<Machine>,
    /// Write the tables to this page instead of docs/costs.md; it is a copy of that.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Measure nothing, and only write the table of all operations anew, from the page's other
    /// tables.
    #[arg(long, conflicts_with_all = ["what", "only"])]
    summary: bool,
}

/// Runs the benchmarks, prints a table of each, and writes them to the page.
pub fn run(args: &Args) -> Result<()> {
    let path = args.page.clone().unwrap_or_else(page::path);
    if args.summary {
        return page::write(&Costs::default(), &path);
    }
    if args.what == Some(What::Growth) {
        ensure!(args.only.is_none(), "growth is measured on one machine only, Xen with perfctr");
        return page::write_growth(&scale::measure(Volume::Long)?, &path);
    }
    measure(args, |costs| page::write(costs, &path)).map(drop)
}

/// Returns the command that measures a machine of the tables again, and records the results.
pub fn command(machine: &str) -> Option<String> {
    let machine = Machine::value_variants().iter().find(|one| one.name() == machine)?;
    Some(format!("cargo xtask bench --only {}", machine.to_possible_value()?.get_name()))
}

/// Runs the benchmarks and prints a table of each. Passes the results to `keep` after each machine,
/// since a later one may fail.
pub fn measure(args: &Args, keep: impl Fn(&Costs) -> Result<()>) -> Result<Costs> {
    let wanted = |machine: &&Machine| args.only.is_none_or(|only| only == **machine);
    let machines: Vec<Machine> = Machine::value_variants().iter().filter(wanted).copied().collect();
    let mut costs = Costs::default();
    for (what, of) in [
        (What::Read, reads as Of),
        (What::Switch, switches),
        (What::Operations, operations),
        (What::Host, host),
    ] {
        if args.what.is_none_or(|only| only == what) {
            if what == What::Read {
                on_this_machine()?;
            }
            for machine in &machines {
                of(*machine, &mut costs)?;
                keep(&costs)?;
            }
        }
    }
    Ok(costs)
}

/// A function that measures on one machine.
type Of = fn(Machine, &mut Costs) -> Result<()>;

fn on_this_machine() -> Result<()> {
    println!("on this machine, one reading");
    print!("{}", sh::output(&mut Command::new(guest::program("benches", "tsc-ratio")?))?);
    Ok(())
}

fn reads(machine: Machine, costs: &mut Costs) -> Result<()> {
    // In PV guests, vpmu lets no program read counters directly.
    if matches!(machine, Machine::Vpmu | Machine::KvmNone) {
        return Ok(());
    }
    println!("\none read, instructions, {}", machine.name());
    let printed = output(machine.spec("read-cost", 1, "")?)?;
    print!("{printed}");
    for line in printed.lines() {
        let (how, numbers) = split(line);
        costs.insert(machine.subject(costs::READS, &how), numbers.into_iter().map(Some).collect());
    }
    Ok(())
}

fn switches(machine: Machine, costs: &mut Costs) -> Result<()> {
    if machine == Machine::KvmNone {
        return Ok(());
    }
    print!("\n{}\n", machine.heading());
    // If there is a hypervisor, two vCPUs share one CPU.
    let vcpus = if machine == Machine::Native { 1..=1 } else { 1..=2 };
    for vcpus in vcpus {
        tallied(machine, machine.spec("sample-cost", vcpus, "")?, costs)?;
    }
    Ok(())
}

fn operations(machine: Machine, costs: &mut Costs) -> Result<()> {
    if !machine.is_guest_of_kvm() {
        return Ok(());
    }
    let mut spec = machine.spec("sample-cost", 1, "")?;
    spec.command.push("operations".into());
    print!("\n{}\n", machine.heading());
    tallied(machine, spec, costs)
}

fn host(machine: Machine, costs: &mut Costs) -> Result<()> {
    let (mut sampled, what) = match machine {
        Machine::Pvh => (tenants::bench_beside("sample-cost")?, "beside-tenant"),
        Machine::Perfctr | Machine::Native => (machine.spec("sample-cost", 1, PROFILE)?, "host"),
        _ => return Ok(()),
    };
    sampled.command.push(what.into());
    print!("\n{}\n", machine.heading());
    tallied(machine, sampled, costs)?;
    if machine != Machine::Perfctr {
        return Ok(());
    }
    let whole = |option| -> Result<_> {
        let mut spec = machine.spec("sample-cost", 2, option)?;
        spec.command.push("switches".into());
        let title = if option.is_empty() { "without options" } else { option };
        println!("\n{}, {title}", machine.heading());
        let printed = output(spec)?;
        print!("{printed}");
        Ok(machine.costs_of(&printed))
    };
    let [without, with] = [whole("")?, whole(PROFILE)?];
    for (subject, cost) in differences(with, &without)? {
        costs.insert(subject, cost);
    }
    Ok(())
}

/// Returns the rows of a machine with the option for samples of the host. A switch as a whole
/// becomes its difference from the one on the machine without the option.
fn differences(
    with: Vec<(Subject, Cost)>,
    without: &[(Subject, Cost)],
) -> Result<Vec<(Subject, Cost)>> {
    let row = |(subject, cost): (Subject, Cost)| {
        if subject.operation != WHOLE_SWITCH {
            return Ok((subject, cost));
        }
        let other = without.iter().find(|(other, _)| *other == subject);
        let (_, other) = other.with_context(|| format!("nothing beside {subject:?}"))?;
        let numbers = cost.iter().zip(other).map(|(with, without)| Some((*with)? - (*without)?));
        let how = format!("the option {PROFILE}, {}", subject.how);
        Ok((Subject { operation: SWITCH.to_owned(), how, ..subject }, numbers.collect()))
    };
    with.into_iter().map(row).collect()
}

/// Runs a program that prints a line of the emulator's tally for each operation.
fn tallied(machine: Machine, spec: Spec, costs: &mut Costs) -> Result<()> {
    let printed = output(spec)?;
    print!("{printed}");
    for (subject, cost) in machine.costs_of(&printed) {
        costs.insert(subject, cost);
    }
    Ok(())
}

/// Splits a line into its words and the numbers at its end. The number of samples stands between
/// them, and the tables omit it.
fn split(line: &str) -> (String, Vec<f64>) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_number = |word: &&&str| word.parse::<f64>().is_ok();
    let numbers = words.iter().rev().take_while(is_number).count();
    let (mut name, numbers) = words.split_at(words.len() - numbers);
    if let [rest @ .., last] = name
        && last.split_once('/').is_some_and(|(delivered, due)| {
            delivered.parse::<u64>().is_ok() && due.parse::<u64>().is_ok()
        })
    {
        name = rest;
    }
    (name.join(" "), numbers.iter().filter_map(|number| number.parse().ok()).collect())
}

impl Machine {
    const fn is_guest_of_kvm(self) -> bool {
        matches!(
            self,
            Self::Kvm
                | Self::KvmVpmu
                | Self::KvmMediated
                | Self::KvmNone
                | Self::VmxKvm
                | Self::VmxKvmVpmu
        )
    }

    /// Describes a run of this program on the machine, in a guest of this many vCPUs. The driver
    /// has this option beside the usual ones, if any.
    fn spec(self, program: &str, vcpus: u32, option: &str) -> Result<Spec> {
        let spec = self.usual(program, vcpus)?;
        match self {
            // Each instruction may be a sample, which the usual limit would put off. If two such
            // options are given, the last one counts, so this one also lets the tenant count.
            Self::Pvh => spec.driver("all,rate=1000"),
            Self::Perfctr if !option.is_empty() => spec.driver(&format!("rate=1000,{option}")),
            Self::Perfctr | Self::Kvm | Self::VmxKvm => spec.driver("rate=1000"),
            _ => Ok(spec),
        }
    }

    /// Returns the rows that a program has printed with the emulator's tally.
    fn costs_of(self, printed: &str) -> Vec<(Subject, Cost)> {
        let row = |line| {
            let (name, numbers) = split(line);
            let [ring_0, ring_3, entries, _, rdmsr, wrmsr, _] = numbers[..] else { return None };
            let [hypervisor, guest] = if self == Self::Native {
                [None, Some(ring_0 + ring_3)]
            } else {
                [Some(ring_0), Some(ring_3)]
            };
            let (operation, how) = name.split_once(": ").unwrap_or((&name, "by itself"));
            let cost = vec![hypervisor, guest, Some(entries), Some(rdmsr + wrmsr)];
            Some((self.subject(operation, how), cost))
        };
        printed.lines().filter_map(row).collect()
    }

    fn usual(self, program: &str, vcpus: u32) -> Result<Spec> {
        let topology = match self {
            Self::Perfctr | Self::Vpmu => "pv",
            Self::Native => "native",
            Self::Pvh => return tenants::bench(program, vcpus, false),
            Self::PvhVpmu => return tenants::bench(program, vcpus, true),
            Self::Kvm | Self::KvmVpmu | Self::KvmMediated | Self::KvmNone => {
                return self.guest_of_kvm("kvm", program, vcpus);
            }
            Self::VmxKvm | Self::VmxKvmVpmu => {
                return self.guest_of_kvm("vmx-kvm", program, vcpus);
            }
        };
        let mut spec = Spec::new(topology, [format!("/work/{program}")])?.deterministic();
        spec.timeout = LIMIT;
        if self != Self::Perfctr {
            spec = spec.stock("vpmu=on");
        }
        spec.keep_tally();
        if let Some(xen) = &mut spec.topology.xen {
            xen.add(&format!("dom0_max_vcpus={vcpus}"));
        }
        spec.add_program("benches", program)?;
        Ok(spec)
    }

    /// Describes a guest of this many vCPUs on a host with one CPU.
    fn guest_of_kvm(self, topology: &str, program: &str, vcpus: u32) -> Result<Spec> {
        let mut spec = Spec::new(topology, [format!("/work/{program}")])?.deterministic();
        spec.vcpus(vcpus)?;
        let host = spec.topology.kvm.as_mut().context("no host")?;
        host.calm = true;
        if !matches!(self, Self::Kvm | Self::VmxKvm) {
            spec.module = false;
            (host.args, host.allow) = ("enable_pmu=1".to_owned(), false);
            host.cpu = host.cpu.replace("pmu=off", "pmu=on");
        }
        match self {
            Self::KvmMediated => {
                (host.release, host.stock) = (Some(MEDIATED.to_owned()), true);
                host.vendor_args = "enable_mediated_pmu=1".to_owned();
            }
            Self::KvmNone => host.args = "enable_pmu=0".to_owned(),
            _ => {}
        }
        spec.timeout = LIMIT;
        spec.add_program("benches", program)?;
        Ok(spec)
    }

    /// Returns the heading of its table of samples and switches.
    fn heading(self) -> String {
        let ring_0 = match self {
            Self::Native => "the kernel",
            _ if self.is_guest_of_kvm() => "the host",
            _ => "the hypervisor",
        };
        format!("{}, ring 0 is {ring_0}'s", self.name())
    }

    /// Returns the machine's name in the tables.
    const fn name(self) -> &'static str {
        match self {
            Self::Perfctr => "Xen with perfctr",
            Self::Vpmu => "Xen with vpmu",
            Self::Pvh => "PVH with perfctr",
            Self::PvhVpmu => "PVH with vpmu",
            Self::Kvm => "KVM with perfctr",
            Self::KvmVpmu => "KVM with its PMU",
            Self::KvmMediated => "KVM with its mediated PMU",
            Self::KvmNone => "KVM without a PMU",
            Self::VmxKvm => "KVM on VT-x with perfctr",
            Self::VmxKvmVpmu => "KVM on VT-x with its PMU",
            Self::Native => "no hypervisor",
        }
    }

    /// Returns the subject of a row about this machine.
    fn subject(self, operation: &str, how: &str) -> Subject {
        let [operation, how] = [operation, how].map(str::to_owned);
        Subject { operation, how, machine: self.name().to_owned() }
    }
}

/// Returns what the program printed.
fn output(spec: Spec) -> Result<String> {
    let outcome = machine::run(&spec)?;
    if outcome.status != Status::Exited(0) {
        let reason = outcome.explain().unwrap_or_default();
        bail!("{}{reason}", String::from_utf8_lossy(&outcome.stderr));
    }
    String::from_utf8(outcome.stdout).context("the program printed something else than text")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::costs::places::MACHINES;

    #[test]
    fn every_machine_with_counters_has_a_place_beside_the_others() {
        let is_placed = |machine: &Machine| MACHINES.iter().any(|one| one.name == machine.name());
        for machine in Machine::value_variants() {
            assert_eq!(is_placed(machine), *machine != Machine::KvmNone, "{}", machine.name());
        }
    }

    #[test]
    fn a_machine_can_be_measured_alone() {
        let command = |machine| command(machine).unwrap();
        assert_eq!(command("KVM with its PMU"), "cargo xtask bench --only kvm-vpmu");
        assert_eq!(command("no hypervisor"), "cargo xtask bench --only native");
    }

    #[test]
    fn a_machine_with_an_option_is_compared_with_one_without_it() {
        let of = |printed: &str| Machine::Perfctr.costs_of(printed);
        let without =
            of("told/due ring 0\na whole switch of vCPUs: nobody samples 5 6 7 0 1 2 0\n");
        let printed = "a whole switch of vCPUs: nobody samples 9.5 6.0 7 0 1 3 0\n\
                       a switch of vCPUs: somebody samples the host 1 0 0 0 0 0 0\n";
        let rows = differences(of(printed), &without).unwrap();
        let row =
            |how, cost: [f64; 4]| (Machine::Perfctr.subject(SWITCH, how), cost.map(Some).to_vec());
        let expected = [
            row("the option profile, nobody samples", [4.5, 0.0, 0.0, 1.0]),
            row("somebody samples the host", [1.0, 0.0, 0.0, 0.0]),
        ];
        assert_eq!(rows, expected);
        let error = differences(of(printed), &[]).unwrap_err().to_string();
        assert!(error.starts_with("nothing beside") && error.contains("nobody samples"), "{error}");
    }

    #[test]
    fn a_line_is_words_and_numbers() {
        let split = |line| split(line);
        let (name, numbers) = split("libperfctr, 1 counter                         56.0");
        assert_eq!((name.as_str(), &numbers[..]), ("libperfctr, 1 counter", &[56.0][..]));
        let (name, numbers) = split("a sample: perf_event, a signal   510/500   1.5  -2.0  3.0");
        assert_eq!(
            (name.as_str(), &numbers[..]),
            ("a sample: perf_event, a signal", &[1.5, -2.0, 3.0][..])
        );
        let (name, _) = split("a switch: Linux/KVM   1.0");
        assert_eq!(name, "a switch: Linux/KVM");
    }
}
