// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tries the faults that must be noticed by a suite which boots the testbed: faults in C, and
//! faults between parts that only meet there.

use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::trial::{Ended, run_until};
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
    let found = match run_until(&mut cargo, |line| failed(line, test))? {
        Ended::Noticed(test) => Found::By(test),
        Ended::Passed => Found::Alive,
        // This happens if other tests have failed, if the fault does not compile, or if the guest
        // does not come up.
        Ended::Failed(_, printed) => {
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

/// Returns the name of the failed test, if a line of a suite or of a program of `tests/vm` reports
/// one whose name contains `wanted`. A suite that fails as a whole has noticed nothing: the fault
/// does not compile, or the guest does not come up.
fn failed(line: &str, wanted: &str) -> Option<String> {
    let test = line.trim_start().strip_prefix("FAILED ")?.trim();
    (test.contains(wanted) && !test.contains(WHOLE)).then(|| test.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;
    use crate::artefacts::faults::{Tier, read};
    use crate::tools::sh::{self, cmd};

    fn ended(script: &str) -> Ended {
        run_until(&mut cmd("sh", ["-c", script]), |line| failed(line, "named")).unwrap()
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
        let failed = Ended::Failed(ExitStatus::from_raw(1 << 8), printed);
        assert_eq!(ended(&format!("{other}; echo why >&2; exit 1")), failed);
        assert_eq!(ended("echo 'ok      the named one'"), Ended::Passed);
    }

    #[test]
    fn a_suite_that_fails_as_a_whole_notices_nothing() {
        let failed = |line| failed(line, "kvm: ");
        assert_eq!(failed("  FAILED  kvm: the suite as a whole (65.0 s)"), None);
        assert_eq!(failed("  ok      kvm: a (1.0 s)"), None);
        assert_eq!(failed("  FAILED  kvm: a (1.0 s)").as_deref(), Some("kvm: a (1.0 s)"));
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
