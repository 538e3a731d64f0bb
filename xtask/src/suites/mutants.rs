// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Whether the tests of the model tier notice small faults: cargo-mutants puts one after another
//! into the two cores and the shared ABI.
//!
//! Each mutant meets the tests first that are built most quickly, and only what survives them
//! meets the next ones, the simulator's at last.  What was noticed is kept in `target/mutation` for
//! as long as the package's code stays what it is, so a run that was ended goes on, and one after
//! more tests were written tries the survivors only.  Remove the directory to begin anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::report::{Report, Volume};
use crate::tools::{cache, sh, toolchain};

/// The tool, from crates.io.
const TOOL: &str = "cargo-mutants";
const TOOL_VERSION: &str = "27.1.0";

/// What is mutated, and which tests a mutant meets one after another.
const MUTATED: [(&str, &[Tests]); 3] = [
    ("shared-abi", &[Tests::Unit, Tests::Package, Tests::Simulator]),
    ("hv-driver", &[Tests::Package, Tests::Simulator]),
    ("guest-kmod", &[Tests::Unit, Tests::Simulator]),
];

/// What only builds for tests have, and what writes the C headers, which `check` compares.
const EXCLUDED: [&str; 3] =
    ["shared-abi/src/sync/*.rs", "shared-abi/src/c_header.rs", "guest-kmod/src/testing.rs"];

/// Mutants that no test can tell from the original, each under its reason.
const EQUIVALENT: &str = "tests/mutants.txt";

/// The suite: in the long tier every mutant is tried, otherwise only the list is read.
pub fn suite(report: &mut Report) -> Result<()> {
    report.test("every survivor on the list has a reason", || equivalent().map(drop));
    if report.volume == Volume::Long {
        report.test("no other mutant survives", || try_all(None, &[]));
    }
    Ok(())
}

/// Kinds of mutants, whatever their place, and how many of each there are.
type Kinds = BTreeMap<String, usize>;

/// Tries every mutant, of one package or all, that `options` of cargo-mutants leave, and demands
/// that none survives that is not on the list.
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

/// What survives of a package.
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
            // The tool picks every deletion of a field, whatever it is asked for.
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

/// What came of the mutants of a package.
#[derive(Default)]
struct Tried {
    /// How many there are.
    all: usize,
    /// Those that were not noticed.
    missed: Vec<String>,
}

/// Whose tests a mutant meets.
#[derive(Clone, Copy)]
enum Tests {
    /// Those in the package's own files.
    Unit,
    /// All of the package's.
    Package,
    /// The simulator's.
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

    /// Of the folder in which it is kept what came of them.
    fn folder(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Package => "package",
            Self::Simulator => "sim",
        }
    }
}

/// The mutants of a package under some tests.
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
        // Documentation's tests take longer than all others.
        mutants.arg("--cargo-arg=--lib");
        if !matches!(self.tests, Tests::Unit) {
            mutants.arg("--cargo-arg=--tests");
        }
        mutants.args(EXCLUDED.iter().flat_map(|file| ["--exclude", file]));
        // One that hangs is one that is noticed; times are in seconds.
        if matches!(self.tests, Tests::Simulator) {
            mutants.env("RUSTFLAGS", "--cfg sim").env("CARGO_TARGET_DIR", root.join("build-sim"));
            mutants.args(["--test-package", "sim", "--timeout", "300"]);
        } else {
            mutants.env("CARGO_TARGET_DIR", root.join("build"));
            mutants.env("CARGO_PROFILE_MUTANTS_OPT_LEVEL", "0");
            mutants.args(["--test-package", self.package, "--timeout", "60"]);
        }
        let status = mutants.args(options).status().context(TOOL)?;
        // All noticed; some missed; some timed out.
        ensure!(matches!(status.code(), Some(0 | 2 | 3)), "{TOOL}: {status}");
        tried(&output.join("mutants.out"))
    }

    /// What was noticed is noticed still if only tests have changed.
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
        if output.exists() {
            fs::remove_dir_all(output)?;
        }
        fs::create_dir_all(output)?;
        Ok(fs::write(kept, code)?)
    }
}

/// What the tool has written, in this run and in those before.
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

/// A regular expression that matches this text only.
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

fn equivalent() -> Result<Kinds> {
    let text = fs::read_to_string(sh::project().join(EQUIVALENT)).context(EQUIVALENT)?;
    listed(&text)
}

/// A kind of mutants on the list: `N x KIND`, or `KIND` if there is one.
fn line(kind: &str, count: usize) -> String {
    if count == 1 { kind.to_owned() } else { format!("{count} x {kind}") }
}

/// Paragraphs: lines that start with `# ` are the reason for the mutants below them.
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
