// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tries the faults that `cargo test` must notice.
//!
//! The tests of the copy are built once. Each fault is first tried with the tests of its own crate.
//! If they do not notice it, the tests of the crates that use this crate most are run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::trial::{Ended, run_until};
use super::{Found, Verdict};
use crate::artefacts::faults::{self, Copy, Fault, VARIABLE};
use crate::tools::sh::{self, cmd};

/// The crates whose tests are run if those of the fault's own crate do not notice it.
const USERS: [(&str, &[&str]); 4] = [
    ("shared-abi", &["hv-driver", "guest-kmod", "libperfctr-rs"]),
    ("guest-kmod", &["guest-kmod-ffi"]),
    ("libperfctr-rs", &["papi-shim", "perfctr"]),
    ("perfctr-gate", &["perfctr"]),
];

/// How long a test program with an unknown time may take before it is considered hung. The
/// command's test programs take ten seconds on a quiet machine, and much longer beside machines
/// that boot.
const PATIENCE: Duration = Duration::from_secs(600);

/// How many times longer a program may take with a fault than without one, and how long it may take
/// in any case. A busy machine must not look like a fault that was noticed.
const SLOWER: u32 = 10;
const PATIENCE_MIN: Duration = Duration::from_secs(60);

/// Tries each of the faults.
pub fn run(faults: Vec<Fault>) -> Result<Vec<Verdict>> {
    let (alone, switched): (Vec<Fault>, Vec<Fault>) =
        faults.into_iter().partition(|fault| fault.alone);
    let mut verdicts = Vec::new();
    if !switched.is_empty() {
        verdicts.extend(run_switched(switched)?);
    }
    for fault in alone {
        verdicts.push(run_alone(fault)?);
    }
    Ok(verdicts)
}

/// Tries the faults that are switched on in one build.
fn run_switched(faults: Vec<Fault>) -> Result<Vec<Verdict>> {
    let copy = sh::step("the copy with faults", faults::copy)?;
    let own: BTreeSet<String> = faults.iter().map(package).collect::<Result<BTreeSet<_>>>()?;
    let mut tests = sh::step("its tests", || Tests::build(&copy, own.iter().map(|name| &**name)))?;
    tests.pass_without_faults()?;
    let mut verdicts = Vec::new();
    for fault in faults {
        let package = package(&fault)?;
        let start = Instant::now();
        let found = tests.notice(Some(&fault.name), |binary| binary.package == package)?;
        verdicts.push(Verdict { fault, found, time: start.elapsed() });
    }
    for (own, users) in USERS {
        let mut open = Vec::new();
        for verdict in verdicts.iter_mut().filter(|verdict| verdict.found == Found::Alive) {
            if package(&verdict.fault)? == own {
                open.push(verdict);
            }
        }
        if open.is_empty() {
            continue;
        }
        let name = format!("tests of those that use {own}");
        let mut tests = sh::step(&name, || Tests::build(&copy, users.iter().copied()))?;
        tests.pass_without_faults()?;
        for verdict in open {
            let start = Instant::now();
            verdict.found = tests.notice(Some(&verdict.fault.name), |_| true)?;
            verdict.time += start.elapsed();
        }
    }
    Ok(verdicts)
}

/// Tries a fault that has a copy of the sources of its own.
fn run_alone(fault: Fault) -> Result<Verdict> {
    let copy = faults::copy_with(&fault)?;
    let start = Instant::now();
    let own = package(&fault)?;
    let users = USERS.iter().find(|(name, _)| *name == own).map_or(&[][..], |(_, users)| users);
    let mut found = Found::Alive;
    for packages in [&[&*own][..], users] {
        if found == Found::Alive && !packages.is_empty() {
            found = match Tests::build(&copy, packages.iter().copied()) {
                Ok(tests) => tests.notice(None, |_| true)?,
                Err(error) => Found::By(format!("the compiler: {}", first_line(&error))),
            };
        }
    }
    Ok(Verdict { fault, found, time: start.elapsed() })
}

fn first_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.lines().find(|line| line.starts_with("error")).unwrap_or(&text).to_owned()
}

/// Returns the package whose file a fault is in.
fn package(fault: &Fault) -> Result<String> {
    #[derive(Deserialize)]
    struct Manifest {
        package: Package,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
    }
    let file = Path::new(&fault.edits.first().context("a fault has an edit")?.file);
    for folder in file.ancestors().skip(1).filter(|folder| *folder != Path::new("")) {
        let manifest = sh::project().join(folder).join("Cargo.toml");
        if manifest.exists() {
            let manifest: Manifest = toml::from_str(&std::fs::read_to_string(manifest)?)?;
            return Ok(manifest.package.name);
        }
    }
    bail!("{}: {} is in no crate", fault.name, file.display())
}

/// A test program.
#[derive(Debug)]
struct Binary {
    package: String,
    name: String,
    path: PathBuf,
    folder: PathBuf,
    /// How long it may take.
    patience: Duration,
}

/// A message of cargo's about something that it has built.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    message: Option<Diagnostic>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// A profile, which says whether a program has tests. One that tests execute is built beside them,
/// and has none itself.
#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    rendered: Option<String>,
}

/// The test programs of some packages.
struct Tests(Vec<Binary>);

impl Tests {
    fn build<'a>(copy: &Copy, packages: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let mut cargo = copy.cargo();
        cargo.args(["test", "--no-run", "--quiet", "--message-format=json"]);
        // `--tests` builds the tests inside of libraries and programs, too.
        cargo.arg("--tests").args(packages.into_iter().flat_map(|name| ["--package", name]));
        let out = cargo.output().context("cargo test")?;
        let text = String::from_utf8_lossy(&out.stdout);
        let mut binaries = Vec::new();
        let mut errors = String::new();
        for line in text.lines() {
            let message: Message = serde_json::from_str(line).context("what cargo says")?;
            if let Some(error) = message.message.filter(|message| message.level == "error") {
                errors += &error.rendered.unwrap_or_default();
            }
            let has_tests = message.profile.is_some_and(|profile| profile.test);
            if let (Some(path), Some(manifest), Some(target)) =
                (message.executable, message.manifest_path, message.target)
                && has_tests
            {
                let is_apart = target.kind.iter().any(|kind| kind == "test");
                binaries.push((is_apart, Binary::new(path, &manifest, target.name)?));
            }
        }
        let printed = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "cargo test: {}\n{errors}{printed}", out.status);
        ensure!(!binaries.is_empty(), "these packages have no tests");
        // Tests in the same files as the code are quick, so they are run first.
        binaries.sort_by_key(|(is_apart, _)| *is_apart);
        Ok(Self(binaries.into_iter().map(|(_, binary)| binary).collect()))
    }

    /// Runs all programs without a fault, which shows how long each may take with one.
    fn pass_without_faults(&mut self) -> Result<()> {
        for binary in &mut self.0 {
            let start = Instant::now();
            if let Some(test) = binary.run(None)? {
                bail!("{} {test} fails without any fault", binary.full_name());
            }
            binary.patience = PATIENCE_MIN.max(start.elapsed() * SLOWER);
        }
        Ok(())
    }

    /// Runs some of the programs until a test of one fails.
    fn notice(&self, fault: Option<&str>, is_wanted: impl Fn(&Binary) -> bool) -> Result<Found> {
        for binary in self.0.iter().filter(|binary| is_wanted(binary)) {
            if let Some(test) = binary.run(fault)? {
                return Ok(Found::By(format!("{} {test}", binary.full_name())));
            }
        }
        Ok(Found::Alive)
    }
}

impl Binary {
    fn new(path: PathBuf, manifest: &Path, name: String) -> Result<Self> {
        let folder = manifest.parent().context("a manifest is in a folder")?.to_owned();
        let text = std::fs::read_to_string(manifest)?;
        let named = text.lines().find_map(|line| line.strip_prefix("name = "));
        let package = named.context("a package has a name")?.trim_matches('"').to_owned();
        Ok(Self { package, name, path, folder, patience: PATIENCE })
    }

    fn full_name(&self) -> String {
        if self.package.replace('-', "_") == self.name.replace('-', "_") {
            return self.package.clone();
        }
        format!("{} {}", self.package, self.name)
    }

    /// Returns the first test of the program that fails with a fault in force. The tests that are
    /// left are not run then.
    fn run(&self, fault: Option<&str>) -> Result<Option<String>> {
        let seconds = self.patience.as_secs().to_string();
        let mut program: Command = cmd("timeout", ["--signal=KILL", &seconds]);
        program.arg(&self.path).current_dir(&self.folder);
        program.env("CARGO_MANIFEST_DIR", &self.folder).env_remove(VARIABLE);
        program.envs(fault.map(|name| (VARIABLE, name)));
        let failed =
            |line: &str| line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(str::to_owned);
        Ok(match run_until(&mut program, failed)? {
            Ended::Noticed(test) => Some(test),
            Ended::Passed => None,
            Ended::Failed(status, _) => Some(format!("ends with {status}")),
        })
    }
}
