// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests a host's profile of a domain that says which threads it executes: the control domain
//! itself, which is a PV guest.
//!
//! Two programs compete for one virtual CPU. Each executes a function of its own almost all the
//! time, so the address of a sample says which program it is of. `perfctr record --names` knows
//! nothing of the samples, and yet `perfctr report --guest` must find the same program and the same
//! function. Each program also counts its own instructions, by which there must be one sample for
//! each period.
//!
//! With `--both` this runs the two programs. With `--left FILE` and `--right FILE` it is one of
//! them.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use perfctr::rdpmc::Hardware;
use perfctr::{Event, Provider, Session};
use shared_abi::read::Counters;
use vm_tests::host_profile::{HostProfile, unknown_at_most};
use vm_tests::region::Region;
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, run_on};

const PERFCTR: &str = "/work/perfctr";
const PROFILE: &str = "/tmp/active.data";
const NAMES: &str = "/tmp/active.names";
/// The two programs, which are copies of this one.
const PROGRAMS: [&str; 2] = ["left", "right"];
/// The number of events between two samples.
const PERIOD: u64 = 100_000;
/// How long each program works.
const WORK: Duration = Duration::from_secs(3);
/// After this time a command has certainly begun.
const BEGUN: Duration = Duration::from_secs(4);
/// The length of a program's function. Unit: bytes.
const FUNCTION_BYTES: u64 = 64;

/// What a program knows of its work.
#[derive(Debug)]
struct Worked {
    pid: u64,
    /// The address of its function.
    function: u64,
    /// The time-stamp counter before and after the work.
    tsc: [u64; 2],
    /// The instructions in user mode meanwhile.
    instructions: u64,
    /// How often it began to execute.
    turns: u64,
}

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &*arguments {
        [] => {
            let mut tally = Tally::default();
            active(&mut tally)?;
            Ok(tally.finish())
        }
        [flag] if flag == "--both" => both(),
        [flag, file] if flag == "--left" => work(left_work, file.as_ref()),
        [flag, file] if flag == "--right" => work(right_work, file.as_ref()),
        _ => bail!("unknown arguments {arguments:?}"),
    }
}

#[inline(never)]
fn left_work() {
    Region { first: 5_000, second: 1 }.execute(&mut 0);
}

#[inline(never)]
fn right_work() {
    Region { first: 1, second: 5_001 }.execute(&mut 0);
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
    worked.write(file)?;
    Ok(ExitCode::SUCCESS)
}

impl Worked {
    fn write(&self, file: &Path) -> Result<()> {
        let Self { pid, function, tsc: [from, to], instructions, turns } = *self;
        let numbers = [pid, function, from, to, instructions, turns];
        Ok(fs::write(file, serde_json::to_vec(&numbers)?)?)
    }

    fn read(file: &str) -> Result<Self> {
        let numbers: [u64; 6] = serde_json::from_slice(&fs::read(file)?)?;
        let [pid, function, from, to, instructions, turns] = numbers;
        Ok(Self { pid, function, tsc: [from, to], instructions, turns })
    }
}

fn worked_file(program: &str) -> String {
    format!("/tmp/{program}.worked")
}

fn both() -> Result<ExitCode> {
    let start = |program: &&str| -> Result<Child> {
        let path = format!("/tmp/{program}");
        fs::copy(env::current_exe()?, &path)?;
        let flag = format!("--{program}");
        Ok(Command::new(path).args([flag, worked_file(program)]).spawn()?)
    };
    let children = PROGRAMS.iter().map(start).collect::<Result<Vec<_>>>()?;
    for mut child in children {
        ensure!(child.wait()?.success(), "a program failed");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a command that succeeds. Returns what it has printed.
fn shown(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } = command.output()?;
    let shown = String::from_utf8([stdout, stderr].concat())?;
    ensure!(status.success(), "{command:?}: {status}: {shown}");
    Ok(shown)
}

fn report(arguments: &[&str]) -> Result<String> {
    let guest = format!("0={NAMES}");
    shown(Command::new(PERFCTR).args(["report", "-i", PROFILE, "--guest", &guest]).args(arguments))
}

fn active(tally: &mut Tally) -> Result<()> {
    // The commands execute beside the two programs.
    run_on(SELF, &[1])?;
    let names = Command::new(PERFCTR).args(["record", "--names", "-o", NAMES]).spawn()?;
    sleep(BEGUN);
    let this = env::current_exe()?.display().to_string();
    let (event, period) = ("instructions:u", PERIOD.to_string());
    let options = ["record", "--host", "-o", PROFILE, "-e", event, "-c", &period, "--"];
    let printed =
        shown(Command::new(PERFCTR).args(options).args([&this, "--both"]).stdin(Stdio::null()))?;
    print!("{printed}");
    let lost = printed.contains("perfctr: lost 0 samples");
    tally.check("no sample of an active domain is lost", equal(lost, true));
    end(names)?;
    let table = report(&["-s", "layer,process,symbol"])?;
    println!("{table}");
    let layers = report(&["-s", "thread,layer"])?;
    println!("{layers}");
    let unknown = unknown_at_most(&table)?;
    for (n, program) in PROGRAMS.into_iter().enumerate() {
        let worked = Worked::read(&worked_file(program))?;
        println!("{program}: {worked:x?}");
        judge(n, &worked, &table, unknown, tally)?;
    }
    formats(tally)
}

/// Ends a recording of names.
fn end(mut names: Child) -> Result<()> {
    kill(Pid::from_raw(names.id().cast_signed()), Signal::SIGINT)?;
    let status = names.wait()?;
    ensure!(status.success(), "{status}");
    Ok(())
}

/// Checks that samples at the addresses of a program's function have this program's name and this
/// function's, but for `unknown` ones at most, that no others have, and that there is one for each
/// period.
fn judge(n: usize, worked: &Worked, table: &str, unknown: u64, tally: &mut Tally) -> Result<()> {
    let program = PROGRAMS[n];
    let (all, during) = at(worked)?;
    let mut found = BTreeMap::new();
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [samples, _, "user", pid, name, function @ ..] = &*words else { continue };
        let function = function.join(" ");
        if function.ends_with(&format!("{program}_work")) {
            *found.entry(format!("{pid} {name}")).or_insert(0) += samples.parse::<u64>()?;
        }
    }
    println!("{program}: {all} samples at its function, {during} during its work, {found:?}");
    let own = found.remove(&format!("{} {program}", worked.pid)).unwrap_or(0);
    let why = format!("{own} of {all} samples, {unknown} may be unknown, {found:?} of others");
    let is_own = own <= all && own + unknown >= all && found.is_empty();
    tally.check(
        &format!("each sample of the program {program} is of its process and function"),
        if is_own { Ok(()) } else { Err(why) },
    );
    let periods = worked.instructions / PERIOD;
    // Whether a period ends in the last instructions of a turn is chance.
    let off = 1 + 3 * worked.turns.isqrt() / 2;
    let why = format!("{during} samples, {periods} periods within {off} expected");
    println!("{program}: {why}");
    let fits = periods > 100 && during.abs_diff(periods) <= off;
    let fits = if fits { Ok(()) } else { Err(why) };
    tally.check(&format!("the program {program} has a sample for each period"), fits);
    Ok(())
}

/// Returns how many samples of the host are at a program's function, and how many of these were
/// taken during its work.
fn at(worked: &Worked) -> Result<(u64, u64)> {
    let profile = HostProfile::read(PROFILE)?;
    let [from, to] = worked.tsc;
    let during = profile.ns(from)?..profile.ns(to)?;
    let addresses = worked.function..worked.function + FUNCTION_BYTES;
    let mut found = (0, 0);
    for sample in profile.samples()? {
        if sample.layer == "user" && addresses.contains(&sample.address) {
            found.0 += 1;
            found.1 += u64::from(during.contains(&sample.ns));
        }
    }
    Ok(found)
}

/// Checks that other formats have the programs, too.
fn formats(tally: &mut Tally) -> Result<()> {
    for format in ["folded", "flame-graph", "pprof", "firefox", "perf"] {
        let path = format!("/tmp/active.{format}");
        print!("{}", report(&["-f", format, "-o", &path])?);
        let bytes = fs::read(path)?;
        let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        let both = PROGRAMS.map(|program| has(&format!(" {program}")));
        tally.check(&format!("the format {format} names both programs"), equal(both, [true; 2]));
    }
    Ok(())
}
