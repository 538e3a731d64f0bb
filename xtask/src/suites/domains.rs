// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Programs of Debian's in domains of different kinds, alone and side by side, beside the same on
//! Linux without a hypervisor, and beside what `docs/domains.md` says of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::artefacts::rootfs;
use crate::machine::Spec;
use crate::suites::programs;
use crate::suites::report::Report;
use crate::suites::tenants;
use crate::tools::sh;

/// What runs.
const COMMANDS: &str = "\
/usr/bin/true
/usr/bin/gzip -9nc words
/usr/bin/sort -S 1M words.py
";
/// What a program executes that does nothing: the dynamic loader looks at the CPU, and finds
/// another one in a PVH domain, for which CPUID is Xen's.
const LOADER: &str = "/usr/bin/true";
/// The events in the order in which the truth has them.
const EVENTS: [&str; 3] = ["instructions:u", "branches:u", "cycles:u"];
const KINDS: [&str; 2] = ["Pv", "Pvh"];
const SCENES: [&str; 4] = ["a", "b", "c", "d"];
/// Where the table is.
const DOCUMENT: &str = "docs/domains.md";

/// One count of a program in a domain.
struct Count {
    command: String,
    scene: String,
    /// What the domain's name starts with.
    kind: String,
    /// Which of [`EVENTS`].
    event: usize,
    /// What was counted beyond the truth.
    deviation: i64,
}

/// Two boots.
pub fn run(report: &mut Report) -> Result<()> {
    let dir = programs::files(COMMANDS)?;
    let domains = machine(&dir)?;
    let mut alone = programs::machine("native", "", &dir)?;
    // What a domain has: the C library asks the CPU how many there are, and programs the kernel.
    alone.topology.cpu.clone_from(&domains.topology.cpu);
    alone.topology.linux.push_str(" nr_cpus=1");
    let truth = programs::counted(alone)?;
    let truth: BTreeMap<_, _> =
        truth.into_iter().map(|(command, counts)| (command, counts[0])).collect();
    let outcome = report.program_outcome(domains, "domains")?;
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let counts = counts(&said, &truth)?;
    let loader = loader(&counts);
    for (kind, deviations) in KINDS.iter().zip(loader) {
        report.note(format!("{kind}: the loader's {EVENTS:?} deviate by {deviations:?}"));
    }
    report.test("in a PV domain nothing deviates, the loader neither", || {
        ensure!(loader[0] == [0; 3], "{:?}", loader[0]);
        Ok(())
    });
    let document = fs::read_to_string(sh::project().join(DOCUMENT))?;
    for command in COMMANDS.lines() {
        let row = row(command, truth[command][0], &counts, &loader)?;
        report.test(&format!("{} deviates by nothing", programs::name(command)), || {
            ensure!(document.lines().any(|line| line == row), "{DOCUMENT} does not say\n{row}");
            Ok(())
        });
    }
    Ok(())
}

/// A machine with domains of both kinds.
fn machine(dir: &Path) -> Result<Spec> {
    let command = ["/work/domains", "control", "/work/commands"];
    let mut spec = Spec::new("pv-amd", command)?.driver("all")?;
    spec.timeout = Duration::from_secs(600);
    spec.topology.memory_mib += 1024;
    spec.copy.push(dir.to_owned());
    let trees = [("", rootfs::tenant()?), ("", rootfs::programs()?), ("work", dir.to_owned())];
    tenants::add_tenant(&mut spec, "domains", &trees.map(|(at, path)| (at.to_owned(), path)))?;
    Ok(spec)
}

/// All that was counted.
fn counts(said: &str, truth: &BTreeMap<String, [u64; 3]>) -> Result<Vec<Count>> {
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
    said.lines().filter_map(|line| line.strip_prefix("count ")).map(count).collect()
}

/// By how much each event of the loader deviates in a domain of each kind that runs nothing else.
fn loader(counts: &[Count]) -> [[i64; 3]; 2] {
    let of = |kind, event| {
        let mut all = counts.iter().filter(|count| {
            (count.command == LOADER && count.scene == "a")
                && (count.kind == kind && count.event == event)
        });
        all.next().map_or(0, |count| count.deviation)
    };
    KINDS.map(|kind| [0, 1, 2].map(|event| of(kind, event)))
}

/// The document's row about a program: what it executes in millions, and by how much the counts of
/// each kind of domain and each scene deviate, the loader's own share left out.
fn row(command: &str, truth: u64, counts: &[Count], loader: &[[i64; 3]; 2]) -> Result<String> {
    let mut row = format!("| {} | {:.1} |", programs::name(command), truth as f64 / 1e6);
    for (kind, loader) in KINDS.iter().zip(loader) {
        for scene in SCENES {
            let mut deviations: Vec<i64> = counts
                .iter()
                .filter(|count| {
                    count.command == command && count.scene == scene && count.kind == *kind
                })
                .map(|count| count.deviation - loader[count.event])
                .collect();
            deviations.sort_unstable();
            deviations.dedup();
            ensure!(!deviations.is_empty(), "{command} was not counted in ({scene}) of {kind}");
            let deviations: Vec<_> = deviations.iter().map(i64::to_string).collect();
            row += &format!(" {} |", deviations.join(", "));
        }
    }
    Ok(row)
}
