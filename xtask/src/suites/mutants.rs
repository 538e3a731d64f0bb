// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests whether the tests of the model tier notice small faults. cargo-mutants puts one after
//! another into the two cores and the shared ABI.
//!
//! Each mutant is first tried with the tests that are built most quickly. Those that survive are
//! tried with the next tests, and finally with the simulator's. The results are kept in
//! `target/mutation` as long as the package's code stays the same. So a run that was interrupted
//! continues, and a run after more tests were written tries only the survivors. Remove the
//! directory to begin anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::report::{Report, Volume};
use crate::tools::{cache, sh, toolchain};

/// The tool, which comes from crates.io.
const TOOL: &str = "cargo-mutants";
const TOOL_VERSION: &str = "27.1.0";

/// The packages that are mutated, each with the tests that a mutant is tried with, in order.
const MUTATED: [(&str, &[Tests]); 3] = [
    ("shared-abi", &[Tests::Unit, Tests::Package, Tests::Simulator]),
    ("hv-driver", &[Tests::Package, Tests::Simulator]),
    ("guest-kmod", &[Tests::Unit, Tests::Simulator]),
];

/// Files without mutants: they are in builds for tests only, or write the C headers, which `check`
/// compares.
const EXCLUDED: [&str; 3] =
    ["shared-abi/src/sync/*.rs", "shared-abi/src/c_header.rs", "guest-kmod/src/testing.rs"];

/// The list of mutants that no test can tell from the original, each with its reason.
const EQUIVALENT: &str = "tests/mutants.txt";

/// Runs the suite: in the long tier every mutant is tried, otherwise only the list is read.
pub fn suite(report: &mut Report) -> Result<()> {
    report.test("every survivor on the list has a reason", || equivalent().map(drop));
    if report.volume == Volume::Long {
        report.test("no other mutant survives", || try_all(None, &[]));
    }
    Ok(())
}

/// The kinds of mutants, wherever in the file they are, each with the number of its mutants.
type Kinds = BTreeMap<String, usize>;

/// Tries the mutants of one package, or of all, that `options` of cargo-mutants choose. Fails if
/// one survives that is not on the list.
pub fn try_all(only: Option<&str>, options: &[String]) -> Result<()> {
    let known = equivalent()?;
    let mut survivors = Kinds::new();
    let chosen: Vec<_> =
        MUTATED.into_iter().filter(|(name, _)| only.is_none_or(|only| only == *name)).collect();
    ensure!(!chosen.is_empty(), "packages: {}", MUTATED.map(|(name, _)| name).join(", "));
    for (package, tests) in chosen {
        survivors.extend(survivors_of(package, tests, options, &known)?);
    }
    if only.is_none() && options.is_empty() {
        for (kind, listed) in &known {
            let left = survivors.get(kind).copied().unwrap_or(0);
            if left < *listed {
                println!("{listed} on the list, {left} of them survive: {kind}");
            }
        }
    }
    let is_unknown = |(kind, count): &(&String, &usize)| *count > known.get(*kind).unwrap_or(&0);
    let unknown: Vec<String> =
        survivors.iter().filter(is_unknown).map(|(kind, count)| line(kind, *count)).collect();
    let all: usize = survivors.values().sum();
    println!("{all} mutants survive; {} kinds of them are not on the list", unknown.len());
    ensure!(unknown.is_empty(), "survivors not in {EQUIVALENT}:\n{}", unknown.join("\n"));
    Ok(())
}

/// Returns the mutants of a package that survive.
fn survivors_of(
    package: &str,
    stages: &[Tests],
    options: &[String],
    known: &Kinds,
) -> Result<Kinds> {
    let (mut open, mut listed) = (Vec::new(), Vec::new());
    let mut options = options.to_vec();
    for (place, &tests) in stages.iter().enumerate() {
        let stage = Stage { package, tests };
        let mut tried = stage.run(&options)?;
        if place > 0 {
            // The tool tries every deletion of a field, even if only certain mutants are asked for.
            tried.missed.retain(|mutant| open.contains(mutant));
        }
        let met = if place == 0 { tried.all } else { open.len() };
        let missed = tried.missed.len();
        let kinds = kinds(&tried.missed);
        let is_listed = |mutant: &String| {
            let kind = without_place(mutant);
            known.get(&kind).is_some_and(|listed| kinds[&kind] <= *listed)
        };
        let (equivalent, left) = tried.missed.into_iter().partition(is_listed);
        open = left;
        println!(
            "{package}: {met} mutants meet {}; {missed} survive, {} of them are listed",
            tests.name(),
            missed - open.len(),
        );
        listed.extend::<Vec<String>>(equivalent);
        if open.is_empty() {
            break;
        }
        let pick = |mutant: &String| ["--re".to_owned(), format!("^{}$", literally(mutant))];
        options = open.iter().flat_map(pick).collect();
    }
    listed.append(&mut open);
    Ok(kinds(&listed))
}

fn kinds(mutants: &[String]) -> Kinds {
    let mut kinds = Kinds::new();
    for mutant in mutants {
        *kinds.entry(without_place(mutant)).or_default() += 1;
    }
    kinds
}

/// The results for the mutants of a package.
#[derive(Default)]
struct Tried {
    /// The number of all mutants.
    all: usize,
    /// The mutants that no test has noticed.
    missed: Vec<String>,
}

/// The tests that a mutant is tried with.
#[derive(Clone, Copy)]
enum Tests {
    /// The tests in the package's own files.
    Unit,
    /// All tests of the package.
    Package,
    /// The tests of the simulator.
    Simulator,
}

impl Tests {
    fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit tests",
            Self::Package => "their package's tests",
            Self::Simulator => "the simulator",
        }
    }

    /// Returns the name of the folder in which the results are kept.
    fn folder(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Package => "package",
            Self::Simulator => "sim",
        }
    }
}

/// The mutants of a package, with the tests that they are tried with.
struct Stage<'a> {
    package: &'a str,
    tests: Tests,
}

impl Stage<'_> {
    fn run(&self, options: &[String]) -> Result<Tried> {
        let root = sh::project().join("target").join("mutation");
        let output = root.join(self.package).join(self.tests.folder());
        self.forget_if_stale(&output)?;
        let mut mutants = Command::new(tool()?);
        mutants.arg("mutants").current_dir(sh::project());
        mutants.args(["--no-shuffle", "--iterate", "--profile", "mutants", "--colors", "never"]);
        mutants.arg("--output").arg(&output).args(["--package", self.package]);
        // Tests in documentation take longer than all others, so they are left out.
        mutants.arg("--cargo-arg=--lib");
        if !matches!(self.tests, Tests::Unit) {
            mutants.arg("--cargo-arg=--tests");
        }
        mutants.args(EXCLUDED.iter().flat_map(|file| ["--exclude", file]));
        // A mutant that makes a test hang is noticed. The times are in seconds.
        if matches!(self.tests, Tests::Simulator) {
            mutants.env("RUSTFLAGS", "--cfg sim").env("CARGO_TARGET_DIR", root.join("build-sim"));
            mutants.args(["--test-package", "sim", "--timeout", "300"]);
        } else {
            mutants.env("CARGO_TARGET_DIR", root.join("build"));
            mutants.env("CARGO_PROFILE_MUTANTS_OPT_LEVEL", "0");
            mutants.args(["--test-package", self.package, "--timeout", "60"]);
        }
        let status = mutants.args(options).status().context(TOOL)?;
        // These statuses mean: all were noticed, some were missed, some timed out.
        ensure!(matches!(status.code(), Some(0 | 2 | 3)), "{TOOL}: {status}");
        tried(&output.join("mutants.out"))
    }

    /// Removes the results if the package's code has changed. If only tests have changed, a mutant
    /// that was noticed is still noticed.
    fn forget_if_stale(&self, output: &Path) -> Result<()> {
        let mut code = String::from(TOOL_VERSION);
        for (name, file) in cache::files(&sh::project().join(self.package).join("src"))? {
            if !name.ends_with("tests.rs") && !name.ends_with("testing.rs") {
                let text = fs::read_to_string(&file)?;
                code.push_str(text.split("#[cfg(test)]").next().unwrap_or_default());
            }
        }
        let kept = output.join("code");
        if fs::read_to_string(&kept).is_ok_and(|before| before == code) {
            return Ok(());
        }
        cache::empty(output)?;
        Ok(fs::write(kept, code)?)
    }
}

/// Reads what the tool has written, in this run and in those before.
fn tried(output: &Path) -> Result<Tried> {
    let lines = |name: &str| -> Result<Vec<String>> {
        let path = output.join(name);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(text.lines().map(str::to_owned).collect())
    };
    let missed = lines("missed.txt")?;
    let mut all = missed.len();
    for name in ["previously_caught.txt", "caught.txt", "timeout.txt", "unviable.txt"] {
        all += lines(name)?.len();
    }
    Ok(Tried { all, missed })
}

/// Returns a regular expression that matches this text only.
fn literally(text: &str) -> String {
    let mut expression = String::new();
    for character in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(character) {
            expression.push('\\');
        }
        expression.push(character);
    }
    expression
}

/// Returns the tool's path. Installs the tool if it is not there yet.
fn tool() -> Result<PathBuf> {
    let key = cache::Key::new("1").text(TOOL_VERSION);
    let root = cache::artefact(TOOL, key, |root| {
        let mut install = toolchain::cargo();
        install.args(["install", TOOL, "--version", TOOL_VERSION, "--locked", "--quiet"]);
        sh::run(install.arg("--root").arg(root))
    })?;
    Ok(root.join("bin").join(TOOL))
}

/// Removes line and column from `FILE:LINE:COLUMN: MUTATION`, since they change with every edit.
fn without_place(mutant: &str) -> String {
    let mut parts = mutant.splitn(4, ':');
    match (parts.next(), parts.nth(2)) {
        (Some(file), Some(mutation)) => format!("{file}:{mutation}"),
        _ => mutant.to_owned(),
    }
}

fn equivalent() -> Result<Kinds> {
    let text = fs::read_to_string(sh::project().join(EQUIVALENT)).context(EQUIVALENT)?;
    listed(&text)
}

/// Writes a kind of mutants as the list has it: `N x KIND`, or `KIND` if there is only one.
fn line(kind: &str, count: usize) -> String {
    if count == 1 { kind.to_owned() } else { format!("{count} x {kind}") }
}

/// Reads the list, which consists of paragraphs: lines that start with `# ` are the reason for the
/// mutants below them.
fn listed(text: &str) -> Result<Kinds> {
    let mut mutants = Kinds::new();
    let mut has_reason = false;
    for line in text.lines() {
        match line {
            "" => has_reason = false,
            _ if line.starts_with("# ") => has_reason = true,
            _ if !has_reason => bail!("no reason is given for: {line}"),
            _ => {
                let counted = line.split_once(" x ");
                let (count, kind) = counted
                    .and_then(|(count, kind)| Some((count.parse().ok()?, kind)))
                    .unwrap_or((1, line));
                ensure!(mutants.insert(kind.to_owned(), count).is_none(), "twice: {kind}");
            }
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
    fn a_mutants_name_is_no_expression() {
        assert_eq!(
            literally("a.rs: replace |= with * in <b>"),
            r"a\.rs: replace \|= with \* in <b>"
        );
    }

    #[test]
    fn each_listed_mutant_has_a_reason() {
        let text = "# The same,\n# in other words.\na.rs: replace | with ^ in b\n";
        assert_eq!(listed(text).unwrap(), kinds(&["a.rs:1:2: replace | with ^ in b".to_owned()]));
        assert!(listed(&format!("{text}\na.rs: replace + with - in b\n")).is_err());
        assert!(listed("a.rs: replace + with - in b\n").is_err());
        let twice = listed("# The same.\n2 x a.rs: replace | with ^ in b\n").unwrap();
        assert_eq!(
            twice.into_iter().map(|(kind, count)| line(&kind, count)).collect::<Vec<_>>(),
            ["2 x a.rs: replace | with ^ in b"]
        );
        assert!(listed(&format!("{text}{text}")).is_err());
    }
}
