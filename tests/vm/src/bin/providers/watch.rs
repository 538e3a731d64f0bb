// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests counts and samples of other processes and of CPUs, wherever Linux has perf events.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::gettid;
use perfctr::watch::{Total, Totals, Watch};
use perfctr::{Error, Event};
use vm_tests::region::Region;
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::{frames_program, perf};

use crate::Test;

pub const TESTS: &[Test] = &[
    ("a watch counts the programs that a thread starts, to the instruction", started),
    ("a watch of a process counts what it starts, if it shall", inherited),
    ("a watch of a running thread pauses and goes on", running_thread),
    ("a watch of a CPU counts whoever executes there", cpu),
    ("events that take turns are scaled, and a group that does not fit is refused", turns),
    ("samples of a watch have callers", callers),
    ("who is not there is not watched", absent),
    ("the library's examples run", examples),
    ("regions and spans that execute the same count the same", pieces),
    ("criterion finds what an iteration executes", benchmark),
    ("a benchmark fails if it executes more than before, and no other does", gated),
];

const EVENTS: [(&str, Event); 2] =
    [("instructions", Event::INSTRUCTIONS.user()), ("branches", Event::BRANCHES.user())];

/// A program, and its instructions and branches.
const LOOP: &str = "/work/loop";
const LOOP_COUNTS: [u64; 2] = [10_000_004, 5_000_001];

/// The addresses of the functions of [`frames_program`], the innermost first.
const FUNCTIONS: [u64; 3] = [0x40_1200, 0x40_1100, 0x40_1000];
const FUNCTION_BYTES: u64 = 0x100;

/// A region that takes long enough for events to take turns.
const REGION: Region = Region { first: 1_000_000, second: 1_000_000 };
/// How often unchanged benchmarks are compared with the baseline.
const UNCHANGED_RUNS: usize = 10;
/// The most instructions that a thread executes to receive an order.
const BESIDE: u64 = 200_000;

fn named(watch: Watch) -> Watch {
    EVENTS.iter().fold(watch, |watch, &(name, event)| watch.count(name, event))
}

fn counts(totals: &Totals) -> [u64; 2] {
    EVENTS.map(|(name, _)| totals[name].count)
}

/// The number of programs, one after another: enough for the kernel to switch between a thread and
/// its child in all ways.
const PROGRAMS: u64 = 20;

fn started() -> Result<()> {
    let watched = named(Watch::this_thread().inherit().from_exec().together()).open()?;
    for times in 1..=PROGRAMS {
        let status = Command::new(LOOP).status()?;
        ensure!(status.success(), "{status}");
        REGION.execute(&mut 0);
        let totals = watched.read()?;
        let expected = LOOP_COUNTS.map(|count| times * count);
        ensure!(counts(&totals) == expected, "{totals:?}, {expected:?} expected");
        let Total { enabled, running, .. } = totals["branches"];
        ensure!(enabled == running && !running.is_zero(), "{totals:?}");
    }
    Ok(())
}

/// Starts a shell that waits before it executes the script, and returns when the shell has said
/// that it waits. The kernel begins to count in the middle of an exec, which may be after the
/// program's starter continues.
fn waiting(script: &str) -> Result<Child> {
    let script = format!("echo; read go; {script}");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = shell.spawn()?;
    child.stdout.take().context("no pipe")?.read_exact(&mut [0])?;
    Ok(child)
}

/// Lets the shell continue, and waits for its end.
fn go(mut child: Child) -> Result<()> {
    child.stdin.take().context("no pipe")?.write_all(b"\n")?;
    let status = child.wait()?;
    ensure!(status.success(), "{status}");
    Ok(())
}

fn inherited() -> Result<()> {
    let twice = format!("{LOOP}; {LOOP}; :");
    let count = |script: &str, with: fn(Watch) -> Watch| {
        let child = waiting(script)?;
        let watched = named(with(Watch::process(child.id()))).open()?;
        go(child)?;
        anyhow::Ok(counts(&watched.read()?))
    };
    let all = count(&twice, Watch::inherit)?;
    ensure!(all[0] >= 2 * LOOP_COUNTS[0] && all[1] >= 2 * LOOP_COUNTS[1], "{all:?} with heirs");
    let alone = count(&twice, |watch| watch)?;
    ensure!(0 < alone[0] && alone[0] < LOOP_COUNTS[0], "{alone:?} alone");
    let executed = count(&format!("exec {LOOP}"), Watch::from_exec)?;
    ensure!(executed == LOOP_COUNTS, "{executed:?} from exec on, {LOOP_COUNTS:?} expected");
    Ok(())
}

fn running_thread() -> Result<()> {
    let (order, orders) = mpsc::channel::<()>();
    let (answer, answered) = mpsc::channel();
    let runner = thread::spawn(move || -> Result<()> {
        answer.send(gettid().as_raw())?;
        for () in orders {
            REGION.execute(&mut 0);
            answer.send(0)?;
        }
        Ok(())
    });
    let tid = answered.recv()?;
    let watched = named(Watch::thread(tid.cast_unsigned())).open()?;
    let execute = || -> Result<u64> {
        let before = counts(&watched.read()?);
        order.send(())?;
        answered.recv()?;
        Ok(counts(&watched.read()?)[0] - before[0])
    };
    let all = REGION.instructions()..REGION.instructions() + BESIDE;
    let first = execute()?;
    watched.pause()?;
    let paused = execute()?;
    watched.go_on()?;
    let second = execute()?;
    drop(order);
    runner.join().expect("it does not panic")?;
    ensure!(all.contains(&first) && all.contains(&second), "{first}, {second}; {all:?} expected");
    ensure!(paused == 0, "{paused} counted in the pause");
    Ok(())
}

fn cpu() -> Result<()> {
    let all = cpus()?;
    let [here, elsewhere] = [all[0], all[1]];
    run_on(SELF, &[here])?;
    let [here, elsewhere] = [here, elsewhere].map(|cpu| named(Watch::cpu(cpu as u32)).open());
    let (here, elsewhere) = (here?, elsewhere?);
    let before = [counts(&here.read()?), counts(&elsewhere.read()?)];
    REGION.execute(&mut 0);
    let after = [counts(&here.read()?), counts(&elsewhere.read()?)];
    run_on(SELF, &all)?;
    let [here, elsewhere] = [0, 1].map(|n| after[n][0] - before[n][0]);
    ensure!(here >= REGION.instructions(), "{here} on the CPU");
    ensure!(elsewhere < REGION.instructions(), "{elsewhere} on another one");
    Ok(())
}

/// Events in three modes each, which are more than any of our machines has counters.
const MANY: [Event; 4] =
    [Event::INSTRUCTIONS, Event::CYCLES, Event::BRANCHES, Event::BRANCH_MISSES.unverified()];
/// How long they take turns at least.
const TURNS: Duration = Duration::from_millis(800);

fn turns() -> Result<()> {
    let many = MANY.into_iter().flat_map(|event| [event.user(), event.kernel(), event]);
    let many =
        many.fold(Watch::this_thread(), |watch, event| watch.count(event.to_string(), event));
    match many.clone().together().open() {
        Err(Error::EventNotAvailable { reason, .. }) if reason.contains("no counter is left") => {}
        other => bail!("too many events together: {other:?}"),
    }
    let (watched, start) = (many.open()?, Instant::now());
    let mut truth = 0;
    while start.elapsed() < TURNS {
        REGION.execute(&mut 0);
        truth += REGION.branches();
    }
    let totals = watched.read()?;
    let turned = totals.values().iter().filter(|total| total.share() < 1.0).count();
    ensure!(turned > 0, "nobody had to wait: {totals:?}");
    let total = totals["branches:u"];
    let scaled = total.scaled().context("never counted")?;
    // The emulator's clock goes on while a busy machine does not let it execute.
    ensure!((truth / 4..truth * 4).contains(&scaled), "{scaled} of {truth}: {total:?}");
    ensure!(total.count <= truth + BESIDE, "{total:?} of {truth}");
    Ok(())
}

/// The number of events between two samples.
const PERIOD: u64 = 10_007;

fn callers() -> Result<()> {
    perf::keep_sample_rate()?;
    let event = Event::INSTRUCTIONS.user().every(PERIOD);
    let child = waiting(&format!("exec {}", frames_program::PROGRAM))?;
    let pid = child.id();
    let mut samples = Watch::process(pid).from_exec().callers().sample(event)?;
    ensure!(!samples.wait(Duration::ZERO)?, "somebody waits for nothing");
    go(child)?;
    ensure!(samples.wait(Duration::from_secs(10))?, "its end is not told");
    let mut taken = 0;
    while let Some(sample) = samples.take()? {
        taken += 1;
        ensure!(sample.tid == pid && sample.pid == pid && sample.period == PERIOD, "{sample:x?}");
        let found = [&[sample.ip], &sample.callers[..]].concat();
        let function = |address: &u64| address & !(FUNCTION_BYTES - 1);
        let functions: Vec<u64> = found.iter().map(function).collect();
        ensure!(functions == FUNCTIONS, "{sample:x?}");
    }
    let missed = (samples.lost(), samples.throttled());
    ensure!(missed == (0, 0), "{missed:?} lost and throttled");
    let expected = frames_program::ALL / PERIOD;
    ensure!(taken == expected, "{taken} samples, {expected} expected");
    Ok(())
}

fn absent() -> Result<()> {
    let mut child = Command::new("true").spawn()?;
    child.wait()?;
    for watch in [Watch::process(child.id()), Watch::thread(child.id())] {
        match named(watch).open() {
            Err(error) if error.errno() == Some(libc::ESRCH) => {}
            other => bail!("{other:?}"),
        }
    }
    let unknown = Watch::this_thread().count("x", Event::raw(0x0151).user()).open();
    ensure!(matches!(unknown, Err(Error::EventNotAvailable { .. })), "{unknown:?}");
    Ok(())
}

/// Runs an example. Returns its two outputs.
fn outputs(words: &[&str]) -> Result<[String; 2]> {
    let ended = Command::new(words[0]).args(&words[1..]).output().context("an example")?;
    let printed = String::from_utf8_lossy(&ended.stderr).into_owned();
    ensure!(ended.status.success(), "{words:?}: {}\n{printed}", ended.status);
    Ok([String::from_utf8(ended.stdout)?, printed])
}

/// Runs the examples, and checks what each prints of a program with known numbers.
fn examples() -> Result<()> {
    let run = |words: &[&str]| outputs(words).map(|[printed, _]| printed);
    let printed = run(&["/work/program", LOOP])?;
    let counts = EVENTS.iter().zip(LOOP_COUNTS).map(|((name, _), n)| format!("{n:>15} {name}\n"));
    let expected: String = counts.collect();
    ensure!(printed == expected, "{printed}\n{expected} expected");
    let printed = run(&["/work/callers", frames_program::PROGRAM])?;
    let lines: Vec<&str> = printed.lines().collect();
    let hot = lines
        .get(1)
        .is_some_and(|line| line.contains(" 0x4012") && line.contains(", called from 0x4011"));
    ensure!(lines[0].ends_with(" samples, 0 lost") && hot, "{printed}");
    let printed = run(&["/work/self_count"])?;
    let words: Vec<&str> = printed.split([' ', ':']).collect();
    let counted = words.get(2).and_then(|count| count.parse().ok());
    ensure!(counted.is_some_and(|n: u64| (1_000..100_000).contains(&n)), "{printed}");
    for (example, lines) in [("/work/tasks", 3), ("/work/workers", 8)] {
        let said = run(&[example])?;
        let count = |line: &str| line.split_whitespace().rev().nth(1)?.parse().ok();
        let counts: Vec<u64> = said.lines().filter_map(count).collect();
        // Each line stands for more work than the one before.
        ensure!(counts.len() == lines && counts[0] > 10_000 && counts.is_sorted(), "{said}");
    }
    Ok(())
}

/// How often the examples of pieces are run, of which more than half must be undisturbed.
const RUNS: usize = 5;

/// Runs the examples of regions and spans until nothing has disturbed them.
fn pieces() -> Result<()> {
    let (mut regions, mut spans) = (0, 0);
    for _ in 0..RUNS {
        let [table, at_exit] = outputs(&["/work/regions"])?;
        let open = "`left open` was started once in thread ";
        ensure!(at_exit.contains("\nwork ") && at_exit.contains(open), "{at_exit}");
        if !table.contains("disturbed") {
            regions += 1;
            exact_regions(&table).with_context(|| table.clone())?;
        }
        let [printed, _] = outputs(&["/work/spans"])?;
        if !printed.contains("disturbed") {
            spans += 1;
            exact_spans(&printed).with_context(|| printed.clone())?;
        }
    }
    ensure!(regions > RUNS / 2 && spans > RUNS / 2, "{regions} and {spans} runs undisturbed");
    Ok(())
}

/// Checks a table in which each thread has executed a thousand rounds more than another.
fn exact_regions(table: &str) -> Result<()> {
    // The inclusive and the exclusive counts of both events, by threads in the order of their
    // rounds.
    let rows = |region: &str| -> Result<Vec<[u64; 4]>> {
        let mut rows: Vec<[u64; 4]> = Vec::new();
        for line in table.lines().filter(|line| line.split_whitespace().next() == Some(region)) {
            let counts = line.split_whitespace().rev().take(4);
            let counts: Vec<u64> =
                counts.map(|count| count.replace(',', "").parse()).collect::<Result<_, _>>()?;
            rows.push([counts[3], counts[2], counts[1], counts[0]]);
        }
        rows.sort_unstable();
        ensure!(rows.len() == 3, "{} rows of {region}", rows.len());
        Ok(rows)
    };
    let [empty, sum, work] = ["empty", "sum", "work"].map(rows);
    let (empty, sum, work) = (empty?, sum?, work?);
    ensure!(empty.iter().all(|counts| *counts == empty[0]) && empty[0][0] < 20, "{empty:?}");
    for counts in 0..4 {
        let more = |n: usize| sum[n + 1][counts] - sum[n][counts];
        ensure!(more(0) == more(1) && more(0) % 1_000 == 0 && more(0) > 0, "{sum:?}");
        // The code around the sums is the same in all threads.
        let rest = |n: usize| work[n][0] - sum[n][0];
        ensure!(rest(0) == rest(1) && rest(1) == rest(2) && rest(0) < 200, "{work:?}");
    }
    Ok(())
}

/// Checks spans. Two of them have executed the same, and another one two thousand rounds more.
fn exact_spans(printed: &str) -> Result<()> {
    let counts = |name: &str| -> Result<Vec<[u64; 2]>> {
        let of_name = printed.lines().filter(|line| line.split(' ').next() == Some(name));
        of_name
            .map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                Ok([words[1].parse()?, words[4].parse()?])
            })
            .collect()
    };
    let [empty, sum, request] = ["empty", "sum", "request"].map(counts);
    let (empty, sum, request) = (empty?, sum?, request?);
    ensure!(empty.len() == 3 && sum.len() == 3 && request.len() == 3, "lines are missing");
    ensure!(empty.iter().all(|counts| *counts == empty[0]) && empty[0][0] < 100, "{empty:?}");
    let more = sum[2][0] - sum[0][0];
    ensure!(sum[0] == sum[1] && more % 2_000 == 0 && more > 0, "{sum:?}");
    for (request, sum) in request.iter().zip(&sum) {
        let [total, own] = *request;
        ensure!(total == own + sum[0] + empty[0][0], "{request:?}");
    }
    ensure!(printed.lines().any(|line| line.starts_with("elsewhere ")), "no other thread");
    Ok(())
}

/// Runs the example of criterion, whose iterations are loops of 1,000 and of 3,000 rounds.
fn benchmark() -> Result<()> {
    let [printed, _] = outputs(&["/work/benchmark", "--bench"])?;
    let mut counts = Vec::new();
    for line in printed.lines().filter(|line| line.contains("time:")) {
        let (_, estimates) = line.split_once('[').with_context(|| printed.clone())?;
        let words: Vec<&str> = estimates.split([' ', ']']).collect();
        let number = |pair: &[&str]| -> Option<f64> {
            let factor = if pair[1] == "thousand" { 1_000.0 } else { 1.0 };
            Some(pair[0].parse::<f64>().ok()? * factor)
        };
        let numbers: Vec<f64> = words.windows(2).filter_map(number).collect();
        let is_exact = numbers.len() == 3 && numbers[2] - numbers[0] < numbers[1] / 1_000.0;
        ensure!(is_exact && estimates.contains("instructions:u]"), "{line}");
        counts.push(numbers[1]);
    }
    ensure!(counts.len() == 2, "{printed}");
    let ratio = counts[1] / counts[0];
    ensure!((2.9..3.1).contains(&ratio), "{counts:?}");
    Ok(())
}

/// Runs the example of `perfctr-gate`. If the variable `MORE` is set, it adds up one number more.
fn gated() -> Result<()> {
    let baseline = format!("--baseline={}/perfctr-gate.json", env::temp_dir().display());
    let run = |options: &[&str], words: [&str; 2], status: i32| -> Result<[u64; 2]> {
        let mut command = Command::new("/work/benchmarks");
        let out = command.args(["--bench", &baseline]).args(options).output()?;
        let printed = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
        let lines: Vec<&str> = printed.lines().collect();
        let starts =
            lines.len() == 2 && lines.iter().zip(words).all(|(l, word)| l.starts_with(word));
        ensure!(out.status.code() == Some(status) && starts, "{}: {printed:?}", out.status);
        let count = |line: &str| -> Option<u64> {
            line.split_once(": ")?.1.split(' ').next()?.replace(',', "").parse().ok()
        };
        let [Some(sum), Some(sort)] = [0, 1].map(|n| count(lines[n])) else {
            bail!("no counts: {printed}");
        };
        Ok([sum, sort])
    };
    let before = run(&["--update"], ["new", "new"], 0)?;
    ensure!(before.iter().all(|&count| count > 1_000), "{before:?}");
    for _ in 0..UNCHANGED_RUNS {
        let same = run(&[], ["same", "same"], 0)?;
        ensure!(same == before, "{same:?} and {before:?}");
    }
    let more = run(&["--env", "MORE=1"], ["WORSE", "same"], 1)?;
    ensure!(more[0] > before[0] && more[1] == before[1], "{more:?} and {before:?}");
    let fewer = run(&["--update", "--env", "MORE=1"], ["WORSE", "same"], 0)?;
    ensure!(fewer == more, "{fewer:?} and {more:?}");
    let better = run(&[], ["better", "same"], 0)?;
    ensure!(better == before, "{better:?} and {before:?}");
    Ok(())
}
