// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tries the faults that must be noticed by a suite which boots the testbed: faults in C, and
//! faults between parts that only meet there.

use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::{Found, Verdict};
use crate::artefacts::faults::{self, Fault};
use crate::suites::SUITES;
use crate::suites::report::WHOLE;

/// Tries each of the faults in a copy of its own.
pub fn run(faults: Vec<Fault>) -> Result<Vec<Verdict>> {
    faults.into_iter().map(one).collect()
}

fn one(fault: Fault) -> Result<Verdict> {
    let arguments = arguments(&fault)?;
    let test = fault.test.as_deref().context("no test is named")?;
    let copy = faults::copy_with(&fault)?;
    let start = Instant::now();
    let mut cargo = copy.cargo();
    cargo.args(["run", "--quiet", "--package", "xtask", "--"]).args(arguments);
    let found = match run_until(&mut cargo, test)? {
        Ended::Noticed(test) => Found::By(test),
        Ended::Passed => Found::Alive,
        // This happens if other tests have failed, if the fault does not compile, or if the guest
        // does not come up.
        Ended::Failed(printed) => {
            bail!("{}: the test that it names did not fail, but\n{printed}", fault.name)
        }
    };
    Ok(Verdict { fault, found, time: start.elapsed() })
}

/// Returns the arguments with which xtask runs the suite that a fault names, or a part of it: a
/// program of the suite on the suite's machine.
fn arguments(fault: &Fault) -> Result<Vec<String>> {
    let named = fault.suite.as_deref().unwrap_or_default();
    let suite = SUITES.iter().find(|suite| suite.name == named);
    let suite = suite.with_context(|| format!("{}: there is no suite {named}", fault.name))?;
    let Some(program) = &fault.program else {
        return Ok(["test", "--suite", named].map(str::to_owned).into());
    };
    let words: Vec<&str> = program.split_whitespace().collect();
    let name = words.iter().position(|word| !word.starts_with("--"));
    let name = name.with_context(|| format!("{}: no program is named", fault.name))?;
    let (options, command) = words.split_at(name);
    let path = format!("/work/{}", command[0]);
    let topology = suite.topology.unwrap_or("pv");
    let vm = ["vm", "--topology", topology, "--timeout", "900", "--program", command[0]];
    let words = [&vm, options, &["--", &path], &command[1..]].concat();
    Ok(words.into_iter().map(str::to_owned).collect())
}

/// How a run of tests has ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// The test that is named has failed. This is the line in which that was said.
    Noticed(String),
    /// Every test has passed.
    Passed,
    /// Something else has failed. This is what was printed.
    Failed(String),
}

/// Runs a command until it ends, or until it prints that the named test has failed. The emulator
/// ends together with the process that has started it.
fn run_until(command: &mut Command, test: &str) -> Result<Ended> {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().context("the suite")?;
    let stdout = child.stdout.take().context("it was asked for")?;
    let stderr = child.stderr.take().context("it was asked for")?;
    let why = thread::spawn(move || io::read_to_string(stderr));
    let mut printed = String::new();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if let Some(failed) = failed(&line).filter(|failed| failed.contains(test)) {
            child.kill()?;
            child.wait()?;
            return Ok(Ended::Noticed(failed.to_owned()));
        }
        printed += &line;
        printed.push('\n');
    }
    if child.wait()?.success() {
        return Ok(Ended::Passed);
    }
    printed += &why.join().expect("it does not panic")?;
    Ok(Ended::Failed(printed))
}

/// Returns the name of the failed test, if a line of a suite or of a program of `tests/vm` reports
/// one. A suite that fails as a whole has noticed nothing: the fault does not compile, or the guest
/// does not come up.
fn failed(line: &str) -> Option<&str> {
    let test = line.trim_start().strip_prefix("FAILED ")?.trim();
    (!test.contains(WHOLE)).then_some(test)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artefacts::faults::{Tier, read};
    use crate::tools::sh::{self, cmd};

    fn ended(script: &str) -> Ended {
        run_until(&mut cmd("sh", ["-c", script]), "named").unwrap()
    }

    #[test]
    fn only_the_test_that_is_named_notices() {
        let noticed = Ended::Noticed("kvm: the named one (1.0 s)".to_owned());
        assert_eq!(ended("echo '  FAILED  kvm: the named one (1.0 s)'; exec sleep 1000"), noticed);
        let noticed = Ended::Noticed("the named one: 3 found, 4 expected".to_owned());
        let other = "echo 'FAILED  other: 1'; echo 'ok      the named two'";
        let named = "echo 'FAILED  the named one: 3 found, 4 expected'";
        assert_eq!(ended(&format!("{other}; {named}; exit 1")), noticed);
        let printed = "FAILED  other: 1\nok      the named two\nwhy\n".to_owned();
        assert_eq!(ended(&format!("{other}; echo why >&2; exit 1")), Ended::Failed(printed));
        assert_eq!(ended("echo 'ok      the named one'"), Ended::Passed);
    }

    #[test]
    fn a_suite_that_fails_as_a_whole_notices_nothing() {
        assert_eq!(failed("  FAILED  kvm: the suite as a whole (65.0 s)"), None);
        assert_eq!(failed("  ok      kvm: a (1.0 s)"), None);
        assert_eq!(failed("  FAILED  kvm: a (1.0 s)"), Some("kvm: a (1.0 s)"));
    }

    #[test]
    fn each_fault_names_what_can_be_run() {
        let faults = read(&sh::project()).unwrap();
        for fault in faults.iter().filter(|fault| fault.tier == Tier::Vm) {
            let words = arguments(fault).unwrap();
            let program = words.iter().position(|word| word == "--program");
            let Some(name) = program.map(|at| &words[at + 1]) else { continue };
            let sources = sh::project().join("tests/vm/src/bin");
            let places = [format!("{name}.rs"), format!("{name}/main.rs")];
            assert!(places.iter().any(|place| sources.join(place).exists()), "{name}");
        }
    }
}
