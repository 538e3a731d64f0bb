// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests `perfctr gate`, whose exit status is what continuous integration looks at.
//!
//! The soft PMU counts time, which is never the same twice. The baselines differ by far more than
//! that.

use std::fs;

use serde_json::Value;

use crate::run::{Printed, file, output_of, perfctr, set_baseline};

const HOUR_NS: &str = "3600000000000";

fn gate(name: &str, options: &[&str], program: &[&str]) -> Printed {
    let baseline = file(format!("{name}.json"));
    let mut command = perfctr(["gate", "--name", name, "--baseline"]);
    output_of(command.arg(baseline).args(options).arg("--").args(program))
}

fn set(name: &str, count: u64) {
    set_baseline(&file(format!("{name}.json")), name, count);
}

#[test]
fn a_program_that_executes_more_fails() {
    set("slower", 1);
    let worse = gate("slower", &[], &["true"]);
    assert_eq!(worse.status, 1, "{worse:?}");
    assert!(worse.out.starts_with("WORSE  slower: "), "{worse:?}");
    let allowed = gate("slower", &["-t", HOUR_NS], &["true"]);
    assert_eq!(allowed.status, 0, "{allowed:?}");
    assert!(allowed.out.starts_with("same   slower: "), "{allowed:?}");
    set("faster", u64::MAX);
    let better = gate("faster", &["-r", "1"], &["true"]);
    assert_eq!(better.status, 0, "{better:?}");
    assert!(better.out.starts_with("better faster: "), "{better:?}");
}

#[test]
fn the_baseline_is_what_was_counted() {
    let new = gate("begun", &[], &["true"]);
    assert_eq!(new.status, 0, "{new:?}");
    assert!(new.err.contains("--update"), "{new:?}");
    assert!(!file("begun.json").exists());
    assert_eq!(gate("begun", &["--update"], &["true"]).status, 0);
    let known = gate("begun", &["-t", HOUR_NS], &["true"]);
    assert!(known.out.starts_with("same   begun: ") && known.err.is_empty(), "{known:?}");
    set("kept", 1);
    assert_eq!(gate("kept", &["-u"], &["true"]).status, 0);
    let text = fs::read(file("kept.json")).unwrap();
    let baseline: Value = serde_json::from_slice(&text).unwrap();
    let range = &baseline["benchmarks"]["kept"]["events"]["instructions:u"];
    assert!(range["min"].as_u64().unwrap() > 1, "{baseline}");
    assert!(baseline["benchmarks"]["another"].is_object(), "{baseline}");
}

#[test]
fn others_read_the_outcome_too() {
    set("told", 1);
    let [markdown, junit] = ["told.md", "told.xml"].map(file);
    let options = ["--markdown", markdown.to_str().unwrap(), "--junit", junit.to_str().unwrap()];
    assert_eq!(gate("told", &options, &["true"]).status, 1);
    let [markdown, junit] = [markdown, junit].map(|path| fs::read_to_string(path).unwrap());
    assert!(markdown.contains("| told | instructions:u | 1 |"), "{markdown}");
    assert!(junit.contains("failures=\"1\"") && junit.contains("<failure "), "{junit}");
}

#[test]
fn a_program_that_fails_is_not_compared() {
    set("failing", u64::MAX);
    let failed = gate("failing", &["-u"], &["false"]);
    assert_eq!(failed.status, 125, "{failed:?}");
    assert!(failed.err.contains("failed with status 1"), "{failed:?}");
    let text = fs::read_to_string(file("failing.json")).unwrap();
    assert!(text.contains(&u64::MAX.to_string()), "the baseline stays: {text}");
    assert_eq!(gate("failing", &[], &["/nowhere"]).status, 127);
}
