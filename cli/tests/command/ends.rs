// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests when and how the command ends, and what becomes of what it was told to write to.

use std::fs::{self, File};
use std::io::{self, PipeWriter, Read};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::run::{Process, calls, compile, file, output_of, perfctr, run, set_baseline};

#[test]
fn who_reads_no_more_hears_no_more() {
    let busy = Process::busy(b"busy");
    let (top, export) = (
        format!("top --plain -d 50 -p {}", busy.pid()),
        format!("export --once -p {}", busy.pid()),
    );
    let profile = record("closed.profile");
    let report = format!("report -i {profile}");
    // No line ends in it.
    let document = format!("report -f firefox -i {profile}");
    let diff = format!("diff {profile} {profile}");
    let baseline = file("closed.json");
    set_baseline(&baseline, "true", 1);
    let gate = format!("gate -r 1 --name true --baseline {} -- true", baseline.display());
    for line in [
        "info",
        "info --json",
        "list",
        "list --json",
        &top,
        &export,
        &report,
        &document,
        &diff,
        &gate,
    ] {
        let mut command = perfctr(line.split(' '));
        let child = command.stdout(closed_pipe()).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(128 + 13), "{line}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
    }
}

#[test]
fn who_reads_no_more_counts_ends_stat() {
    for line in ["stat true", "stat --json true", "stat --csv true", "stat -I 50 -- sleep 20"] {
        let begun = Instant::now();
        let status = perfctr(line.split(' ')).stderr(closed_pipe()).status().unwrap();
        assert_eq!(status.code(), Some(128 + 13), "{line}");
        assert!(begun.elapsed() < Duration::from_secs(15), "{line}: it waits for the sleeper");
    }
}

/// Returns a pipe that nobody reads.
fn closed_pipe() -> PipeWriter {
    io::pipe().unwrap().1
}

/// Records a profile, and returns its path.
fn record(name: &str) -> String {
    let path = file(name).display().to_string();
    let printed = run(&format!("record -g -e instructions:u -o {path} {}", calls().display()));
    assert_eq!(printed.status, 0, "{printed:?}");
    path
}

#[test]
fn a_full_disk_is_an_error_that_says_so() {
    let document = format!("report -f firefox -i {}", record("full.profile"));
    for line in ["info", "list", &document] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = perfctr(line.split(' ')).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{line}: {output:?}");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(printed.contains("No space left on device"), "{line}: {printed}");
    }
}

#[test]
fn programs_end_by_closed_pipes_as_without_the_command() {
    let printed = run_script("yes | head -n 1");
    assert_eq!((printed.status, &*printed.out, &*printed.err), (0, "y\n", ""), "{printed:?}");
}

/// Runs `perfctr stat` with a script. The counts are not looked at.
fn run_script(script: &str) -> crate::run::Printed {
    output_of(&mut perfctr(["stat", "-o", "/dev/null", "--", "sh", "-c", script]))
}

/// Runs `perfctr stat` with a script. Returns the exit status, and the runs.
fn runs(options: &[&str], script: &str) -> (i32, Vec<Value>) {
    let path = file(format!("runs-{:?}.json", thread::current().id()));
    let mut command = perfctr(["stat", "--json", "-e", "instructions:u", "-o"]);
    let printed = output_of(command.arg(&path).args(options).args(["--", "sh", "-c", script]));
    let document: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    (printed.status, document["runs"].as_array().unwrap().clone())
}

fn number(run: &Value, key: &str) -> u64 {
    run[key].as_u64().unwrap()
}

#[test]
fn no_program_executes_for_longer_than_it_takes() {
    let (status, runs) = runs(&["-r", "60"], "exit 4");
    assert_eq!((status, runs.len()), (4, 60));
    for run in &runs {
        let (elapsed, executed) = (number(run, "elapsed_ns"), number(run, "time_ns"));
        assert!(executed > 0 && executed <= elapsed, "{executed} ns in {elapsed} ns");
    }
}

#[test]
fn counting_ends_when_the_last_process_has_ended() {
    const LOOP: &str = "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done";
    let (status, alone) = runs(&[], LOOP);
    assert_eq!(status, 0);
    let (status, left) = runs(&[], &format!("(sleep 0.2; {LOOP}) & exit 3"));
    assert_eq!(status, 3);
    assert!(number(&left[0], "elapsed_ns") > 200_000_000, "{left:?}");
    let [alone, left] = [alone, left].map(|runs| runs[0]["counts"][0].as_u64().unwrap());
    assert!(left > alone / 2, "{left} of a process that was left behind, {alone} alone");
}

#[test]
fn an_interrupt_ends_the_wait_for_what_a_program_has_left_behind() {
    let script = "trap '' INT; sleep 20 & echo; exit 5";
    let mut command = perfctr(["stat", "-o", "/dev/null", "--", "sh", "-c", script]);
    let begun = Instant::now();
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed());
    // The program executes now, so the command no longer ends by an interrupt of its own.
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let status = loop {
        // The command may not be waiting for the sleeper yet.
        thread::sleep(Duration::from_millis(100));
        kill(pid, Signal::SIGINT).unwrap();
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < Duration::from_secs(15), "it waits for the sleeper");
    };
    assert_eq!(status.code(), Some(5));
}

#[test]
fn a_program_that_is_recorded_ends_with_a_command_that_is_killed() {
    let script = "echo; exec sleep 20";
    let mut command = perfctr(["record", "-o", "/dev/null", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    let begun = Instant::now();
    child.kill().unwrap();
    child.wait().unwrap();
    // The program has this pipe open as long as it lives.
    assert_eq!(output.read(&mut [0]).unwrap(), 0);
    assert!(begun.elapsed() < Duration::from_secs(15), "it slept on");
}

#[test]
fn a_missing_program_gives_127_and_no_program_126() {
    let text = file("no-program");
    fs::write(&text, "no program").unwrap();
    let text = text.to_str().unwrap();
    for verb in ["stat", "record -o /dev/null"] {
        for (program, status, why) in
            [("/nowhere", 127, "No such file"), (text, 126, "Permission denied")]
        {
            let printed = run(&format!("{verb} -- {program}"));
            assert_eq!(printed.status, status, "{printed:?}");
            let expected = format!("perfctr: cannot execute {program}: {why}");
            assert!(printed.err.starts_with(&expected), "{printed:?}");
            assert_eq!(printed.err.lines().count(), 1, "{printed:?}");
        }
    }
}

#[test]
fn a_profile_that_cannot_be_written_is_refused_before_the_program_runs() {
    let (marker, kept) = (file("has-run"), file("kept.data"));
    let printed =
        output_of(perfctr(["record", "-o", "/nonexistent/x", "--", "touch"]).arg(&marker));
    assert_eq!((printed.status, marker.exists()), (125, false), "{printed:?}");
    assert!(printed.err.contains("cannot write /nonexistent/x: No such file"), "{printed:?}");
    fs::write(&kept, "what was recorded before").unwrap();
    let absent = run(&format!("record -o {} -- /nowhere", kept.display()));
    assert_eq!(absent.status, 127, "{absent:?}");
    assert_eq!(fs::read_to_string(&kept).unwrap(), "what was recorded before");
}

#[test]
fn a_program_in_a_place_that_is_no_utf_8_has_its_functions_names() {
    use std::os::unix::ffi::OsStrExt;
    let directory = file(std::ffi::OsStr::from_bytes(b"k\xf6ln"));
    fs::create_dir_all(&directory).unwrap();
    let (source, program, profile) = (file("spin.c"), directory.join("spin"), file("spin.data"));
    let text = "volatile unsigned long n; __attribute__((noinline)) void spin_here(void) { while \
                (n < 300000000) n++; } int main(void) { spin_here(); return 0; }";
    fs::write(&source, text).unwrap();
    compile(&["-O1", source.to_str().unwrap()], &program);
    let mut record = perfctr(["record", "-e", "cycles:u", "-c", "1000003", "-o"]);
    let recorded = output_of(record.arg(&profile).arg("--").arg(&program));
    assert_eq!(recorded.status, 0, "{recorded:?}");
    assert!(recorded.err.contains(" of 1 thread in "), "{recorded:?}");
    let report = output_of(perfctr(["report", "-i"]).arg(&profile));
    assert_eq!(report.err, "", "{report:?}");
    assert!(report.out.contains("spin_here"), "{report:?}");
}
