// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts the faults of each part of the project for `docs/faults.md`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::catalogue::{Fault, Tier, read};

/// The page with the table.
const PAGE: &str = "docs/faults.md";

/// The parts, each with the beginning of its files' names.
const PARTS: [(&str, &str); 12] = [
    ("shared-abi/", "ABI"),
    ("hv-driver/src/", "driver: its core"),
    ("hv-driver/ffi/", "driver: between C and the core"),
    ("hv-driver/glue/xen/", "driver: C in Xen"),
    ("hv-driver/glue/kvm/", "driver: C in KVM"),
    ("guest-kmod/src/", "module: its core"),
    ("guest-kmod/ffi/", "module: between C and the core"),
    ("guest-kmod/glue/", "module: C in Linux"),
    ("libperfctr-rs/", "library"),
    ("papi-shim/", "perfctr's C interface"),
    ("cli/", "command"),
    ("tests/sim/", "model of the machine in the simulator"),
];

const TIERS: [Tier; 3] = [Tier::Host, Tier::Sim, Tier::Vm];

/// Returns the table, which has a row for each part.
fn table(faults: &[Fault]) -> Result<String> {
    let mut text = "| part | host | sim | vm | all |\n|---|---:|---:|---:|---:|\n".to_owned();
    let mut sum = [0; TIERS.len()];
    let mut row = |name: &str, counts: [usize; TIERS.len()]| {
        let cells: Vec<String> = counts.iter().map(usize::to_string).collect();
        let all: usize = counts.iter().sum();
        text += &format!("| {name} | {} | {all} |\n", cells.join(" | "));
    };
    for (start, name) in PARTS {
        let of_part =
            |fault: &&Fault| fault.edits.first().is_some_and(|edit| edit.file.starts_with(start));
        let of_tier = |tier| {
            faults.iter().filter(of_part).filter(|fault: &&Fault| fault.tier == tier).count()
        };
        let counts = TIERS.map(of_tier);
        for (sum, count) in sum.iter_mut().zip(counts) {
            *sum += count;
        }
        row(name, counts);
    }
    row("all", sum);
    let listed: usize = sum.iter().sum();
    ensure!(listed == faults.len(), "{} faults are of no part", faults.len() - listed);
    Ok(text)
}

/// Returns the page as it is, and with the present table in it.
fn page(root: &Path) -> Result<(String, String)> {
    let text = fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let is_row = |line: &&str| line.starts_with('|');
    let old: String = text.lines().filter(is_row).map(|line| format!("{line}\n")).collect();
    ensure!(!old.is_empty() && text.contains(&old), "{PAGE} has no table, or several");
    let new = text.replace(&old, &table(&read(root)?)?);
    Ok((text, new))
}

/// Makes sure that the page says how many faults there are.
pub fn check(root: &Path) -> Result<()> {
    let (found, expected) = page(root)?;
    ensure!(found == expected, "{PAGE} is stale: `cargo xtask faults --counts` writes its table");
    Ok(())
}

/// Writes the page's table, and returns it.
pub fn write(root: &Path) -> Result<String> {
    let (_, text) = page(root)?;
    fs::write(root.join(PAGE), text)?;
    table(&read(root)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artefacts::faults::Edit;

    fn fault(file: &str, tier: Tier) -> Fault {
        let edit = Edit {
            file: file.to_owned(),
            anchor: String::new(),
            within: None,
            wrong: String::new(),
            always: false,
        };
        Fault {
            name: "A".to_owned(),
            what: "B".to_owned(),
            tier,
            alone: false,
            suite: None,
            test: None,
            program: None,
            edits: vec![edit],
            list: String::new(),
        }
    }

    #[test]
    fn each_fault_is_in_one_row() {
        let files = ["cli/src/a.rs", "hv-driver/glue/xen/a.c", "cli/src/b.rs", "cli/src/c.rs"];
        let tiers = [Tier::Host, Tier::Vm, Tier::Sim, Tier::Host];
        let mut faults: Vec<Fault> =
            files.into_iter().zip(tiers).map(|(file, tier)| fault(file, tier)).collect();
        let text = table(&faults).unwrap();
        for row in ["| command | 2 | 1 | 0 | 3 |", "| driver: C in Xen | 0 | 0 | 1 | 1 |"] {
            assert!(text.contains(row), "no {row} in\n{text}");
        }
        assert!(text.ends_with("| all | 2 | 1 | 1 | 4 |\n"), "{text}");
        faults.push(fault("elsewhere/a.rs", Tier::Host));
        assert!(table(&faults).is_err());
    }
}
