// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what the command takes for its own options, and what it offers.

use crate::run::{perfctr, run, said};

#[test]
fn an_unknown_option_never_becomes_the_program() {
    for line in ["stat -z", "stat -x, ls", "stat --nonsense ls", "record -F 99 ls", "record -z ls"]
    {
        let said = run(line);
        assert_eq!(said.status, 2, "{line}: {said:?}");
        assert!(said.err.contains("unexpected argument"), "{line}: {said:?}");
    }
}

#[test]
fn options_behind_the_program_are_the_programs() {
    for line in ["stat -o /dev/null echo -n -a --json", "stat -o /dev/null -- echo -n -a --json"] {
        let said = run(line);
        assert_eq!((said.status, &*said.out), (0, "-a --json"), "{said:?}");
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
        let said = run(line);
        assert!(said.err.contains("--unverified"), "{line}: {said:?}");
        let counted = said_with(line, "--unverified");
        assert_eq!(counted.status, 0, "{line}: {counted:?}");
        assert!(counted.out.contains("r1ff:u"), "{line}: {counted:?}");
    }
}

fn said_with(line: &str, option: &str) -> crate::run::Said {
    said(&mut perfctr(line.split(' ').chain([option])))
}
