// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests recordings of what runs already, and of several events at once.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

use crate::run::{Process, build, calls, file, nobody, perfctr, run};

/// What a file says of one event.
#[derive(Debug)]
struct Recorded {
    event: String,
    samples: u64,
    /// The periods that threads have completed without a sample.
    missed: u64,
}

impl Recorded {
    fn of(profile: &Value) -> Self {
        let sum = |list: &str, number: &dyn Fn(&Value) -> u64| -> u64 {
            profile[list].as_array().unwrap().iter().map(number).sum()
        };
        let samples = sum("stacks", &|stack| stack["samples"].as_u64().unwrap());
        let period = profile["period"].as_u64().unwrap();
        let completed = sum("threads", &|thread| thread["count"].as_u64().unwrap() / period);
        let event = profile["event"].as_str().unwrap().to_owned();
        Self { event, samples, missed: completed - samples }
    }

    /// Reads a file with the profiles of one event or several.
    fn read(path: &Path) -> Vec<Self> {
        let document: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let profiles = document["profiles"].as_array().cloned().unwrap_or(vec![document]);
        profiles.iter().map(Self::of).collect()
    }
}

#[test]
fn functions_that_were_inlined_are_shown_below_their_callers() {
    let (program, profile) = (build("inlined.c", &["-O2", "-g"]), file("inlined.profile"));
    let (program, profile) = (program.display(), profile.display());
    let printed = run(&format!("record -g -e instructions:u -o {profile} {program}"));
    assert_eq!(printed.status, 0, "{printed:?}");
    let symbols = Command::new("nm").arg(program.to_string()).output().unwrap().stdout;
    let symbols = String::from_utf8(symbols).unwrap();
    assert!(symbols.contains(" around\n") && !symbols.contains(" inlined\n"), "{symbols}");
    let report = |options: &str| run(&format!("report -i {profile} {options}")).out;
    let folded = report("-f folded");
    assert!(folded.contains(";main;around;inlined "), "{folded}");
    let mut graph = Vec::new();
    for line in report("-g").lines().skip_while(|line| !line.ends_with("  called")) {
        graph.extend(line.split_whitespace().next_back().map(str::to_owned));
    }
    assert!(graph.windows(3).any(|w| w == ["main", "around", "inlined"]), "{graph:?}");
    let lines = report("-s symbol,line");
    let is_loop = |line: &str| [":9", ":10"].iter().any(|end| line.ends_with(end));
    assert!(lines.lines().any(|line| line.contains(" around ") && is_loop(line)), "{lines}");
}

#[test]
fn what_runs_already_is_sampled_and_goes_on() {
    let busy = Process::busy(b"busy");
    let pid = busy.pid();
    let waiter = busy.waiter();
    for (n, who) in [format!("-p {pid}"), format!("-t {pid}"), "-a".to_owned()].iter().enumerate() {
        let profile = file(format!("attached-{n}"));
        let path = profile.display();
        let record = format!("record -g -e instructions:u -c 1000003 -o {path} {who} -- {waiter}");
        let printed = run(&record);
        assert_eq!(printed.status, 0, "{who}: {printed:?}");
        let found = Recorded::read(&profile);
        assert!(found[0].samples > 20, "{who}: {found:?}");
        let report = run(&format!("report -i {path} -s thread,module"));
        let row = |line: &&str| line.contains(&format!("{pid} busy"));
        let rows: Vec<&str> = report.out.lines().filter(row).collect();
        assert!(rows.iter().any(|row| row.contains("sh")), "{who}: {report:?}");
        assert_eq!(run(&format!("record -o /dev/null {who} false")).status, 1, "{who}");
    }
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert!(state.contains(") R "), "it has been stopped: {state}");
}

/// Starts a recording, and waits until it has opened all of its perf events.
fn start(profile: &Path, pid: u32) -> Child {
    let mut record = perfctr(["record", "-e", "instructions:u", "-c", "1000003", "-o"]);
    let record = record.arg(profile).args(["-p", &pid.to_string()]);
    let record = record.stderr(Stdio::piped()).spawn().unwrap();
    let (mut before, mut events, mut looks) = (0, 0, 0);
    while (events == 0 || events != before) && looks < 1_000 {
        sleep(Duration::from_millis(50));
        (before, events, looks) = (events, perf_events(record.id()), looks + 1);
    }
    assert!(events > 0, "no perf events: {record:?}");
    record
}

/// Returns the number of perf events that a process has open.
fn perf_events(pid: u32) -> usize {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let names = files.filter_map(|file| fs::read_link(file.path()).ok());
    names.filter(|name| name == Path::new("anon_inode:[perf_event]")).count()
}

#[test]
fn a_process_is_sampled_to_its_end_with_all_that_it_starts() {
    let [profile, go] = ["attached-to-end", "attached-go"].map(file);
    assert!(Command::new("mkfifo").arg(&go).status().unwrap().success());
    let script = format!("echo; read line <{}; exec {}", go.display(), calls().display());
    let ended = Process::shell(script.as_bytes());
    let record = start(&profile, ended.pid());
    fs::write(&go, "\n").unwrap();
    let printed = record.wait_with_output().unwrap();
    assert!(printed.status.success(), "{printed:?}");
    let report = run(&format!("report -i {} -s thread,symbol", profile.display()));
    assert!(report.out.contains("of 3 threads"), "{report:?}");
    let innermost = report.out.lines().filter(|line| line.contains("innermost")).count();
    assert_eq!(innermost, 3, "{report:?}");
    let printed = run(&format!("record -o /dev/null -p {}", nobody()));
    assert!(printed.status == 125 && printed.err.contains("process"), "{printed:?}");
}

#[test]
fn an_observer_that_is_killed_harms_nobody() {
    let busy = Process::busy(b"busy");
    let pid = busy.pid().to_string();
    let mut record = start(Path::new("/dev/null"), busy.pid());
    record.kill().unwrap();
    record.wait().unwrap();
    sleep(Duration::from_millis(100));
    let alive = Command::new("kill").args(["-0", &pid]).status().unwrap();
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert!(alive.success() && state.contains(") R "), "{state}");
}

#[test]
fn several_events_are_sampled_at_once() {
    let (program, profile) = (calls(), file("several"));
    let path = profile.display();
    let events = "instructions:u,branches/period=2000003/u";
    let printed = run(&format!("record -e {events} -c 1000003 -o {path} {}", program.display()));
    assert_eq!(printed.status, 0, "{printed:?}");
    assert!(printed.err.contains(&format!("in {path}: branches:u")), "{printed:?}");
    let found = Recorded::read(&profile);
    let names: Vec<&str> = found.iter().map(|recorded| &*recorded.event).collect();
    assert_eq!(names, ["instructions:u", "branches:u"]);
    // Both count the time that a thread executes, except for the microseconds of a pause at each
    // overflow. So in each thread the first completes twice as many periods as the second: one more
    // if the second's last period is half over, one less if it ends within those microseconds.
    let threads = 3;
    let [often, seldom] = [0, 1].map(|n| found[n].samples + found[n].missed);
    assert!(often > 10 && often.abs_diff(2 * seldom) <= threads, "{found:?}");
    // A timer that comes late is missed if its thread has ended meanwhile.
    assert!(found.iter().all(|recorded| recorded.missed <= threads), "{found:?}");
    let both = run(&format!("report -i {path}"));
    assert_eq!(both.out.matches("innermost").count(), 2, "{both:?}");
    assert!(both.out.contains("one every 2000003 branches:u"), "{both:?}");
    let refused = run(&format!("report -i {path} -f folded"));
    assert!(refused.err.contains("instructions:u, branches:u found: `--event`"), "{refused:?}");
    let one = run(&format!("report -i {path} -f folded --event branches:u"));
    assert!(one.status == 0 && one.out.contains("innermost"), "{one:?}");
    let refused = run(&format!("diff {path} {path}"));
    assert!(refused.err.contains("one event expected"), "{refused:?}");
    let data = file("several.data");
    let printed = run(&format!("report -i {path} -f perf -o {}", data.display()));
    assert_eq!(printed.status, 0, "{printed:?}");
    let read = run(&format!("report -i {}", data.display()));
    assert_eq!(read.out, both.out.replace("from native", "from perf"));
}
