// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests processes that run already: their names, and their numbers of threads.

use std::process::Command;
use std::sync::Barrier;
use std::thread;

use crate::run::{Process, nobody, output_of, perfctr, run};

/// A name of 15 bytes, which are all that Linux keeps, with half a character at the end.
const CUT: &[u8] = b"12345678901234\xd0";
const CUT_SHOWN: &str = "12345678901234\u{fffd}";

#[test]
fn a_process_whose_name_is_no_utf_8_is_counted() {
    let busy = Process::busy(CUT);
    let printed =
        run(&format!("stat --csv -e instructions:u -p {} -- {}", busy.pid(), busy.waiter()));
    assert_eq!(printed.status, 0, "{printed:?}");
    let count: u64 = printed.err.split(',').next().unwrap().parse().unwrap();
    assert!(count > 100_000_000, "{count} ns of 200 ms");
    let top = run(&format!("top --plain -n 1 -d 100 -p {}", busy.pid()));
    assert!(top.out.contains(CUT_SHOWN), "{top:?}");
    let export = run(&format!("export --once -p {}", busy.pid()));
    assert!(export.out.contains(&format!("name=\"{CUT_SHOWN}\"")), "{export:?}");
}

#[test]
fn threads_and_cpus_are_counted_until_the_command_ends() {
    let busy = Process::busy(b"busy");
    for who in [format!("-t {}", busy.pid()), "-a".to_owned()] {
        let printed = run(&format!("stat --csv -e instructions:u {who} -- {}", busy.waiter()));
        assert_eq!(printed.status, 0, "{printed:?}");
        let count: u64 = printed.err.split(',').next().unwrap().parse().unwrap();
        assert!(count > 100_000_000, "{who}: {count} ns of 200 ms");
        assert_eq!(run(&format!("stat -o /dev/null {who} false")).status, 1, "{who}");
    }
    // A thread's end is the end of its counts.
    let ended = Process::shell(b"echo; exec sleep 0.5");
    let printed = run(&format!("stat --csv -I 100 -e instructions:u -t {}", ended.pid()));
    assert_eq!(printed.status, 0, "{printed:?}");
    assert!(printed.err.lines().count() > 2, "{printed:?}");
    let printed = run(&format!("stat -t {} true", nobody()));
    assert!(printed.status == 125 && printed.err.contains("thread"), "{printed:?}");
}

#[test]
fn a_name_sends_no_commands_to_the_terminal() {
    let busy = Process::busy(b"\x1b]0;owned\x07\x1b[m");
    for line in [
        format!("top --plain -n 1 -d 100 -p {}", busy.pid()),
        format!("export --once -p {}", busy.pid()),
    ] {
        let printed = run(&line);
        assert!(printed.out.contains("]0;owned"), "{printed:?}");
        assert!(!printed.out.contains(['\x1b', '\x07']), "{printed:?}");
    }
}

#[test]
fn many_threads_need_no_higher_limit_of_files() {
    const THREADS: usize = 100;
    let ready = Barrier::new(THREADS + 1);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                ready.wait();
                ready.wait();
            });
        }
        ready.wait();
        let pid = std::process::id();
        let printed = [
            format!("stat -p {pid} -- true"),
            format!("top --plain -n 1 -d 100 -p {pid}"),
            format!("export --once -p {pid}"),
        ]
        .map(|line| output_of(&mut limited(&line)));
        // This is before any assertion, since a panic waits for all threads.
        ready.wait();
        assert_eq!(printed.each_ref().map(|printed| printed.status), [0; 3], "{printed:?}");
    });
    let programs = output_of(&mut limited("stat -o /dev/null -- sh -c 'ulimit -Sn'"));
    assert_eq!(programs.out, "64\n", "the program keeps its caller's limit");
}

/// Returns the command with a soft limit of 64 open files.
fn limited(line: &str) -> Command {
    let mut command = perfctr([""; 0]);
    let environment: Vec<_> = command
        .get_envs()
        .map(|(key, value)| (key.to_owned(), value.unwrap().to_owned()))
        .collect();
    let program = command.get_program().to_str().unwrap().to_owned();
    command = Command::new("sh");
    command.args(["-c", &format!("ulimit -Sn 64; exec {program} {line}")]).envs(environment);
    command
}

#[test]
fn a_process_that_is_not_there_is_an_error() {
    let pid = nobody();
    for verb in ["top --plain -n 1", "export --once", "stat"] {
        let printed = run(&format!("{verb} -p {pid}"));
        assert_eq!(printed.status, 125, "{verb}: {printed:?}");
        assert!(printed.err.contains(&format!("process {pid}")), "{verb}: {printed:?}");
    }
}

#[test]
fn a_process_that_is_asked_for_twice_is_exported_once() {
    let busy = Process::busy(b"busy");
    let pid = busy.pid();
    let [once, twice] =
        [format!("export --once -p {pid}"), format!("export --once -p {pid} -p {pid}")];
    let [once, twice] = [once, twice].map(|line| run(&line).out.lines().count());
    assert!(once > 10);
    assert_eq!(twice, once);
}
