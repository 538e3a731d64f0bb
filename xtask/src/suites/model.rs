// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs the model tier: checks, the workspace's own tests, the simulator, the model checker and
//! fuzz targets.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use super::report::Report;
use crate::artefacts::faults;
use crate::checks::{self, Pace};
use crate::tools::{sh, toolchain};

/// Runs every check as a test. Checks that need other releases' sources are run in the long tier
/// only.
pub fn check(report: &mut Report) -> Result<()> {
    let named = report.volume.pick(false, true);
    for check in checks::CHECKS.iter().filter(|check| named || check.pace != Pace::Named) {
        report.test(check.name, check.run);
    }
    Ok(())
}

/// Runs the workspace's own tests by cargo, and counts their results in what it prints.
pub fn unit(report: &mut Report) -> Result<()> {
    let mut cargo = toolchain::cargo();
    let features = "libperfctr-rs/serde,libperfctr-rs/pfm";
    cargo.args(["test", "--workspace", "--no-fail-fast", "--features", features]);
    cargo.current_dir(sh::project());
    cargo.envs([report.volume.variable()]);
    let out = cargo.stderr(Stdio::inherit()).output().context("cargo test")?;
    let text = String::from_utf8_lossy(&out.stdout);
    print!("{text}");
    for line in text.lines() {
        let Some(result) = line.strip_prefix("test ") else { continue };
        if let Some(name) = result.strip_suffix(" ... FAILED") {
            report.record(name, Err(anyhow!("see above")), Duration::ZERO);
        } else if result.ends_with(" ... ok") {
            report.passed += 1;
        }
    }
    ensure!(out.status.success() || !report.failed.is_empty(), "cargo test: {}", out.status);
    Ok(())
}

/// Runs the simulator of hosts and guests around the real cores.
pub fn simulator(report: &mut Report) -> Result<()> {
    let mut simulator = simulator_command(&[])?;
    simulator.envs([report.volume.variable()]);
    let mut printed = String::new();
    report.test(
        "planted bugs, seeds, small machines exhaustively, cost that does not grow",
        || {
            let out = simulator.stderr(Stdio::inherit()).output().context("the simulator")?;
            printed = String::from_utf8_lossy(&out.stdout).into_owned();
            print!("{printed}");
            ensure!(out.status.success(), "{}", out.status);
            ensure!(steps(&printed).is_some(), "it did not say how many steps it has made");
            Ok(())
        },
    );
    let steps = steps(&printed).unwrap_or_default();
    report.note(format!("{steps} simulated steps beside those of planted bugs"));
    Ok(())
}

/// Returns the command that runs the simulator with these options, or all of its tests if there are
/// none. If the simulator has to find faults, it is built from a copy of the sources that has them.
pub fn simulator_command(options: &[String]) -> Result<Command> {
    let mut cargo = if has_faults(options) {
        faults::copy()?.cargo_for_simulator()
    } else {
        toolchain::cargo_with_cfg("sim")
    };
    cargo.args(["run", "--profile", "simulator", "--quiet", "--package", "sim", "--"]);
    cargo.args(options);
    Ok(cargo)
}

/// Returns whether the simulator has to find faults with these options.
fn has_faults(options: &[String]) -> bool {
    let is_of_faults = |option: &String| {
        ["--all", "--bugs", "--plant"].contains(&option.split('=').next().unwrap_or_default())
    };
    options.is_empty() || options.iter().any(is_of_faults)
}

/// Returns the number of all its steps, as the simulator prints it.
fn steps(printed: &str) -> Option<u64> {
    let total = "all in all, beside those of planted bugs: ";
    printed.lines().find_map(|line| line.strip_prefix(total)?.parse().ok())
}

/// Tests the sequence protocol in every order of its memory accesses that the checker knows.
pub fn loom(report: &mut Report) -> Result<()> {
    report.test("the sequence protocol under loom", || {
        let mut loom = toolchain::cargo_with_cfg("loom");
        // Link-time optimisation takes longer than it saves in a short test.
        loom.env("CARGO_PROFILE_RELEASE_LTO", "false");
        loom.args(["test", "--release", "--quiet", "--package", "shared-abi"]);
        sh::run(loom.args(["--test", "loom_seq"]))
    });
    Ok(())
}

/// Feeds hostile bytes and pages to the fuzz targets.
pub fn fuzz(report: &mut Report) -> Result<()> {
    let variable = report.volume.variable();
    report.test("fuzz targets", || {
        let mut fuzz = toolchain::cargo();
        fuzz.args(["run", "--release", "--quiet", "--package", "fuzz"]);
        sh::run(fuzz.envs([variable]).current_dir(sh::project()))
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulator_finds_faults_unless_options_ask_for_something_else() {
        let has_faults = |line: &str| {
            has_faults(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        for line in ["", "--all", "--bugs", "--seed 7 --plant=SumsWrap"] {
            assert!(has_faults(line), "{line}");
        }
        for line in ["--seeds 100", "--exhaustive", "--growth"] {
            assert!(!has_faults(line), "{line}");
        }
    }

    #[test]
    fn steps_are_what_the_simulator_says() {
        let printed = "105 steps of 11 seeds, 8 readings compared; 38 steps a second\n\
                    all in all, beside those of planted bugs: 125\n";
        assert_eq!(steps(printed), Some(125));
        assert_eq!(steps("105 steps of 11 seeds\n"), None);
    }
}
