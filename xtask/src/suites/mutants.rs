// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Whether the tests of the model tier notice small faults: cargo-mutants puts one after another
//! into the two cores and the shared ABI, and runs their own tests and the simulator's.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::report::{Report, Volume};
use crate::tools::{cache, sh, toolchain};

/// The tool, from crates.io.
const TOOL: &str = "cargo-mutants";
const TOOL_VERSION: &str = "27.1.0";

/// What is mutated, and whose tests run besides.
const MUTATED: [&str; 3] = ["shared-abi", "hv-driver", "guest-kmod"];
const TESTED: [&str; 4] = ["shared-abi", "hv-driver", "guest-kmod", "sim"];

/// What only builds for tests have, and what writes the C headers, which `check` compares.
const EXCLUDED: [&str; 4] = [
    "shared-abi/src/planted.rs",
    "shared-abi/src/sync/*.rs",
    "shared-abi/src/c_header.rs",
    "guest-kmod/src/testing.rs",
];

/// Mutants that no test can tell from the original, each under its reason.
const EQUIVALENT: &str = "tests/mutants.txt";

/// Seconds that the tests of one mutant may take; one that hangs is one that is noticed.
const TIMEOUT: &str = "120";

/// The suite: in the long tier every mutant is tried, otherwise only the list is read.
pub fn suite(report: &mut Report) -> Result<()> {
    report.test("every survivor on the list has a reason", || equivalent().map(drop));
    if report.volume == Volume::Long {
        report.test("no other mutant survives", || try_all(&[]));
    }
    Ok(())
}

/// Tries every mutant that `options` of cargo-mutants leave, and demands that none survives that is
/// not on the list.
pub fn try_all(options: &[String]) -> Result<()> {
    let known = equivalent()?;
    let survivors = survivors(options)?;
    let stale = known.difference(&survivors);
    if options.is_empty() {
        stale.for_each(|mutant| println!("on the list, but noticed or gone: {mutant}"));
    }
    let unknown: Vec<&str> = survivors.difference(&known).map(String::as_str).collect();
    println!("{} survive, {} of them not on the list", survivors.len(), unknown.len());
    ensure!(unknown.is_empty(), "survivors not in {EQUIVALENT}:\n{}", unknown.join("\n"));
    Ok(())
}

/// Runs the tool; gives what survived.
fn survivors(options: &[String]) -> Result<BTreeSet<String>> {
    let output = sh::project().join("target").join("mutants");
    fs::create_dir_all(&output)?;
    let mut mutants = Command::new(tool()?);
    mutants.arg("mutants").current_dir(sh::project()).env("RUSTFLAGS", "--cfg sim");
    mutants.args(["--no-shuffle", "--profile", "mutants", "--timeout", TIMEOUT]);
    mutants.arg("--output").arg(&output);
    mutants.args(MUTATED.iter().flat_map(|package| ["--package", package]));
    mutants.args(TESTED.iter().flat_map(|package| ["--test-package", package]));
    mutants.args(EXCLUDED.iter().flat_map(|file| ["--exclude", file]));
    let status = mutants.args(options).status().context(TOOL)?;
    // All noticed; some missed; some timed out.
    ensure!(matches!(status.code(), Some(0 | 2 | 3)), "{TOOL}: {status}");
    let missed = output.join("mutants.out").join("missed.txt");
    let text = fs::read_to_string(&missed).with_context(|| missed.display().to_string())?;
    Ok(text.lines().map(without_place).collect())
}

/// Where the tool is; it is installed once.
fn tool() -> Result<PathBuf> {
    let key = cache::Key::new("1").text(TOOL_VERSION);
    let root = cache::artefact(TOOL, key, |root| {
        let mut install = toolchain::cargo();
        install.args(["install", TOOL, "--version", TOOL_VERSION, "--locked", "--quiet"]);
        sh::run(install.arg("--root").arg(root))
    })?;
    Ok(root.join("bin").join(TOOL))
}

/// `FILE:LINE:COLUMN: MUTATION` without line and column, which change all the time.
fn without_place(mutant: &str) -> String {
    let mut parts = mutant.splitn(4, ':');
    match (parts.next(), parts.nth(2)) {
        (Some(file), Some(mutation)) => format!("{file}:{mutation}"),
        _ => mutant.to_owned(),
    }
}

fn equivalent() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(sh::project().join(EQUIVALENT)).context(EQUIVALENT)?;
    listed(&text)
}

/// Paragraphs: lines that start with `# ` are the reason for the mutants below them.
fn listed(text: &str) -> Result<BTreeSet<String>> {
    let mut mutants = BTreeSet::new();
    let mut has_reason = false;
    for line in text.lines() {
        match line {
            "" => has_reason = false,
            _ if line.starts_with("# ") => has_reason = true,
            _ if !has_reason => bail!("no reason is given for: {line}"),
            _ => drop(mutants.insert(line.to_owned())),
        }
    }
    Ok(mutants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_is_known_wherever_it_is() {
        let mutant = "hv-driver/src/a.rs:12:5: replace a::b -> u32 with 0";
        assert_eq!(without_place(mutant), "hv-driver/src/a.rs: replace a::b -> u32 with 0");
    }

    #[test]
    fn each_listed_mutant_has_a_reason() {
        let text = "# The same,\n# in other words.\na.rs: replace | with ^ in b\n";
        assert_eq!(listed(text).unwrap().len(), 1);
        assert!(listed(&format!("{text}\na.rs: replace + with - in b\n")).is_err());
        assert!(listed("a.rs: replace + with - in b\n").is_err());
    }
}
