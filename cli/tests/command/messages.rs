// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that each refusal says what was refused, why, and what to do.

use std::fs;

use crate::run::{file, perfctr, said};

#[test]
fn a_denied_event_says_by_what_and_who_may() {
    let level = file("perf_event_paranoid");
    fs::write(&level, "2\n").unwrap();
    let mut stat = perfctr(["stat", "-e", "instructions", "true"]);
    let said = said(stat.env("SOFT_PMU", "paranoid").env("SOFT_PMU_LEVEL", &level));
    assert_eq!(said.status, 125, "{said:?}");
    for part in ["kernel.perf_event_paranoid is 2", "`:u`", "root", "CAP_PERFMON"] {
        assert!(said.err.contains(part), "`{part}` is not in {said:?}");
    }
    assert_eq!(said.err.matches("Permission denied").count(), 1, "{said:?}");
}

#[test]
fn where_there_is_no_pmu_every_verb_says_so() {
    let pid = std::process::id();
    for line in [
        "stat true".to_owned(),
        "record -o /dev/null true".to_owned(),
        format!("top --plain -n 1 -p {pid}"),
        "top --plain -n 1 -C".to_owned(),
        format!("export --once -p {pid}"),
    ] {
        let said = said(perfctr(line.split(' ')).env("SOFT_PMU", "none"));
        assert_eq!(said.status, 125, "{line}: {said:?}");
        let expected = "native: the kernel knows no PMU here; in a virtual machine the host has";
        assert!(said.err.contains(expected), "{line}: {said:?}");
        assert!(said.err.contains("paravirt: "), "{line}: {said:?}");
    }
}
