// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts Debian's programs in domains of different kinds, alone and side by side. Compares the
//! counts with those on Linux without a hypervisor, and the differences with `docs/domains.md`. The
//! long tier has more programs and one more kind of domain.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::artefacts::rootfs;
use crate::machine::Spec;
use crate::suites::programs;
use crate::suites::report::{Report, Volume};
use crate::suites::tenants;
use crate::tools::sh;

/// The commands that run in each tier.
const COMMANDS: &str = "\
/usr/bin/true
/usr/bin/gzip -9nc words
/usr/bin/sort -S 1M words.py
";
/// A program that does nothing, and so executes only the dynamic loader. The loader inspects the
/// CPU, and finds another one in a PVH domain, for which Xen provides CPUID.
const LOADER: &str = "/usr/bin/true";
/// Programs whose instructions differ between machines, whoever counts them, since they ask for the
/// size of the memory or the content of a directory.
const ASKING: [&str; 3] = ["xz", "python3.11", "cc1"];
/// The events, in the order of the true counts.
const EVENTS: [&str; 3] = ["instructions:u", "branches:u", "cycles:u"];
/// The index of cycles in [`EVENTS`].
const CYCLES: usize = 2;
/// The kinds of domains. HVM is in the long tier only, since its firmware takes minutes.
const KINDS: [&str; 3] = ["Pv", "Pvh", "Hvm"];
const SCENES: [&str; 4] = ["a", "b", "c", "d"];
/// The document with the table.
const DOCUMENT: &str = "docs/domains.md";

/// One count of a program in a domain.
struct Count {
    command: String,
    scene: String,
    /// What the domain's name starts with.
    kind: String,
    /// The event, as an index into [`EVENTS`].
    event: usize,
    /// The count less the true one.
    deviation: i64,
}

/// What is compared.
#[derive(Clone, Copy, Default)]
struct Extent {
    /// Whether there are more programs than [`COMMANDS`].
    more_programs: bool,
    /// Whether there is an HVM domain, too.
    hvm: bool,
    /// Whether the CPUs count VMRUN in the guest, and the hypervisor knows it.
    counts_entries: bool,
}

/// Boots two machines. The long tier boots two more, on CPUs that count VMRUN in the guest.
pub fn run(report: &mut Report) -> Result<()> {
    if report.volume == Volume::Usual {
        return compare(report, Extent::default());
    }
    let hvm = Extent { hvm: true, ..Extent::default() };
    compare(report, Extent { more_programs: true, ..hvm })?;
    compare(report, Extent { counts_entries: true, ..hvm })
}

/// Compares the counts in domains with those on Linux alone.
fn compare(report: &mut Report, extent: Extent) -> Result<()> {
    let where_counted = if extent.counts_entries { " where VMRUN is counted" } else { "" };
    let kinds = &KINDS[..if extent.hvm { KINDS.len() } else { 2 }];
    let commands = if extent.more_programs { every_command() } else { COMMANDS.to_owned() };
    let dir = programs::files(&commands)?;
    let domains = machine(&dir, extent)?;
    let mut alone = programs::machine("native", "", &dir)?;
    // The bare machine has as many CPUs as a domain, since the C library asks the CPU for their
    // number, and programs ask the kernel.
    alone.topology.cpu.clone_from(&domains.topology.cpu);
    alone.topology.linux.push_str(" nr_cpus=1");
    let truth = programs::counted(alone)?;
    let truth: BTreeMap<_, _> =
        truth.into_iter().map(|(command, counts)| (command, counts[0])).collect();
    let outcome = report.program_outcome(domains, "domains")?;
    let printed = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let mut counts = counts(&printed, &truth)?;
    if extent.counts_entries {
        // It is unknown how many cycles VMRUN takes in the guest, so the driver does not correct
        // them.
        let (cycles, others) = counts.into_iter().partition(|count| count.event == CYCLES);
        counts = others;
        note_cycles(report, kinds, &cycles);
    }
    let loader = by_itself(LOADER, &counts);
    for (kind, deviations) in kinds.iter().zip(loader) {
        report.note(format!(
            "{kind}{where_counted}: the loader's {EVENTS:?} deviate by {deviations:?}"
        ));
    }
    report.test(
        &format!("in a PV domain nothing deviates, the loader neither{where_counted}"),
        || {
            ensure!(loader[0] == [0; 3], "{:?}", loader[0]);
            Ok(())
        },
    );
    let document = fs::read_to_string(sh::project().join(DOCUMENT))?;
    for command in commands.lines() {
        let name = programs::name(command);
        let asks = ASKING.contains(&name);
        let expected = if asks { by_itself(command, &counts) } else { loader };
        for (kind, expected) in kinds.iter().zip(&expected) {
            let scenes = if asks { &SCENES[1..] } else { &SCENES };
            let row = row(command, truth[command][0], kind, scenes, &counts, expected)?;
            report.test(&format!("{name} deviates by nothing in {kind}{where_counted}"), || {
                let is_there = document.lines().any(|line| line == row);
                ensure!(is_there, "{DOCUMENT} does not say\n{row}");
                Ok(())
            });
        }
    }
    Ok(())
}

/// Notes by how much the counts of cycles deviate in domains of each kind where VMRUN is counted.
fn note_cycles(report: &mut Report, kinds: &[&str], cycles: &[Count]) {
    for kind in kinds {
        let deviations = cycles.iter().filter(|count| count.kind == *kind);
        let deviations = deviations.map(|count| count.deviation);
        if let Some((least, most)) = deviations.clone().min().zip(deviations.max()) {
            report.note(format!(
                "{kind} where VMRUN is counted: cycles deviate by {least} to {most}"
            ));
        }
    }
}

/// Returns this suite's commands and those of suite `programs`.
fn every_command() -> String {
    let is_new = |command: &&str| !COMMANDS.contains(programs::name(command));
    let more = programs::COMMANDS.lines().filter(is_new);
    COMMANDS.lines().chain(more).map(|command| format!("{command}\n")).collect()
}

/// Describes a machine with a domain of each kind. It has nothing that only other programs or
/// another kind would need.
fn machine(dir: &Path, extent: Extent) -> Result<Spec> {
    let Extent { more_programs, hvm, counts_entries } = extent;
    let mut command = vec!["/work/domains", "control", "/work/commands"];
    command.extend(hvm.then_some("--hvm"));
    let (driver, habits) =
        if counts_entries { ("all,entries=counted", ",pmu-habits=vmrun") } else { ("all", "") };
    let mut spec = Spec::new("pv-amd", command)?.driver(driver)?;
    spec.topology.cpu.push_str(habits);
    spec.timeout = Duration::from_secs(600);
    spec.topology.memory_mib += 1024;
    spec.copy.push(dir.to_owned());
    let mut trees = vec![(String::new(), rootfs::tenant()?), ("work".to_owned(), dir.to_owned())];
    if more_programs {
        trees.push((String::new(), rootfs::programs()?));
    }
    tenants::add_tenant(&mut spec, "domains", &trees)?;
    if hvm {
        tenants::add_device_model(&mut spec)?;
        spec.timeout *= 6;
        spec.topology.memory_mib += 512;
    }
    Ok(spec)
}

/// Returns all counts that the machine has printed.
fn counts(printed: &str, truth: &BTreeMap<String, [u64; 3]>) -> Result<Vec<Count>> {
    let count = |line: &str| {
        let words: Vec<&str> = line.splitn(5, ' ').collect();
        let [scene, domain, event, count, command] = words[..] else { bail!("{line}") };
        let event = EVENTS.iter().position(|name| *name == event).context("an unknown event")?;
        let truth = truth.get(command).context("a program without truth")?[event];
        Ok(Count {
            command: command.to_owned(),
            scene: scene.to_owned(),
            kind: domain.split('-').next().unwrap_or_default().to_owned(),
            event,
            deviation: count.parse::<u64>()?.wrapping_sub(truth).cast_signed(),
        })
    };
    printed.lines().filter_map(|line| line.strip_prefix("count ")).map(count).collect()
}

/// Returns the deviation of each event of a program in a domain of each kind, while nothing else
/// runs.
fn by_itself(command: &str, counts: &[Count]) -> [[i64; 3]; KINDS.len()] {
    let of = |kind, event| {
        let mut all = counts.iter().filter(|count| {
            (count.command == command && count.scene == SCENES[0])
                && (count.kind == kind && count.event == event)
        });
        all.next().map_or(0, |count| count.deviation)
    };
    KINDS.map(|kind| [0, 1, 2].map(|event| of(kind, event)))
}

/// Returns the document's row about a program in a kind of domain. It has the true count of
/// instructions in millions, and how much further than expected the counts of each of these scenes,
/// which are the last ones, deviate.
fn row(
    command: &str,
    truth: u64,
    kind: &str,
    scenes: &[&str],
    counts: &[Count],
    expected: &[i64; 3],
) -> Result<String> {
    let millions = truth as f64 / 1e6;
    let mut row =
        format!("| {} | {millions:.1} | {} |", programs::name(command), kind.to_uppercase());
    row += &" |".repeat(SCENES.len() - scenes.len());
    for scene in scenes {
        let mut deviations: Vec<i64> = counts
            .iter()
            .filter(|count| count.command == command && count.scene == *scene && count.kind == kind)
            .map(|count| count.deviation - expected[count.event])
            .collect();
        deviations.sort_unstable();
        deviations.dedup();
        ensure!(!deviations.is_empty(), "{command} was not counted in ({scene}) of {kind}");
        let deviations: Vec<_> = deviations.iter().map(i64::to_string).collect();
        row += &format!(" {} |", deviations.join(", "));
    }
    Ok(row)
}
