// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests `perfctr stat` with events that the kernel counts.

use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::Value;

use crate::run::{build, output_of, perfctr, run};

/// Returns the counts of these events, and their names, for a program that writes to so many pages.
fn counts(events: &str, pages: u64, machine: &str) -> Vec<(String, u64)> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let program = BUILT.get_or_init(|| build("pages.c", &["-O1"]));
    let mut command = perfctr(["stat", "--json", "--repeatable", "-e", events]);
    command.env("SOFT_PMU", machine).arg(program).arg(pages.to_string());
    let printed = output_of(&mut command);
    let document: Value =
        serde_json::from_str(&printed.err).unwrap_or_else(|_| panic!("{printed:?}"));
    let names = document["events"].as_array().unwrap().iter();
    let names = names.map(|event| event["event"].as_str().unwrap().to_owned());
    let counts = document["runs"][0]["counts"].as_array().unwrap().iter();
    names.zip(counts.map(|count| count.as_u64().unwrap())).collect()
}

#[test]
fn each_new_page_is_a_page_fault() {
    let events = "instructions:u,page-faults:u,task-clock:u";
    let [few, many] = [500, 3_500].map(|pages| counts(events, pages, ""));
    let names: Vec<&str> = few.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["instructions:u", "page-faults:u", "task-clock:u"]);
    assert_eq!(many[1].1 - few[1].1, 3_000, "{few:?} {many:?}");
    // The soft PMU counts time as well.
    assert!(few[0].1 > 0 && few[2].1 > 0, "{few:?}");
}

#[test]
fn they_need_no_pmu() {
    let [few, many] = [500, 3_500].map(|pages| counts("faults:u", pages, "none"));
    assert_eq!(many[0].1 - few[0].1, 3_000, "{few:?} {many:?}");
    let mixed =
        output_of(perfctr(["stat", "-e", "faults:u,cycles:u", "true"]).env("SOFT_PMU", "none"));
    assert!(mixed.status == 125 && mixed.err.contains("cycles:u"), "{mixed:?}");
    let listed = output_of(perfctr(["list", "task-clock"]).env("SOFT_PMU", "none"));
    assert!(listed.out.contains(" yes\n"), "{listed:?}");
}

#[test]
fn a_group_may_have_them_beside_counters() {
    let printed = run("stat --csv -e {cycles:u,page-faults:u} true");
    let rows: Vec<&str> = printed.err.lines().collect();
    assert_eq!((printed.status, rows.len()), (0, 2), "{printed:?}");
    assert!(rows[1].contains(",page-faults:u,") && !rows[1].starts_with('0'), "{printed:?}");
}
