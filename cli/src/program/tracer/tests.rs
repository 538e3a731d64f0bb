// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the tracer by itself, and with real programs. A test with a program is executed in a
//! process of its own: a tracer waits for whatever its process has started.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{self, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;

/// The longest that a test with a program may take.
const LIMIT: &str = "30s";

/// Notes the calls.
#[derive(Default)]
struct Counts {
    /// Whether no thread may be observed.
    refuses: bool,
    intervals: u32,
    given: Vec<pid_t>,
    /// The threads that have ended, each with the thread to which its data were given.
    ended: Vec<(pid_t, pid_t)>,
    /// The same for threads that have executed another program.
    kept: Vec<(pid_t, pid_t)>,
}

/// The data of a thread are its number when it was new.
impl Observer for Counts {
    type Given = pid_t;

    fn give(&mut self, pid: pid_t) -> Result<Option<pid_t>> {
        if self.refuses {
            return Ok(None);
        }
        self.given.push(pid);
        Ok(Some(pid))
    }

    fn keeps(&mut self, pid: pid_t, given: &mut pid_t) -> Result<bool> {
        self.kept.push((pid, *given));
        Ok(true)
    }

    fn ended(&mut self, pid: pid_t, given: pid_t) -> Result<()> {
        self.ended.push((pid, given));
        Ok(())
    }

    fn interval(&mut self, _: &HashMap<pid_t, pid_t>) -> Result<()> {
        self.intervals += 1;
        Ok(())
    }
}

/// Makes a tracer that follows these threads.
fn tracer<'a>(
    observer: &'a mut Counts,
    signals: &'a Signals,
    pids: &[pid_t],
) -> Tracer<'a, Counts> {
    Tracer {
        observer,
        signals,
        waits: None,
        given: pids.iter().map(|&pid| (pid, pid)).collect(),
        asked: HashSet::new(),
        may_leave: false,
        attaching: false,
        leaving: false,
        unobserved: 0,
    }
}

#[test]
fn a_thread_that_ends_before_it_stops_ends_no_interval_for_the_others() {
    let (mut observer, signals) = (Counts::default(), Signals::default());
    let mut tracer = tracer(&mut observer, &signals, &[11, 12, 13]);
    for (pids, intervals) in [([11, 12], 1), ([12, 13], 2)] {
        tracer.asked = pids.into();
        tracer.stopped(pids[0]).unwrap();
        assert_eq!(tracer.observer.intervals, intervals - 1, "the other one has not stopped");
        tracer.gone(pids[1]).unwrap();
        assert_eq!(tracer.observer.intervals, intervals);
        assert!(tracer.asked.is_empty());
    }
    assert_eq!(observer.ended, [(12, 12), (13, 13)]);
}

#[test]
fn a_thread_is_given_its_data_once() {
    let (mut observer, signals) = (Counts::default(), Signals::default());
    let mut tracer = tracer(&mut observer, &signals, &[11]);
    for pid in [11, 12, 12, 13, 11, 12] {
        tracer.begin(pid).unwrap();
    }
    tracer.waits = Some(14);
    tracer.begin(14).unwrap();
    tracer.leaving = true;
    tracer.begin(15).unwrap();
    assert_eq!(observer.given, [12, 13]);
}

/// Returns the command that executes a test of this module alone.
fn test_alone(test: &str) -> Vec<OsString> {
    let program = std::env::current_exe().unwrap();
    let name = format!("program::tracer::tests::{test}");
    let options = ["--exact", &name, "--ignored", "--nocapture", "--test-threads", "1"];
    [program.into_os_string()].into_iter().chain(command(&options)).collect()
}

/// Runs a test of this module in a process of its own, where it has no children but its own.
fn in_a_process_of_its_own(test: &str) {
    let out = Command::new("timeout")
        .args(["-s", "KILL", LIMIT])
        .args(test_alone(test))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && printed.contains("1 passed"), "{}: {printed}", out.status);
}

/// Starts a test of this module with pipes. Returns it, and the lines that it prints.
fn start_alone(test: &str) -> (process::Child, impl Iterator<Item = String>) {
    let words = test_alone(test);
    let mut program = Command::new(&words[0]);
    program.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().unwrap();
    let output = BufReader::new(program.stdout.take().unwrap());
    (program, output.lines().map(Result::unwrap))
}

fn command(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Starts a shell with this script, which the tracer follows. Returns its process.
fn start_shell(tracer: &mut Tracer<'_, Counts>, script: &str) -> (pid_t, Started) {
    let child = Child::new(&command(&["sh", "-c", script])).unwrap();
    let first = child.pid();
    tracer.seize_first(first).unwrap();
    (first, child.go().unwrap())
}

/// Starts a shell that executes until it is killed, and waits until the tracer observes it.
fn start_endless(tracer: &mut Tracer<'_, Counts>) -> (pid_t, Started) {
    let (first, started) = start_shell(tracer, "while :; do :; done");
    tracer.follow(Some(first), |tracer| !tracer.given.is_empty()).unwrap();
    (first, started)
}

/// Runs a shell with this script, and passes each of its changes to `changed`. Returns the shell's
/// exit status.
fn each_change(
    tracer: &mut Tracer<'_, Counts>,
    script: &str,
    mut changed: impl FnMut(&mut Tracer<'_, Counts>, pid_t, Change),
) -> u8 {
    let (_, started) = start_shell(tracer, script);
    let code = loop {
        match ptrace::wait().unwrap() {
            Waited::Changed(_, Change::Ended(code)) => break code,
            Waited::Changed(pid, change) => changed(tracer, pid, change),
            other => panic!("{other:?}"),
        }
    };
    started.ended().unwrap();
    code
}

#[test]
fn nothing_is_observed_before_the_program_is_executed() {
    in_a_process_of_its_own("begins_early");
}

#[test]
#[ignore = "run by another test"]
fn begins_early() {
    let (mut observer, signals) = (Counts::default(), Signals::default());
    let mut tracer = tracer(&mut observer, &signals, &[]);
    let child = Child::new(&command(&["true"])).unwrap();
    let first = child.pid();
    tracer.seize_first(first).unwrap();
    for _ in 0..2 {
        tracer.begin(first).unwrap();
        assert!(tracer.observer.given.is_empty(), "it has not executed the program");
    }
    let started = child.go().unwrap();
    assert_eq!(tracer.follow(Some(first), |_| false).unwrap(), 0);
    started.ended().unwrap();
    assert_eq!((observer.given, observer.ended), (vec![first], vec![(first, first)]));
}

#[test]
fn a_thread_that_is_left_gets_the_signal_with_which_it_stopped() {
    in_a_process_of_its_own("leaves_at_signal");
}

#[test]
#[ignore = "run by another test"]
fn leaves_at_signal() {
    let (mut observer, signals) = (Counts::default(), Signals::default());
    let mut tracer = tracer(&mut observer, &signals, &[]);
    let script = "trap 'exit 42' USR1; kill -USR1 $$; exit 7";
    let code = each_change(&mut tracer, script, |tracer, pid, change| {
        tracer.leaving = change == Change::Signal(libc::SIGUSR1);
        tracer.changed(pid, change).unwrap();
    });
    assert_eq!(code, 42, "the signal was delivered");
    assert_eq!(observer.ended.len(), 1);
}

#[test]
fn a_program_that_is_stopped_stays_so_and_goes_on_with_its_data() {
    in_a_process_of_its_own("stops_twice");
}

#[test]
#[ignore = "run by another test"]
fn stops_twice() {
    let (mut observer, signals) = (Counts::default(), Signals::default());
    let mut tracer = tracer(&mut observer, &signals, &[]);
    let (mut stops, script) = (0, "kill -STOP $$; kill -STOP $$; exit 7");
    let code = each_change(&mut tracer, script, |tracer, pid, change| {
        tracer.changed(pid, change).unwrap();
        if change == Change::Stopped {
            stops += 1;
            let state = status(pid, "State").unwrap();
            assert!(state.starts_with(['t', 'T']), "{state}");
            kill(Pid::from_raw(pid), Signal::SIGCONT).unwrap();
        }
    });
    assert_eq!((code, stops), (7, 2));
    assert_eq!((observer.given.len(), observer.kept.len()), (1, 0));
}

#[test]
fn a_program_that_may_not_be_observed_gets_its_signals() {
    in_a_process_of_its_own("is_refused");
}

#[test]
#[ignore = "run by another test"]
fn is_refused() {
    let words = command(&["sh", "-c", "trap 'exit 42' USR1; kill -USR1 $$; exit 7"]);
    let mut observer = Counts { refuses: true, ..Counts::default() };
    let followed = run(Target::Program(&words), &mut observer, &Signals::default()).unwrap();
    assert_eq!((followed.status, followed.unobserved), (42, 1));
    assert!(observer.ended.is_empty());
}

#[test]
fn an_interval_ends_though_a_thread_is_killed_before_it_stops() {
    in_a_process_of_its_own("is_killed_while_asked");
}

#[test]
#[ignore = "run by another test"]
fn is_killed_while_asked() {
    let (mut observer, signals) = (Counts::default(), Signals::default());
    let mut tracer = tracer(&mut observer, &signals, &[]);
    let (first, started) = start_endless(&mut tracer);
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    // Nobody has waited for its end yet, so no other process can have got its number.
    tracer.asked.insert(first);
    ptrace::interrupt(first).unwrap();
    assert_eq!(tracer.follow(Some(first), |_| false).unwrap(), 128 + 9);
    assert!(tracer.asked.is_empty());
    started.ended().unwrap();
    assert_eq!((observer.intervals, observer.ended), (1, vec![(first, first)]));
}

#[test]
fn a_program_executes_on_after_each_interval() {
    in_a_process_of_its_own("has_intervals");
}

#[test]
#[ignore = "run by another test"]
fn has_intervals() {
    let (mut observer, signals) = (Counts::default(), Signals::default());
    let mut tracer = tracer(&mut observer, &signals, &[]);
    let (first, started) = start_endless(&mut tracer);
    for intervals in 1..=5 {
        tracer.tick().unwrap();
        tracer.follow(Some(first), |tracer| tracer.observer.intervals == intervals).unwrap();
        assert!(tracer.asked.is_empty());
    }
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    assert_eq!(tracer.follow(Some(first), |_| false).unwrap(), 128 + 9);
    started.ended().unwrap();
    assert_eq!((observer.intervals, observer.given), (5, vec![first]));
    assert_eq!(observer.ended, [(first, first)]);
}

#[test]
fn every_process_is_observed_from_its_beginning_to_its_end() {
    in_a_process_of_its_own("starts_others");
}

#[test]
#[ignore = "run by another test"]
fn starts_others() {
    let words = command(&["sh", "-c", "sleep 0 & sh -c 'exit 3' & wait; (exit 4); exit 5"]);
    let mut observer = Counts::default();
    let followed = run(Target::Program(&words), &mut observer, &Signals::default()).unwrap();
    assert_eq!((followed.status, followed.unobserved), (5, 0));
    let (mut given, mut ended) = (observer.given, observer.ended);
    assert_eq!(observer.kept.len(), 2, "the first execution is the beginning");
    assert!(given.len() == 4 && given.iter().all(|pid| *pid != 0));
    given.sort_unstable();
    ended.sort_unstable();
    assert_eq!(ended, given.into_iter().map(|pid| (pid, pid)).collect::<Vec<_>>());
}

#[test]
fn data_that_a_program_does_not_keep_are_ended_and_others_given() {
    in_a_process_of_its_own("keeps_nothing");
}

/// Numbers data from 1 on. No executed program keeps them.
#[derive(Default)]
struct KeepsNothing {
    given: u32,
    ended: Vec<u32>,
}

impl Observer for KeepsNothing {
    type Given = u32;

    fn give(&mut self, _: pid_t) -> Result<Option<u32>> {
        self.given += 1;
        Ok(Some(self.given))
    }

    fn keeps(&mut self, _: pid_t, _: &mut u32) -> Result<bool> {
        Ok(false)
    }

    fn ended(&mut self, _: pid_t, given: u32) -> Result<()> {
        self.ended.push(given);
        Ok(())
    }
}

#[test]
#[ignore = "run by another test"]
fn keeps_nothing() {
    let words = command(&["sh", "-c", "exec sh -c 'exec true'"]);
    let mut observer = KeepsNothing::default();
    let followed = run(Target::Program(&words), &mut observer, &Signals::default()).unwrap();
    assert_eq!((followed.status, followed.unobserved), (0, 0));
    let KeepsNothing { given, ended } = observer;
    assert_eq!((given, &ended[..]), (3, &[1, 2, 3][..]), "given {given}, ended {ended:?}");
}

#[test]
fn a_thread_that_executes_a_program_keeps_its_own_data() {
    in_a_process_of_its_own("is_replaced");
}

#[test]
#[ignore = "run by another test"]
fn is_replaced() {
    let mut observer = Counts::default();
    let words = test_alone("executes_in_a_thread");
    let followed = run(Target::Program(&words), &mut observer, &Signals::default()).unwrap();
    assert_eq!(followed.status, 42);
    let [.., (process, given)] = observer.kept[..] else { panic!("it has executed nothing") };
    assert_eq!(process, observer.given[0]);
    assert_eq!(given, *observer.given.last().unwrap(), "the thread was the last that began");
    assert!(observer.ended.contains(&(process, process)), "the first thread has ended");
    assert_eq!(observer.ended.last(), Some(&(process, given)));
    assert_eq!(observer.ended.len(), observer.given.len());
}

#[test]
#[ignore = "a program that another test observes"]
fn executes_in_a_thread() {
    thread::spawn(|| Command::new("sh").args(["-c", "exit 42"]).exec()).join().unwrap();
}

#[test]
fn all_threads_of_a_process_are_observed_until_the_command_ends() {
    in_a_process_of_its_own("is_left");
}

/// The threads of [`waits_in_threads`], beside those that the test itself has.
const THREADS: usize = 3;

#[test]
#[ignore = "run by another test"]
fn is_left() {
    let (mut process, mut lines) = start_alone("waits_in_threads");
    assert!(lines.any(|line| line.contains("ready")));
    let pid = process.id().cast_signed();
    let mut all = threads(pid).unwrap();
    all.sort_unstable();
    assert!(all.len() > THREADS);

    let words = command(&["sh", "-c", "exit 4"]);
    let mut observer = Counts::default();
    let target = Target::Process(pid, &words);
    let followed = run(target, &mut observer, &Signals::default()).unwrap();
    assert_eq!((followed.status, followed.unobserved), (4, 0));
    let mut ended: Vec<pid_t> = observer.ended.into_iter().map(|(pid, _)| pid).collect();
    for seen in [&mut observer.given, &mut ended] {
        seen.sort_unstable();
        assert_eq!(*seen, all);
    }
    for thread in all {
        assert_eq!(status(thread, "TracerPid").as_deref(), Some("0"), "thread {thread}");
    }
    // It goes on: the end of its input ends it.
    drop(process.stdin.take());
    assert!(lines.any(|line| line.contains("went on")));
    assert_eq!(process.wait().unwrap().code(), Some(42));
}

#[test]
fn a_process_that_ran_before_outlives_its_tracer() {
    in_a_process_of_its_own("kills_a_tracer");
}

#[test]
#[ignore = "run by another test"]
fn kills_a_tracer() {
    let (mut tracer, mut lines) = start_alone("attaches_to_its_child");
    assert!(lines.any(|line| line.contains("attached")));
    let input = tracer.stdin.take();
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    drop(input);
    assert!(lines.any(|line| line.contains("went on")));
}

#[test]
#[ignore = "a program that another test kills"]
fn attaches_to_its_child() {
    let words = test_alone("waits_in_threads");
    let mut process = Command::new(&words[0]).args(&words[1..]).spawn().unwrap();
    let (mut observer, signals) = (Counts::default(), Signals::default());
    let mut tracer = tracer(&mut observer, &signals, &[]);
    tracer.attaching = true;
    tracer.seize_all(process.id().cast_signed()).unwrap();
    tracer.follow(None, |tracer| tracer.asked.is_empty()).unwrap();
    println!("attached");
    process.wait().unwrap();
}

#[test]
#[ignore = "a program that another test observes"]
fn waits_in_threads() {
    let begun = Arc::new(Barrier::new(THREADS + 1));
    for _ in 0..THREADS {
        let begun = Arc::clone(&begun);
        thread::spawn(move || {
            begun.wait();
            thread::park_timeout(Duration::from_secs(60));
        });
    }
    begun.wait();
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    println!("went on");
    process::exit(42);
}
