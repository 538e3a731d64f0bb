// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Whether the tests of the model tier notice small faults: cargo-mutants puts one after another
//! into the two cores and the shared ABI.
//!
//! Each mutant meets its own package's tests first, which take a second, and what survives them
//! meets the simulator's, which take several.  What was noticed is kept in `target/mutation` for as
//! long as the package's code stays what it is, so a run that was ended goes on, and one after more
//! tests were written tries the survivors only.  Remove the directory to begin anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::report::{Report, Volume};
use crate::tools::{cache, sh, toolchain};

/// The tool, from crates.io.
const TOOL: &str = "cargo-mutants";
const TOOL_VERSION: &str = "27.1.0";

/// What is mutated.
const MUTATED: [&str; 3] = ["shared-abi", "hv-driver", "guest-kmod"];

/// What only builds for tests have, and what writes the C headers, which `check` compares.
const EXCLUDED: [&str; 4] = [
    "shared-abi/src/planted.rs",
    "shared-abi/src/sync/*.rs",
    "shared-abi/src/c_header.rs",
    "guest-kmod/src/testing.rs",
];

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

/// Tries every mutant, of one package or all, that `options` of cargo-mutants leave, and demands
/// that none survives that is not on the list.
pub fn try_all(only: Option<&str>, options: &[String]) -> Result<()> {
    let known = equivalent()?;
    let mut survivors = BTreeSet::new();
    ensure!(only.is_none_or(|only| MUTATED.contains(&only)), "packages: {}", MUTATED.join(", "));
    for package in MUTATED.into_iter().filter(|&package| only.is_none_or(|only| only == package)) {
        survivors.extend(survivors_of(package, options, &known)?);
    }
    if only.is_none() && options.is_empty() {
        for mutant in known.difference(&survivors) {
            println!("on the list, but noticed or gone: {mutant}");
        }
    }
    let unknown: Vec<&str> = survivors.difference(&known).map(String::as_str).collect();
    println!("{} kinds of mutants survive, {} not on the list", survivors.len(), unknown.len());
    ensure!(unknown.is_empty(), "survivors not in {EQUIVALENT}:\n{}", unknown.join("\n"));
    Ok(())
}

/// What survives of a package, whatever its place.
fn survivors_of(
    package: &str,
    options: &[String],
    known: &BTreeSet<String>,
) -> Result<BTreeSet<String>> {
    let own = Stage { package, name: "own", sim: false };
    let alone = own.run(options)?;
    let open: Vec<String> = alone
        .missed
        .iter()
        .filter(|mutant| !known.contains(&without_place(mutant)))
        .cloned()
        .collect();
    let pick = |mutant: &String| ["--re".to_owned(), format!("^{}$", literally(mutant))];
    let picked: Vec<String> = open.iter().flat_map(pick).collect();
    let simulator = Stage { package, name: "sim", sim: true };
    let mut last = if open.is_empty() { Tried::default() } else { simulator.run(&picked)? };
    // The tool picks every deletion of a field, whatever it is asked for.
    last.missed.retain(|mutant| open.contains(mutant));
    println!(
        "{package}: {} mutants; {} survive its own tests, {} of them are listed, {} survive the \
         simulator",
        alone.all,
        alone.missed.len(),
        alone.missed.len() - open.len(),
        last.missed.len(),
    );
    let listed = alone.missed.iter().filter(|mutant| !open.contains(mutant));
    Ok(listed.chain(&last.missed).map(|mutant| without_place(mutant)).collect())
}

/// What came of the mutants of a package.
#[derive(Default)]
struct Tried {
    /// How many there are.
    all: usize,
    /// Those that were not noticed.
    missed: Vec<String>,
}

/// The mutants of a package under some tests.
struct Stage<'a> {
    package: &'a str,
    name: &'a str,
    /// Under the simulator's tests, not the package's own.
    sim: bool,
}

impl Stage<'_> {
    fn run(&self, options: &[String]) -> Result<Tried> {
        let root = sh::project().join("target").join("mutation");
        let output = root.join(self.package).join(self.name);
        self.forget_if_stale(&output)?;
        let mut mutants = Command::new(tool()?);
        mutants.arg("mutants").current_dir(sh::project());
        mutants.args(["--no-shuffle", "--iterate", "--profile", "mutants", "--colors", "never"]);
        mutants.arg("--output").arg(&output).args(["--package", self.package]);
        // Documentation's tests take longer than all others.
        mutants.args(["--cargo-test-arg=--lib", "--cargo-test-arg=--tests"]);
        mutants.args(EXCLUDED.iter().flat_map(|file| ["--exclude", file]));
        // One that hangs is one that is noticed; times are in seconds.
        if self.sim {
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
            if !name.ends_with("tests.rs") {
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
    fn a_mutants_name_is_no_expression() {
        assert_eq!(
            literally("a.rs: replace |= with * in <b>"),
            r"a\.rs: replace \|= with \* in <b>"
        );
    }

    #[test]
    fn each_listed_mutant_has_a_reason() {
        let text = "# The same,\n# in other words.\na.rs: replace | with ^ in b\n";
        assert_eq!(listed(text).unwrap().len(), 1);
        assert!(listed(&format!("{text}\na.rs: replace + with - in b\n")).is_err());
        assert!(listed("a.rs: replace + with - in b\n").is_err());
    }
}
