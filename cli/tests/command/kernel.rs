// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests recordings of the kernel, with this machine's own.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::run::{Process, file, output_of, perfctr, run};

/// A program that is in the kernel nearly all the time.
const COPY: &str = "dd if=/dev/zero of=/dev/null bs=1M count=4000 status=none";

/// Returns the samples of the layers of a table whose first column is the layer.
fn layers(table: &str) -> [u64; 2] {
    ["kernel", "user"].map(|layer| {
        let rows = table.lines().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words.get(2) == Some(&layer)).then(|| words[0].parse::<u64>().unwrap())
        });
        rows.sum()
    })
}

#[test]
fn the_kernel_is_sampled_with_the_program_that_it_executes_for() {
    let profile = file("kernel.profile");
    let path = profile.display();
    let recorded = run(&format!("record -g -e instructions -c 1000003 -o {path} {COPY}"));
    assert_eq!(recorded.status, 0, "{recorded:?}");
    let mode = fs::metadata(&profile).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "where the kernel has its code is not for everybody");
    let report = run(&format!("report -i {path}"));
    let [kernel, user] = layers(&report.out);
    assert!(kernel > 20 && kernel > user, "{report:?}");
    let folded = run(&format!("report -i {path} -f folded")).out;
    let of_kernel: Vec<&str> = folded.lines().filter(|line| line.contains("_[k]")).collect();
    assert!(!of_kernel.is_empty(), "{folded}");
    for line in of_kernel {
        let (stack, _) = line.rsplit_once(' ').unwrap();
        let first = stack.split(';').position(|word| word.ends_with("_[k]")).unwrap();
        let rest = stack.split(';').skip(first);
        assert!(
            rest.clone().all(|word| word.ends_with("_[k]")),
            "user mode calls the kernel: {line}"
        );
    }
    let picture = run(&format!("report -i {path} -f flame-graph")).out;
    assert!(picture.contains("blue: the kernel") && !picture.contains("_["), "its marks are seen");
    let modules = run(&format!("report -i {path} -s module")).out;
    assert!(modules.contains("  [kernel]\n"), "{modules}");
    // perf's file says the same.
    let data = file("kernel.data");
    let written = run(&format!("report -i {path} -f perf -o {}", data.display()));
    assert_eq!(written.status, 0, "{written:?}");
    let read = run(&format!("report -i {} -s layer", data.display()));
    assert_eq!(layers(&read.out), [kernel, user], "{read:?}");
}

#[test]
fn kernel_and_user_mode_are_told_apart_of_what_runs_already() {
    // A process that has been started before is not sampled, so none lasts long.
    let short = COPY.replace("4000", "200");
    let busy = Process::shell(format!("echo; while :; do {short}; done").as_bytes());
    let profile = file("kernel-attached.profile");
    let path = profile.display();
    let waiter = busy.waiter();
    for who in [format!("-p {}", busy.pid()), "-a".to_owned()] {
        let line = format!("record -e instructions:k -c 1000003 -o {path} {who} -- {waiter}");
        let recorded = run(&line);
        assert_eq!(recorded.status, 0, "{who}: {recorded:?}");
        let report = run(&format!("report -i {path}"));
        let [kernel, user] = layers(&report.out);
        assert!(kernel > 3 && user == 0, "{who}: {report:?}");
    }
    let line =
        format!("record -e instructions:u -c 1000003 -o {path} -p {} -- {waiter}", busy.pid());
    let only_user = run(&line);
    assert_eq!(only_user.status, 0, "{only_user:?}");
    let report = run(&format!("report -i {path}"));
    assert!(!report.out.contains("layer") && !report.out.contains("kernel"), "{report:?}");
    let refused = run(&format!("report -i {path} -s layer"));
    assert!(refused.err.contains("no samples of the kernel"), "{refused:?}");
}

#[test]
fn who_may_not_sample_the_kernel_hears_who_may() {
    let level = file("level-of-the-kernel");
    fs::write(&level, "2\n").unwrap();
    for who in ["true", "-a -- true"] {
        let line = format!("record -e instructions -o /dev/null {who}");
        let mut record = perfctr(line.split(' '));
        let printed = output_of(record.env("SOFT_PMU", "paranoid").env("SOFT_PMU_LEVEL", &level));
        assert_eq!(printed.status, 125, "{printed:?}");
        for part in ["kernel.perf_event_paranoid is 2", "root", "CAP_PERFMON"] {
            assert!(printed.err.contains(part), "{who}: `{part}` is not in {printed:?}");
        }
    }
}
