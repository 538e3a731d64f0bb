// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the files of Linux's perf. The suite `perf-data` compares with perf itself.

use std::fs;

use crate::run::{calls, file, output_of, perfctr, run};

#[test]
fn a_profile_says_the_same_as_a_file_of_perfs() {
    let [profile, data] =
        ["perf.profile", "perf.data"].map(|name| file(name).display().to_string());
    let calls = calls().display().to_string();
    let printed = run(&format!("record -g -e instructions:u -c 1000003 -o {profile} {calls}"));
    assert_eq!(printed.status, 0, "{printed:?}");
    let printed = run(&format!("report -i {profile} -f perf -o {data}"));
    assert_eq!((printed.status, &*printed.err), (0, ""));
    let [ours, perfs] = [&profile, &data].map(|input| {
        let printed = run(&format!("report -i {input} -s thread,symbol -g"));
        assert_eq!((printed.status, &*printed.err), (0, ""));
        // Threads are in the order in which they began, or in which they were sampled first.
        let text = printed.out.replace("from perf\n", "from native\n");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    });
    let all = ours.concat();
    assert!(all.contains("innermost") && all.contains("of 3 threads"), "{ours:?}");
    assert_eq!(ours, perfs);
    let printed = run(&format!("diff {profile} {data}"));
    assert_eq!(printed.status, 0, "{printed:?}");
    let printed = run(&format!("report -i {data} --event cycles:u"));
    assert_eq!((printed.status, &*printed.out), (125, ""));
    assert!(printed.err.contains("instructions:u found, and not cycles:u"), "{printed:?}");
}

#[test]
fn recordings_are_written_as_files_of_perfs_at_once() {
    let folder = file("at-once");
    fs::create_dir_all(&folder).unwrap();
    let mut record = perfctr(["record", "-g", "-e", "instructions:u,branches:u", "-f", "perf"]);
    let recorded = output_of(record.arg(calls()).current_dir(&folder));
    assert_eq!(recorded.status, 0, "{recorded:?}");
    assert!(recorded.err.contains(" in perf.data: instructions:u\n"), "{recorded:?}");
    let path = folder.join("perf.data");
    assert!(fs::read(&path).unwrap().starts_with(b"PERFILE2"));
    let report = run(&format!("report -i {} --event branches:u -g", path.display()));
    assert_eq!((report.status, &*report.err), (0, ""));
    assert!(report.out.contains("branches:u, from perf\n"), "{report:?}");
    assert!(report.out.contains("innermost"), "{report:?}");
    let named = file("named.data").display().to_string();
    let printed = run(&format!("record -f perf -o {named} {}", calls().display()));
    assert!(
        printed.status == 0 && fs::read(named).unwrap().starts_with(b"PERFILE2"),
        "{printed:?}"
    );
}
