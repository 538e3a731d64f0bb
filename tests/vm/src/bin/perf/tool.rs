// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs Debian's `perf`, and programs of which everything is known.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::process::ExitStatusExt;
use vm_tests::step::{Executed, Held, Trace};

/// A program that is single-stepped.
pub const STEPPED: &str = "/work/alone";
/// Programs whose machine code is known, see `loop.S`: a short one and a long one, and what each
/// executes.
pub const LOOP: &str = "/work/loop";
pub const LOOP_EXECUTED: Executed = Executed { instructions: 10_000_004, branches: 5_000_001 };
pub const LONG: &str = "/work/long";
pub const LONG_EXECUTED: Executed = Executed { instructions: 100_000_004, branches: 50_000_001 };

/// The events by which both are counted.
pub const EVENTS: &str = "instructions:u,branches:u";

/// Returns what [`STEPPED`] executes.
pub fn stepped() -> Result<Executed> {
    let trace = Trace::of_program(&mut Command::new(STEPPED))?;
    Ok(trace.between(0, trace.len()))
}

/// Runs perf, and returns what it prints.
pub fn perf(arguments: &[&str]) -> Result<String> {
    let out = Command::new("perf").args(arguments).output().context("there is no perf")?;
    let printed = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "perf {}: {printed}", arguments.join(" "));
    Ok(String::from_utf8_lossy(&out.stdout).into_owned() + &printed)
}

/// A perf that counts from its start until it is ended.
pub struct RunningPerf {
    perf: Child,
    answers: BufReader<ChildStdout>,
}

impl RunningPerf {
    /// Starts a subcommand. When this returns, everything counts.
    pub fn start(subcommand: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new("perf");
        command.args([subcommand, "-D", "-1", "--control", "fd:0,1"]).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut perf = command.spawn().context("there is no perf")?;
        let answers = BufReader::new(perf.stdout.take().context("a pipe")?);
        let mut perf = Self { perf, answers };
        perf.order("enable")?;
        Ok(perf)
    }

    /// Stops the counting. If perf counts in intervals, it prints one more, for the time since the
    /// last one.
    pub fn disable(&mut self) -> Result<()> {
        self.order("disable")
    }

    /// Sends a command of perf's option `--control`, and waits until perf has obeyed.
    fn order(&mut self, command: &str) -> Result<()> {
        let mut answer = String::new();
        writeln!(self.perf.stdin.as_mut().context("a pipe")?, "{command}")?;
        self.answers.read_line(&mut answer)?;
        if !answer.contains("ack") {
            anyhow::bail!("perf's answer to {command}: {answer} {}", self.end_of_output()?);
        }
        Ok(())
    }

    /// Ends perf, and returns what it has printed.
    pub fn end(mut self) -> Result<String> {
        kill(Pid::from_raw(self.perf.id().cast_signed()), Signal::SIGINT)?;
        self.end_of_output()
    }

    fn end_of_output(&mut self) -> Result<String> {
        let mut printed = String::new();
        let stderr = self.perf.stderr.take().context("a pipe")?;
        std::io::Read::read_to_string(&mut BufReader::new(stderr), &mut printed)?;
        std::io::Read::read_to_string(&mut self.answers, &mut printed)?;
        let status = self.perf.wait()?;
        let interrupted = |status: ExitStatus| status.signal() == Some(Signal::SIGINT as i32);
        ensure!(status.success() || interrupted(status), "perf: {status} {printed}");
        Ok(printed)
    }
}

/// Counts or samples programs from their first instruction to their end. Returns what perf has
/// printed.
pub fn watch_programs(subcommand: &str, arguments: &[&str], programs: Vec<Held>) -> Result<String> {
    let perf = RunningPerf::start(subcommand, arguments)?;
    programs.into_iter().try_for_each(Held::run)?;
    perf.end()
}

/// Lists several processes as perf's option `-p` takes them.
pub fn pids(programs: &[Held]) -> String {
    programs.iter().map(|one| one.pid().to_string()).collect::<Vec<_>>().join(",")
}

/// Starts programs that wait before their first instruction.
pub fn held(programs: &[&str]) -> Result<Vec<Held>> {
    programs.iter().map(|program| Held::start(&mut Command::new(program))).collect()
}

/// A line of `perf stat -x,`.
#[derive(Clone, Debug)]
pub struct Row {
    /// The columns before the count: the time, the CPU or the thread, if it was asked for.
    pub of: String,
    /// The count, or `None` if the event was not counted.
    pub count: Option<u64>,
    pub event: String,
    /// The columns after the event: the cgroup or the spread, if there is one; how long the event
    /// was counted, in ns; and that time as a share, in percent.
    pub more: Vec<String>,
}

/// Reads the rows of `perf stat -x,`, with this many columns before the count.
pub fn rows(printed: &str, before: usize) -> Vec<Row> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split(',').map(str::trim).collect();
        let [of @ .., count, unit, event] = words.get(..before + 3)? else { return None };
        // A count of time has a fraction.
        let integer = count.split_once('.').map_or(*count, |(integer, _)| integer);
        let count = integer.parse().ok();
        (count.is_some() || integer.starts_with("<not "))
            .then(|| Row {
                of: of.join(","),
                count,
                event: (*event).to_owned(),
                more: words[before + 3..].iter().map(|&word| word.to_owned()).collect(),
            })
            .filter(|_| unit.len() < 8)
    };
    printed.lines().filter_map(row).collect()
}

/// Returns the sum of an event's rows. In some rows, such as the first interval, the program did
/// not execute. perf says that the event was not counted in them, and they add nothing.
pub fn sum(rows: &[Row], event: &str) -> Result<u64> {
    let sum = rows.iter().filter(|row| row.event == event).filter_map(|row| row.count).sum();
    ensure!(sum > 0, "{event} was not counted: {rows:?}");
    Ok(sum)
}

/// Returns the sum of what the rows have counted by [`EVENTS`].
pub fn executed(rows: &[Row]) -> Result<Executed> {
    let [instructions, branches] = ["instructions:u", "branches:u"].map(|event| sum(rows, event));
    Ok(Executed { instructions: instructions?, branches: branches? })
}
