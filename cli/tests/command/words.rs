// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what the command takes for its own options, and what it offers.

use crate::run::{output_of, perfctr, run};

#[test]
fn an_unknown_option_never_becomes_the_program() {
    for line in ["stat -z", "stat -x, ls", "stat --nonsense ls", "record -y 99 ls", "record -z ls"]
    {
        let printed = run(line);
        assert_eq!(printed.status, 2, "{line}: {printed:?}");
        assert!(printed.err.contains("unexpected argument"), "{line}: {printed:?}");
    }
}

#[test]
fn a_frequency_stands_in_place_of_a_period() {
    for (line, status, why) in [
        ("record -F 99 -c 5000 ls", 2, "cannot be used with"),
        ("record -F 0 ls", 2, "0 is not in 1.."),
        ("record -F 99 -e cycles/period=5000/u ls", 125, "cycles:u has the period 5000"),
        ("record -F 1000000000 ls", 125, "1000000000 samples in a second: the kernel allows"),
    ] {
        let printed = run(line);
        assert_eq!(printed.status, status, "{line}: {printed:?}");
        assert!(printed.err.contains(why), "{line}: {printed:?}");
    }
}

#[test]
fn branches_are_not_for_hosts_names_and_other_tables() {
    for line in [
        "record -b --host",
        "record -b --names",
        "report --branches -s module",
        "report --branches -f perf",
        "report --branches --annotate f",
        "report --branches --caused",
        "report --branches -g",
    ] {
        let printed = run(line);
        assert_eq!(printed.status, 2, "{line}: {printed:?}");
        assert!(printed.err.contains("cannot be used with"), "{line}: {printed:?}");
    }
}

#[test]
fn options_behind_the_program_are_the_programs() {
    for line in ["stat -o /dev/null echo -n -a --json", "stat -o /dev/null -- echo -n -a --json"] {
        let printed = run(line);
        assert_eq!((printed.status, &*printed.out), (0, "-a --json"), "{printed:?}");
    }
}

#[test]
fn an_event_that_is_not_known_is_counted_when_asked_for() {
    let refused = run("stat -e r1ff:u true");
    assert_eq!(refused.status, 125, "{refused:?}");
    assert!(refused.err.contains("not known to be right on this CPU"), "{refused:?}");
    assert!(refused.err.contains("--unverified"), "{refused:?}");
    let counted = run("stat --unverified --csv -e r1ff:u true");
    assert_eq!(counted.status, 0, "{counted:?}");
    let line = counted.err.lines().next().unwrap();
    let [value, _, event] = line.splitn(4, ',').collect::<Vec<_>>()[..3] else { panic!("{line}") };
    assert_eq!(event, "r1ff:u");
    assert!(value.parse::<u64>().unwrap() > 0, "{line}");
    for line in ["top --plain -n 1 -e r1ff:u -p 1", "export --once -e r1ff:u -p 1"] {
        let printed = run(line);
        assert!(printed.err.contains("--unverified"), "{line}: {printed:?}");
        let counted = output_with(line, "--unverified");
        assert_eq!(counted.status, 0, "{line}: {counted:?}");
        assert!(counted.out.contains("r1ff:u"), "{line}: {counted:?}");
    }
}

fn output_with(line: &str, option: &str) -> crate::run::Printed {
    output_of(&mut perfctr(line.split(' ').chain([option])))
}
