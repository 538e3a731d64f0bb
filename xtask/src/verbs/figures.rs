// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask figures`: the README's tables of costs beside what `cargo xtask bench` prints.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::tools::sh;

/// Measures what the README says of costs, and compares.
#[derive(clap::Args)]
pub struct Args {
    /// What `cargo xtask bench` has printed earlier, in place of a new run.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

/// How far from a figure of the README a new one may be: instructions differ with the kernel's
/// timer and with what the compiler makes of a change; those of samples and switches, which are
/// differences of larger numbers, by some more.
const BAND_PERCENT: f64 = 5.0;
const BAND_INSTRUCTIONS: f64 = 50.0;
/// At least, of what is a whole number for each sample or switch, and mostly a small one.
const BAND_EVENTS: f64 = 1.0;

const PERFCTR: &str = "Xen with perfctr";
const VPMU: &str = "Xen with vpmu";
const PVH: &str = "PVH with perfctr";
const PVH_VPMU: &str = "PVH with vpmu";
const KVM: &str = "KVM with perfctr";
const KVM_PMU: &str = "KVM with its PMU";
const KVM_MEDIATED: &str = "KVM with its mediated PMU";
const KVM_NONE: &str = "KVM without a PMU";
const NATIVE: &str = "no hypervisor";

/// A row of the README, and the benchmarks' machine and line: that has to begin so.
const ROWS: [(&str, &str, &str); 78] = [
    ("libperfctr, 1 counter", "", "libperfctr, 1 counter"),
    ("libperfctr without the TSC, 1 counter", "", "libperfctr without the TSC, 1 counter"),
    ("libperfctr, 4 counters", "", "libperfctr, 4 counters"),
    ("ioctl of /dev/perfctr", "", "ioctl of /dev/perfctr"),
    ("perf_event with rdpmc, 1 counter", "", "perf_event, rdpmc, 1 counter"),
    ("perf_event with rdpmc, 4 counters", "", "perf_event, rdpmc, 4 counters"),
    ("perf_event with read(2), 1 counter", "", "perf_event, read(2), 1 counter"),
    ("in a PVH guest: libperfctr, 1 counter", "", "PVH: libperfctr, 1 counter"),
    ("in a PVH guest: libperfctr, 4 counters", "", "PVH: libperfctr, 4 counters"),
    ("in a PVH guest: ioctl of /dev/perfctr", "", "PVH: ioctl of /dev/perfctr"),
    (
        "in a PVH guest: perf_event on Xen's vpmu with read(2), 1 counter",
        "",
        "PVH, vpmu: perf_event, read(2), 1 counter",
    ),
    ("in a guest of KVM: libperfctr, 1 counter", "", "KVM: libperfctr, 1 counter"),
    ("in a guest of KVM: libperfctr, 4 counters", "", "KVM: libperfctr, 4 counters"),
    ("in a guest of KVM: ioctl of /dev/perfctr", "", "KVM: ioctl of /dev/perfctr"),
    (
        "in a guest of KVM: perf_event on KVM's PMU with read(2), 1 counter",
        "",
        "KVM, its PMU: perf_event, read(2), 1 counter",
    ),
    (
        "in a guest of KVM: perf_event on KVM's mediated PMU with read(2), 1 counter",
        "",
        "KVM, its mediated PMU: perf_event, read(2), 1 counter",
    ),
    ("a sample with a signal: libperfctr", PERFCTR, "a sample: libperfctr, a signal"),
    (
        "a sample with a signal: perf_event on perfctr's PMU",
        PERFCTR,
        "a sample: perf_event, a signal",
    ),
    ("a sample with a signal: perf_event on Xen's vpmu", VPMU, "a sample: perf_event, a signal"),
    (
        "a sample with a signal: perf_event without a hypervisor",
        NATIVE,
        "a sample: perf_event, a signal",
    ),
    (
        "a sample in the library's ring: libperfctr",
        PERFCTR,
        "a sample: libperfctr, records in a ring",
    ),
    (
        "a sample in perf's ring: perf_event on perfctr's PMU",
        PERFCTR,
        "a sample: perf_event, records",
    ),
    ("a sample in perf's ring: perf_event on Xen's vpmu", VPMU, "a sample: perf_event, records"),
    (
        "a sample in perf's ring: perf_event without a hypervisor",
        NATIVE,
        "a sample: perf_event, records",
    ),
    ("a null system call, 4 counters: libperfctr", PERFCTR, "a null system call: libperfctr"),
    (
        "a null system call, 4 counters: perf_event on perfctr's PMU",
        PERFCTR,
        "a null system call: perf_event",
    ),
    (
        "a null system call, 4 counters: perf_event on Xen's vpmu",
        VPMU,
        "a null system call: perf_event",
    ),
    (
        "a null system call, 4 counters: perf_event without a hypervisor",
        NATIVE,
        "a null system call: perf_event",
    ),
    ("an interrupt that tells nothing", PERFCTR, "an interrupt that tells nothing"),
    ("a switch of threads that count: libperfctr", PERFCTR, "a switch: libperfctr, counting"),
    (
        "a switch of threads that count: perf_event on perfctr's PMU",
        PERFCTR,
        "a switch: perf_event, counting",
    ),
    (
        "a switch of threads that count: perf_event on Xen's vpmu",
        VPMU,
        "a switch: perf_event, counting",
    ),
    (
        "a switch of threads that count: perf_event without a hypervisor",
        NATIVE,
        "a switch: perf_event, counting",
    ),
    ("a switch of threads that sample: libperfctr", PERFCTR, "a switch: libperfctr, sampling"),
    (
        "a switch of threads that sample: perf_event on perfctr's PMU",
        PERFCTR,
        "a switch: perf_event, sampling",
    ),
    (
        "a switch of threads that sample: perf_event on Xen's vpmu",
        VPMU,
        "a switch: perf_event, sampling",
    ),
    (
        "a switch of threads that sample: perf_event without a hypervisor",
        NATIVE,
        "a switch: perf_event, sampling",
    ),
    (
        "a switch of vCPUs that count: libperfctr",
        PERFCTR,
        "a switch of vCPUs: libperfctr, counting",
    ),
    (
        "a switch of vCPUs that count: perf_event on perfctr's PMU",
        PERFCTR,
        "a switch of vCPUs: perf_event, counting",
    ),
    (
        "a switch of vCPUs that count: perf_event on Xen's vpmu",
        VPMU,
        "a switch of vCPUs: perf_event, counting",
    ),
    ("PVH, a sample with a signal: libperfctr", PVH, "a sample: libperfctr, a signal"),
    (
        "PVH, a sample with a signal: perf_event on perfctr's PMU",
        PVH,
        "a sample: perf_event, a signal",
    ),
    (
        "PVH, a sample with a signal: perf_event on Xen's vpmu",
        PVH_VPMU,
        "a sample: perf_event, a signal",
    ),
    (
        "PVH, a sample in the library's ring: libperfctr",
        PVH,
        "a sample: libperfctr, records in a ring",
    ),
    (
        "PVH, a sample in perf's ring: perf_event on perfctr's PMU",
        PVH,
        "a sample: perf_event, records",
    ),
    (
        "PVH, a sample in perf's ring: perf_event on Xen's vpmu",
        PVH_VPMU,
        "a sample: perf_event, records",
    ),
    ("PVH, a switch of threads that count: libperfctr", PVH, "a switch: libperfctr, counting"),
    (
        "PVH, a switch of threads that count: perf_event on perfctr's PMU",
        PVH,
        "a switch: perf_event, counting",
    ),
    (
        "PVH, a switch of threads that count: perf_event on Xen's vpmu",
        PVH_VPMU,
        "a switch: perf_event, counting",
    ),
    (
        "PVH, a switch of vCPUs that count: libperfctr",
        PVH,
        "a switch of vCPUs: libperfctr, counting",
    ),
    (
        "PVH, a switch of vCPUs that count: perf_event on Xen's vpmu",
        PVH_VPMU,
        "a switch of vCPUs: perf_event, counting",
    ),
    ("KVM, a sample with a signal: libperfctr", KVM, "a sample: libperfctr, a signal"),
    (
        "KVM, a sample with a signal: perf_event on perfctr's PMU",
        KVM,
        "a sample: perf_event, a signal",
    ),
    (
        "KVM, a sample with a signal: perf_event on KVM's PMU",
        KVM_PMU,
        "a sample: perf_event, a signal",
    ),
    (
        "KVM, a sample in the library's ring: libperfctr",
        KVM,
        "a sample: libperfctr, records in a ring",
    ),
    (
        "KVM, a sample in perf's ring: perf_event on perfctr's PMU",
        KVM,
        "a sample: perf_event, records",
    ),
    (
        "KVM, a sample in perf's ring: perf_event on KVM's PMU",
        KVM_PMU,
        "a sample: perf_event, records",
    ),
    ("KVM, a switch of threads that count: libperfctr", KVM, "a switch: libperfctr, counting"),
    (
        "KVM, a switch of threads that count: perf_event on perfctr's PMU",
        KVM,
        "a switch: perf_event, counting",
    ),
    (
        "KVM, a switch of threads that count: perf_event on KVM's PMU",
        KVM_PMU,
        "a switch: perf_event, counting",
    ),
    (
        "KVM, a switch of vCPUs that count: libperfctr",
        KVM,
        "a switch of vCPUs: libperfctr, counting",
    ),
    (
        "KVM, a switch of vCPUs that count: perf_event on KVM's PMU",
        KVM_PMU,
        "a switch of vCPUs: perf_event, counting",
    ),
    (
        "KVM, a sample with a signal: perf_event on KVM's mediated PMU",
        KVM_MEDIATED,
        "a sample: perf_event, a signal",
    ),
    (
        "KVM, a sample in perf's ring: perf_event on KVM's mediated PMU",
        KVM_MEDIATED,
        "a sample: perf_event, records",
    ),
    (
        "KVM, a switch of threads that count: perf_event on KVM's mediated PMU",
        KVM_MEDIATED,
        "a switch: perf_event, counting",
    ),
    (
        "KVM, an exit without a switch: nobody counts, no PMU",
        KVM_NONE,
        "an exit without a switch: nobody counts",
    ),
    (
        "KVM, an exit without a switch: nobody counts, KVM's mediated PMU",
        KVM_MEDIATED,
        "an exit without a switch: nobody counts",
    ),
    (
        "KVM, an exit without a switch: libperfctr counts",
        KVM,
        "an exit without a switch: libperfctr",
    ),
    (
        "KVM, an exit without a switch: perf_event on KVM's PMU counts",
        KVM_PMU,
        "an exit without a switch: perf_event",
    ),
    (
        "KVM, an exit without a switch: perf_event on KVM's mediated PMU counts",
        KVM_MEDIATED,
        "an exit without a switch: perf_event",
    ),
    ("KVM, RDPMC: libperfctr", KVM, "RDPMC: libperfctr"),
    ("KVM, RDPMC: perf_event on KVM's PMU", KVM_PMU, "RDPMC: perf_event"),
    ("KVM, RDPMC: perf_event on KVM's mediated PMU", KVM_MEDIATED, "RDPMC: perf_event"),
    ("KVM, another event: libperfctr", KVM, "another event: libperfctr"),
    ("KVM, another event: perf_event on KVM's PMU", KVM_PMU, "another event: perf_event"),
    (
        "KVM, another event: perf_event on KVM's mediated PMU",
        KVM_MEDIATED,
        "another event: perf_event",
    ),
    ("KVM, a selector is written: KVM's PMU", KVM_PMU, "another event: WRMSR"),
    ("KVM, a selector is written: KVM's mediated PMU", KVM_MEDIATED, "another event: WRMSR"),
];

/// Figures by their rows.
type Figures = BTreeMap<String, Vec<f64>>;

/// Fails if a figure is out of its band, or has no counterpart.
pub fn run(args: &Args) -> Result<()> {
    let printed = match &args.from {
        Some(file) => fs::read_to_string(file).with_context(|| file.display().to_string())?,
        None => bench()?,
    };
    let readme = fs::read_to_string(sh::project().join("README.md"))?;
    let wrong = compare(&documented(&readme)?, &measured(&printed))?;
    ensure!(wrong.is_empty(), "README.md is wrong:\n{}", wrong.join("\n"));
    println!("README.md has {} rows of costs, and all are right", ROWS.len());
    Ok(())
}

/// Runs the benchmarks, and shows what they print.
fn bench() -> Result<String> {
    let mut bench = Command::new(env::current_exe()?);
    let mut child = bench.arg("bench").stdout(Stdio::piped()).spawn()?;
    let mut all = String::new();
    for line in BufReader::new(child.stdout.take().context("it is a pipe")?).lines() {
        let line = line?;
        println!("{line}");
        all.extend([&line, "\n"]);
    }
    ensure!(child.wait()?.success(), "the benchmarks have failed");
    Ok(all)
}

/// The rows of tables in the README whose second column is a cost.  A name that begins with `...`
/// goes on after the colon of the one above.
fn documented(readme: &str) -> Result<Figures> {
    let mut figures = Figures::new();
    let (mut inside, mut subject) = (false, String::new());
    for line in readme.lines() {
        let Some(row) = line.strip_prefix('|').and_then(|row| row.strip_suffix('|')) else {
            inside = false;
            continue;
        };
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().replace('`', "")).collect();
        if matches!(cells[1].as_str(), "instructions" | "hypervisor") {
            inside = true;
        } else if inside && !cells[0].starts_with("---") {
            let name = match cells[0].strip_prefix("... ") {
                Some(rest) => format!("{subject}: {rest}"),
                None => cells[0].clone(),
            };
            subject = name.split(": ").next().unwrap_or_default().to_owned();
            let numbers = cells[1..].iter().filter(|cell| !cell.is_empty());
            let numbers = numbers.map(|cell| cell.replace(',', "").parse::<f64>());
            let numbers = numbers.collect::<Result<_, _>>().with_context(|| line.to_owned())?;
            figures.insert(name, numbers);
        }
    }
    Ok(figures)
}

/// What the benchmarks have printed, in the README's rows and columns.
fn measured(printed: &str) -> Figures {
    let mut figures = Figures::new();
    let mut machine = "";
    for line in printed.lines() {
        machine = [PERFCTR, VPMU, PVH, PVH_VPMU, KVM, KVM_PMU, KVM_MEDIATED, KVM_NONE, NATIVE]
            .into_iter()
            .find(|m| line.starts_with(m))
            .unwrap_or(machine);
        let Some((row, ..)) =
            ROWS.iter().find(|(_, of, begin)| *of == machine && line.starts_with(begin))
        else {
            continue;
        };
        let mut numbers: Vec<f64> =
            line.split_whitespace().rev().map_while(|word| word.parse().ok()).collect();
        numbers.reverse();
        let columns = match numbers[..] {
            [ring_0, ring_3, entries, _, rdmsr, wrmsr, _] if machine == NATIVE => {
                vec![ring_0 + ring_3, entries, rdmsr + wrmsr]
            }
            [ring_0, ring_3, entries, _, rdmsr, wrmsr, _] => {
                vec![ring_0, ring_3, entries, rdmsr + wrmsr]
            }
            _ => numbers,
        };
        figures.insert((*row).to_owned(), columns);
    }
    figures
}

/// What is wrong; prints every row.
fn compare(documented: &Figures, measured: &Figures) -> Result<Vec<String>> {
    for name in documented.keys() {
        let known = ROWS.iter().any(|(row, ..)| row == name);
        ensure!(known, "nobody knows how to measure README.md's row `{name}`");
    }
    let mut wrong = Vec::new();
    for (name, ..) in ROWS {
        let expected = documented.get(name).with_context(|| format!("README.md: no `{name}`"))?;
        let found = measured.get(name).with_context(|| format!("no benchmark says `{name}`"))?;
        println!("{name:<64} documented {expected:?}, measured {found:?}");
        // The last two columns of a row with more than one are events.
        let instructions = if expected.len() > 1 { expected.len().saturating_sub(2) } else { 1 };
        // One column is a read's, which is exact to the instruction but for its loop.
        let least = if expected.len() > 1 { BAND_INSTRUCTIONS } else { 0.0 };
        let near = |(n, (expected, found)): (usize, (&f64, &f64))| {
            let relative = expected.abs() * BAND_PERCENT / 100.0;
            let band =
                if n < instructions { relative.max(least) } else { relative.max(BAND_EVENTS) };
            (expected - found).abs() <= band
        };
        let all = expected.iter().zip(found).enumerate().all(near);
        if !all || expected.len() != found.len() {
            wrong.push(format!("{name}: documented {expected:?}, measured {found:?}"));
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the benchmarks would print the README's own figures.
    fn printed(figures: &Figures) -> String {
        let mut text = String::new();
        for (row, machine, begin) in ROWS {
            let numbers = match figures[row][..] {
                [all] => format!("{all}"),
                [kernel, entries, registers] => format!("{kernel} 0 {entries} 0 0 {registers} 0"),
                [ring_0, ring_3, entries, registers] => {
                    format!("{ring_0} {ring_3} {entries} 0 0 {registers} 0")
                }
                ref other => panic!("{row}: {other:?}"),
            };
            text += &format!("{machine}\n{begin} 500/500 {numbers}\n");
        }
        text
    }

    fn readme() -> Figures {
        let text = fs::read_to_string(sh::project().join("README.md")).unwrap();
        documented(&text).unwrap()
    }

    #[test]
    fn figures_agree_with_a_print_of_themselves() {
        let readme = readme();
        assert_eq!(compare(&readme, &measured(&printed(&readme))).unwrap(), [""; 0]);
    }

    #[test]
    fn a_wrong_figure_in_any_column_of_any_row_is_named() {
        let readme = readme();
        let printed = printed(&readme);
        for (row, figures) in &readme {
            for column in 0..figures.len() {
                let mut planted = readme.clone();
                let figure = &mut planted.get_mut(row).unwrap()[column];
                *figure = *figure * 1.06 + if figures.len() > 1 { 53.0 } else { 0.0 };
                let wrong = compare(&planted, &measured(&printed)).unwrap();
                assert_eq!(wrong.len(), 1, "{row}, column {column}");
                assert!(wrong[0].starts_with(row), "{wrong:?}");
            }
        }
    }

    #[test]
    fn a_row_without_a_benchmark_is_an_error_and_so_is_the_reverse() {
        let (all, mut more, mut less) = (readme(), readme(), readme());
        more.insert("a dream: libperfctr".to_owned(), vec![1.0]);
        less.remove(ROWS[0].0);
        let measured = measured(&printed(&all));
        assert!(compare(&more, &measured).is_err());
        assert!(compare(&less, &measured).is_err());
        assert!(compare(&all, &less).is_err());
    }
}
