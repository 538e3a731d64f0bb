// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that `perfctr gate` notices a single instruction that gzip executes more than before, and
//! that it reports nothing if there is none. Meanwhile as many threads as there are vCPUs compete
//! with gzip, and the vCPUs are moved between physical CPUs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use perfctr::{Provider, Session};
use vm_tests::disturb;
use vm_tests::frames_program::{self, INNER, OUTER};
use vm_tests::host::host;
use vm_tests::programs;
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::time::VcpuTimes;
use vm_tests::volume::pick;

const PERFCTR: &str = "/work/perfctr";
/// Debian's program.
const GZIP: &str = "/usr/bin/gzip";
/// Both versions of the program run from here, since a program can see its own name.
const HERE: &str = "/tmp/gzip";
/// The file that the program compresses.
const WORDS: &str = "/work/words";
const BASELINE: &str = "/tmp/baseline.json";
const TABLE: &str = "/tmp/table.md";
/// The baseline of functions.
const FUNCTIONS: &str = "/tmp/functions.json";

/// The number of runs with the additional instruction, and of those without it; and in the long
/// tier.
const TIMES: [usize; 2] = [5, 20];
/// The program executes at least this many instructions beside the additional one.
const ONE_IN: u64 = 10_000_000;
/// The number of vCPUs that compete for the testbed's physical CPUs.
const VCPUS: usize = 6;
const PCPUS: u32 = 2;
const SEED: u64 = 1;
/// How often vCPUs have to be switched at least while one program runs.
const SWITCHES_MIN: u64 = 2;

fn main() -> Result<ExitCode> {
    programs::prepare()?;
    let gzip = fs::read(GZIP).context(GZIP)?;
    let [usual, slower] = [0, 1].map(|more| begun_with(&gzip, more));
    let versions = Versions { usual: usual?, slower: slower? };
    let mut tally = Tally::default();
    competing(|| judge(&mut tally, &versions))?;
    Ok(tally.finish())
}

/// Debian's program, in which only the first instructions were changed.
struct Versions {
    usual: Vec<u8>,
    /// It executes one instruction more.
    slower: Vec<u8>,
}

fn judge(tally: &mut Tally, Versions { usual, slower }: &Versions) -> Result<()> {
    let first = gate(usual, 0, &["--update"])?;
    println!(
        "note {} instructions in each run of gzip, with {VCPUS} vCPUs on {PCPUS} CPUs",
        first.now
    );
    tally.check("one instruction more is less than one in ten million", {
        equal(first.now.replace(',', "").parse().is_ok_and(|now: u64| now > ONE_IN), true)
    });
    let mut outcomes = [Vec::new(), Vec::new()];
    let times = times();
    for n in 1..=times {
        for (version, outcomes) in [usual, slower].into_iter().zip(&mut outcomes) {
            let Outcome { status, difference, .. } = gate(version, n, &[])?;
            outcomes.push((status, difference));
        }
    }
    let all = |status, difference: &str| vec![(Some(status), difference.to_owned()); times];
    let [usual_outcomes, slower_outcomes] = outcomes;
    tally.check("the gate says nothing when nothing has changed", {
        equal(usual_outcomes, all(0, "0"))
    });
    tally.check("the gate fails each time one instruction is added", {
        equal(slower_outcomes, all(1, "+1 (+0.0000 %)"))
    });
    tally.check("a threshold of one instruction allows it", {
        equal(gate(slower, 0, &["--threshold", "1"])?.status, Some(0))
    });
    of_functions(tally)
}

/// Returns how often each version is run.
fn times() -> usize {
    let [usual, long] = TIMES;
    pick(usual, long)
}

/// Checks the gate of two functions, of which one calls the other, before and after a change.
fn of_functions(tally: &mut Tally) -> Result<()> {
    let program = fs::read(frames_program::PROGRAM)?;
    let changed = frames_program::with_one_loop_more(&program).context("an unknown program")?;
    let run = |program: &[u8], options: &[&str]| -> Result<(Option<i32>, String)> {
        place(HERE, program)?;
        let mut command = Command::new("nice");
        command.args(["-n", "-10", PERFCTR, "gate", "-r", "2", "-b", FUNCTIONS]);
        command.args(["--function", "inner", "--function", "outer"]).args(options);
        let output = command.args(["--", HERE]).output().context(PERFCTR)?;
        // Commas are only between groups of digits and words.
        let printed = String::from_utf8_lossy(&output.stdout).replace(',', "");
        Ok((output.status.code(), printed))
    };
    run(&program, &["--update"])?;
    let (status, printed) = run(&program, &[])?;
    let same = [("inner", INNER), ("outer", OUTER)].map(|(name, count)| {
        format!("same   {HERE}: {count} instructions:u in {name}; {count} before 0\n")
    });
    tally.check("the gate of functions says nothing when nothing has changed", {
        let is_right = status == Some(0) && same.iter().all(|line| printed.contains(line));
        is_right.then_some(()).ok_or(format!("{same:?} expected, {status:?}: {printed}"))
    });
    let (status, printed) = run(&changed, &["--threshold", "2"])?;
    tally.check("it fails if a loop is executed once more, and names each function", {
        let worse = |name: &str| {
            let of_name = format!(" instructions:u in {name}; ");
            let mut lines = printed.lines().filter(|line| line.contains(&of_name));
            lines.next().is_some_and(|line| line.starts_with("WORSE") && line.contains(" +2 ("))
        };
        let is_right = status == Some(1) && worse("inner") && worse("outer");
        is_right.then_some(()).ok_or(format!("{status:?}: {printed}"))
    });
    let (status, printed) = run(&changed, &["--threshold", "2", "--function-threshold", "2"])?;
    tally.check("a threshold of two instructions allows it", {
        equal(status, Some(0)).map_err(|why| format!("{why}: {printed}"))
    });
    Ok(())
}

/// Writes a program.
fn place(path: &str, program: &[u8]) -> Result<()> {
    fs::write(path, program)?;
    fs::set_permissions(path, PermissionsExt::from_mode(0o755))?;
    Ok(())
}

/// The gate's result.
struct Outcome {
    status: Option<i32>,
    now: String,
    difference: String,
}

/// Runs this version of the program through the gate once. `noise` makes the caller's environment
/// larger, which must not matter.
fn gate(version: &[u8], noise: usize, options: &[&str]) -> Result<Outcome> {
    place(HERE, version)?;
    // The program gets most of a vCPU, and so a third of a physical CPU.
    let mut command = Command::new("nice");
    command.args(["-n", "-10", PERFCTR, "gate", "-r", "1", "-b", BASELINE, "--markdown", TABLE]);
    command.args(options);
    command.args(["--", HERE, "-9nc", WORDS]).env("NOISE", "n".repeat(noise * 17));
    let output = command.stdout(Stdio::null()).output().context(PERFCTR)?;
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    let table = fs::read_to_string(TABLE).context(printed.clone())?;
    fs::remove_file(TABLE)?;
    let row = table.lines().last().context(printed)?;
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let cell = |n: usize| cells.get(n).map(|cell| (*cell).to_owned()).context(row.to_owned());
    Ok(Outcome { status: output.status.code(), now: cell(4)?, difference: cell(5)? })
}

/// Runs `body` while threads compete for all vCPUs, and the vCPUs for the physical CPUs.
fn competing(body: impl FnOnce() -> Result<()>) -> Result<()> {
    let (host, cpus, stop) = (host()?, cpus()?, AtomicBool::new(false));
    ensure!(cpus.len() == VCPUS, "{} vCPUs found, {VCPUS} expected", cpus.len());
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[])?;
    let before = VcpuTimes::take(&*host, &session, &cpus)?;
    run_on(SELF, &cpus)?;
    thread::scope(|scope| {
        let (host, cpus, stop) = (&*host, &cpus, &stop);
        scope.spawn(move || disturb::vcpus(host, cpus, PCPUS, SEED, stop));
        for &cpu in cpus {
            scope.spawn(move || {
                run_on(SELF, &[cpu]).expect("the vCPU is online");
                while !stop.load(Ordering::Relaxed) {}
            });
        }
        let result = body();
        stop.store(true, Ordering::Relaxed);
        result
    })?;
    let seen = VcpuTimes::take(&*host, &session, &cpus)?.since(&before);
    let least = seen.iter().map(|vcpu| vcpu.switches).min().unwrap_or(0);
    let programs = 2 * times() as u64;
    ensure!(least > SWITCHES_MIN * programs, "a vCPU was switched {least} times only");
    Ok(())
}

/// The offsets of fields in a program's file (ELF, 64 bits).
const ENTRY: usize = 24;
const SEGMENTS: usize = 32;
const SEGMENT_SIZE: usize = 54;
const SEGMENT_COUNT: usize = 56;
/// The offsets of fields in the description of a segment.
const FLAGS: usize = 4;
const OFFSET: usize = 8;
const ADDRESS: usize = 16;
const LENGTH: usize = 32;
const EXECUTABLE: u8 = 1;

const NOP: u8 = 0x90;
const JMP: u8 = 0xe9;
const JMP_LENGTH: usize = 5;
const PAGE: usize = 4096;

/// Returns the program, changed to begin behind its code, in the rest of the last page. There it
/// executes this many instructions beside the jump to its usual beginning.
fn begun_with(program: &[u8], more: usize) -> Result<Vec<u8>> {
    let word = |at: usize| -> Result<usize> {
        let bytes = program.get(at..at + 8).context("the file is too short")?;
        Ok(u64::from_le_bytes(bytes.try_into()?).try_into()?)
    };
    let half = |at: usize| usize::from(program[at]) | usize::from(program[at + 1]) << 8;
    let (first, size) = (word(SEGMENTS)?, half(SEGMENT_SIZE));
    let mut segments = (0..half(SEGMENT_COUNT)).map(|n| first + n * size);
    // The word before the flags says that the segment is loaded. Only a loaded segment is
    // executable.
    let code = segments.find(|&at| program[at] == 1 && program[at + FLAGS] & EXECUTABLE != 0);
    let code = code.context("no code")?;
    let end = word(code + OFFSET)? + word(code + LENGTH)?;
    let beginning = word(code + ADDRESS)? + word(code + LENGTH)?;
    let length = more + JMP_LENGTH;
    let room = program.get(end..end + length).context("no room behind the code")?;
    ensure!(room.iter().all(|byte| *byte == 0) && end % PAGE + length <= PAGE, "no room");
    let distance = word(ENTRY)?.wrapping_sub(beginning + length) as u32;
    let mut changed = program.to_owned();
    changed[ENTRY..ENTRY + 8].copy_from_slice(&(beginning as u64).to_le_bytes());
    changed[end..end + more].fill(NOP);
    changed[end + more] = JMP;
    changed[end + more + 1..end + length].copy_from_slice(&distance.to_le_bytes());
    Ok(changed)
}
