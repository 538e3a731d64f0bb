// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that each refusal says what was refused, why, and what to do.

use std::fs;

use crate::run::{file, output_of, perfctr};

#[test]
fn a_denied_event_says_by_what_and_who_may() {
    let level = file("perf_event_paranoid");
    fs::write(&level, "2\n").unwrap();
    let mut stat = perfctr(["stat", "-e", "instructions", "true"]);
    let printed = output_of(stat.env("SOFT_PMU", "paranoid").env("SOFT_PMU_LEVEL", &level));
    assert_eq!(printed.status, 125, "{printed:?}");
    for part in ["kernel.perf_event_paranoid is 2", "`:u`", "root", "CAP_PERFMON"] {
        assert!(printed.err.contains(part), "`{part}` is not in {printed:?}");
    }
    assert_eq!(printed.err.matches("Permission denied").count(), 1, "{printed:?}");
}

#[test]
fn where_nothing_records_branches_a_recording_with_them_says_so() {
    let profile = file("without-branches.profile");
    for options in ["-b -e instructions:u", "-b -g -F 99 -e page-faults:u"] {
        let line = format!("record {options} -o {} true", profile.display());
        let printed = output_of(&mut perfctr(line.split(' ')));
        assert_eq!(printed.status, 125, "{line}: {printed:?}");
        for part in ["no branches are recorded here", "option `branches`"] {
            assert!(printed.err.contains(part), "{line}: `{part}` is not in {printed:?}");
        }
        assert!(!profile.exists(), "{line}");
    }
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
        let printed = output_of(perfctr(line.split(' ')).env("SOFT_PMU", "none"));
        assert_eq!(printed.status, 125, "{line}: {printed:?}");
        let expected = "native: the kernel knows no PMU here; in a virtual machine the host has";
        assert!(printed.err.contains(expected), "{line}: {printed:?}");
        assert!(printed.err.contains("paravirt: "), "{line}: {printed:?}");
    }
}
