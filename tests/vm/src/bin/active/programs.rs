// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The two programs, each of which executes a function of its own and counts its instructions.

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use perfctr::rdpmc::Hardware;
use perfctr::{Event, Provider, Session};
use serde_json::{Value, json};
use shared_abi::read::Counters;
use vm_tests::cgroup::Cgroup;
use vm_tests::region::Region;
use vm_tests::threads::{SELF, run_on};

/// The names of the two programs, which are copies of this one.
pub const PROGRAMS: [&str; 2] = ["left", "right"];
/// How long each program works.
const WORK: Duration = Duration::from_secs(3);

/// What a program knows of its work.
#[derive(Debug)]
pub struct Worked {
    pub pid: u64,
    /// The address of its function.
    pub function: u64,
    /// The domain's time-stamp counter before and after the work.
    pub tsc: [u64; 2],
    /// The instructions in user mode meanwhile.
    pub instructions: u64,
    /// How often it began to execute.
    pub turns: u64,
}

#[inline(never)]
fn left_work() {
    Region { first: 5_000, second: 1 }.execute(&mut 0);
}

#[inline(never)]
fn right_work() {
    Region { first: 1, second: 5_001 }.execute(&mut 0);
}

/// Runs the program that executes `left_work`.
pub fn left(file: &Path) -> Result<ExitCode> {
    work(left_work, file)
}

/// Runs the program that executes `right_work`.
pub fn right(file: &Path) -> Result<ExitCode> {
    work(right_work, file)
}

fn work(function: fn(), file: &Path) -> Result<ExitCode> {
    run_on(SELF, &[0])?;
    let turns = || -> Result<u64> {
        let usage = getrusage(UsageWho::RUSAGE_SELF)?;
        Ok((usage.voluntary_context_switches() + usage.involuntary_context_switches()) as u64)
    };
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[Event::INSTRUCTIONS.user()])?;
    let (before, begun) = (turns()?, Instant::now());
    let (from, first) = (Hardware.clock(), session.read::<1>()?.counts[0]);
    while begun.elapsed() < WORK {
        for _ in 0..100 {
            function();
        }
    }
    let (last, to) = (session.read::<1>()?.counts[0], Hardware.clock());
    let worked = Worked {
        pid: std::process::id().into(),
        function: function as *const () as u64,
        tsc: [from, to],
        instructions: last - first,
        turns: turns()? - before + 1,
    };
    fs::write(file, worked.to_json().to_string())?;
    Ok(ExitCode::SUCCESS)
}

impl Worked {
    /// Returns the numbers in their order.
    fn to_json(&self) -> Value {
        let Self { pid, function, tsc: [from, to], instructions, turns } = *self;
        json!([pid, function, from, to, instructions, turns])
    }

    /// Returns what `to_json` has made this value of.
    pub fn of_json(numbers: Value) -> Result<Self> {
        let [pid, function, from, to, instructions, turns] = serde_json::from_value(numbers)?;
        Ok(Self { pid, function, tsc: [from, to], instructions, turns })
    }
}

/// Returns what both programs have left, for [`Worked::of_json`].
pub fn left_behind() -> Result<[Value; 2]> {
    let [left, right] = PROGRAMS.map(|program| -> Result<Value> {
        let file = worked_file(program);
        Ok(serde_json::from_slice(&fs::read(&file).context(file)?)?)
    });
    Ok([left?, right?])
}

fn worked_file(program: &str) -> String {
    format!("/tmp/{program}.worked")
}

/// Enters the control group that has this file of processes, and becomes this program there.
pub fn enter(processes: &str, program: &[&str]) -> Result<ExitCode> {
    fs::write(processes, std::process::id().to_string()).context(processes.to_owned())?;
    let (path, arguments) = program.split_first().context("no program")?;
    Err(Command::new(path).args(arguments).exec()).context((*path).to_owned())
}

/// Runs both programs to their ends, each in a control group of its own, which has its name.
pub fn both() -> Result<ExitCode> {
    let groups = PROGRAMS.iter().map(|program| Cgroup::new(program)).collect::<Result<Vec<_>>>()?;
    let start = |group: &Cgroup| -> Result<Child> {
        let program = group.name;
        let path = format!("/tmp/{program}");
        fs::copy(env::current_exe()?, &path)?;
        let flag = format!("--{program}");
        let mut entering = Command::new(env::current_exe()?);
        entering.arg("--enter").arg(group.processes());
        Ok(entering.args([path, flag, worked_file(program)]).spawn()?)
    };
    let children = groups.iter().map(start).collect::<Result<Vec<_>>>()?;
    for mut child in children {
        ensure!(child.wait()?.success(), "a program failed");
    }
    Ok(ExitCode::SUCCESS)
}
