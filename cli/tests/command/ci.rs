// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs the scripts that the project offers to continuous integration, as a runner would.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::run::{Printed, file, output_of, perfctr, set_baseline};

/// Returns the script behind this key of a YAML file: the lines that are indented further than it.
fn script(path: &str, key: &str, separator: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/ci").join(path);
    let text = fs::read_to_string(path).unwrap();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = text.lines().skip_while(|line| line.trim() != key);
    let depth = indent(lines.next().unwrap());
    let lines: Vec<&str> = lines
        .take_while(|line| indent(line) > depth)
        .map(|line| line[depth + 2..].trim())
        .collect();
    assert!(!lines.is_empty(), "{key}");
    lines.join(separator)
}

/// Runs a script with bash in a directory of its own, in which the baseline says that the program
/// has had one event.
fn run_in(directory: &Path, script: &str, command: &str) -> Printed {
    fs::create_dir_all(directory).unwrap();
    set_baseline(&directory.join("baseline.json"), "truth", 1);
    let usual = perfctr::<&str>([]);
    let here = Path::new(usual.get_program()).parent().unwrap().display().to_string();
    let mut bash = Command::new("bash");
    for (name, value) in usual.get_envs() {
        bash.env(name, value.unwrap());
    }
    bash.args(["-ec", script]).current_dir(directory).env("PATH", format!("{here}:/usr/bin:/bin"));
    bash.env("GATE_NAME", "truth").env("GATE_BASELINE", "baseline.json");
    bash.env("GATE_COMMAND", command).env("GITHUB_STEP_SUMMARY", "summary.md");
    output_of(bash.env("GATE_OPTIONS", "--repeat 1"))
}

#[test]
fn the_action_of_github_fails_where_the_gate_does_and_adds_to_the_summary() {
    let directory = file("github");
    let script = script("github/action.yml", "run: |", "\n");
    assert!(script.contains("perfctr gate"), "{script}");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("summary.md"), "before\n").unwrap();
    let worse = run_in(&directory, &script, "true a  b");
    assert_eq!(worse.status, 1, "{worse:?}");
    let summary = fs::read_to_string(directory.join("summary.md")).unwrap();
    assert!(summary.starts_with("before\n") && summary.contains("| WORSE |"), "{summary}");
    let failed = run_in(&directory, &script, "/nowhere");
    assert_eq!(failed.status, 127, "{failed:?}");
}

#[test]
fn the_job_of_gitlab_fails_where_the_gate_does_and_leaves_a_test() {
    let directory = file("gitlab");
    let script = script("gitlab.yml", "- >-", " ");
    let worse = run_in(&directory, &script, "true a  b");
    assert_eq!(worse.status, 1, "{worse:?}");
    for (name, part) in [("perfctr-gate.md", "| WORSE |"), ("perfctr-gate.xml", "<failure ")] {
        let text = fs::read_to_string(directory.join(name)).unwrap();
        assert!(text.contains(part), "{text}");
    }
}
