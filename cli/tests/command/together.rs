// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests groups of events, and groups of processes.

use std::fs;
use std::path::Path;

use crate::run::{Process, calls, file, output_of, perfctr, run};

/// Returns the counts and events of `--csv`.
fn counts(csv: &str) -> Vec<(u64, &str)> {
    let line = |line| -> Option<(u64, &str)> {
        let fields: Vec<&str> = str::split(line, ',').collect();
        Some((fields.first()?.parse().ok()?, fields.get(2)?))
    };
    csv.lines().filter_map(line).collect()
}

/// Returns the descriptor of each event that was opened, and that of the first event of its
/// group, or -1.
fn descriptors(groups: &Path) -> Vec<[i32; 2]> {
    let line = |line: &str| {
        let (event, first) = line.split_once(' ').unwrap();
        [event, first].map(|number| number.parse().unwrap())
    };
    fs::read_to_string(groups).unwrap().lines().map(line).collect()
}

#[test]
fn events_of_a_group_are_counted_at_the_same_time() {
    let events = "{instructions:u,branches:u},cycles:u";
    let busy = Process::busy(b"busy");
    let printed = run(&format!("stat --csv -e {events} {}", calls().display()));
    let found = counts(&printed.err);
    let names: Vec<&str> = found.iter().map(|(_, event)| *event).collect();
    assert_eq!(names, ["instructions:u", "branches:u", "cycles:u"]);
    // All count the time. The kernel begins and ends the events of a group together.
    assert!(found[0].0 > 1_000_000 && found[0].0 == found[1].0, "{found:?}");
    let waiter = busy.waiter();
    let meanwhile = ["-p", "-t"].map(|who| format!("{who} {} -- {waiter}", busy.pid()));
    for who in meanwhile {
        let groups = file("groups");
        fs::write(&groups, "").unwrap();
        let line = format!("stat --csv -e {events} {who}");
        let mut command = perfctr(line.split(' '));
        let printed = output_of(command.env("SOFT_PMU_GROUPS", &groups));
        let found = counts(&printed.err);
        assert!(found.len() == 3 && found[0].0 > 1_000_000, "{printed:?}");
        let opened = descriptors(&groups);
        let [.., [first, no_group], [_, second_in], [_, third_in]] = opened[..] else {
            panic!("{opened:?}")
        };
        assert_eq!([no_group, second_in, third_in], [-1, first, -1], "{opened:?}");
    }
}

#[test]
fn only_stat_has_groups_of_events() {
    for line in ["record -e {cycles:u} true", "gate -e {cycles:u} true", "top -e {cycles:u}"] {
        let printed = run(line);
        assert_eq!(printed.status, 2, "{line}: {printed:?}");
        assert!(printed.err.contains("groups are counted by `perfctr stat` only"), "{printed:?}");
    }
    let printed = run("stat -e {cycles:u true");
    assert!(printed.status == 2 && printed.err.contains("`{` without a `}`"), "{printed:?}");
}

#[test]
fn a_directory_that_is_no_group_of_processes_is_refused() {
    let empty = file("no-group");
    fs::create_dir_all(&empty).unwrap();
    for verb in ["stat", "record -o /dev/null"] {
        let printed = run(&format!("{verb} -G {} -- true", empty.display()));
        assert_eq!(printed.status, 125, "{verb}: {printed:?}");
        assert!(printed.err.contains("no group's directory in cgroup v2"), "{verb}: {printed:?}");
        assert_eq!(run(&format!("{verb} -G / -a -- true")).status, 2);
    }
}
