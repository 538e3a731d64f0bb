// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests the branches in perf's samples: each has to be the branch that single steps of the same
//! program have found there.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_INSTRUCTIONS, PERF_SAMPLE_BRANCH_ANY, PERF_SAMPLE_BRANCH_ANY_CALL,
    PERF_SAMPLE_BRANCH_ANY_RETURN, PERF_SAMPLE_BRANCH_CALL_STACK, PERF_SAMPLE_BRANCH_COND,
    PERF_SAMPLE_BRANCH_IND_CALL, PERF_SAMPLE_BRANCH_IND_JUMP, PERF_SAMPLE_BRANCH_KERNEL,
    PERF_SAMPLE_BRANCH_USER,
};
use perfctr::watch::{Branch as Recorded, BranchFlags, Watch};
use perfctr::{Cause, Error, Event};
use serde_json::Value;
use vm_tests::bpf::BranchReader;
use vm_tests::branches::{Branch, Path};
use vm_tests::guest::is_pv;
use vm_tests::in_tenant::{Moves, Tests};
use vm_tests::perf::{PARANOID, Sampling, Whose, generic};
use vm_tests::step::Held;
use vm_tests::tally::Tally;
use vm_tests::threads::{SELF, run_on};
use vm_tests::toolstack::{Kind, Tenant, Tsc, Wanted};
use vm_tests::users::{NOBODY, as_user};

use crate::tenant::run_tests;
use crate::tool::perf;
use crate::{Machine, PCPUS, SEED, SWITCHES_MIN};

/// A tenant's memory. The kernel unpacks the tenant's programs into at most a half of what the
/// archive leaves of it, and they take 70 MiB. Unit: MiB.
const MEMORY_MIB: u32 = 512;
/// The same program with other chances, at other addresses; see `branchy.S`.
const PROGRAMS: [&str; 2] = ["/work/branchy", "/work/branchy-elsewhere"];
const PERIOD: u64 = 101;
/// The command refuses shorter periods than 1,000.
const COMMANDS_PERIOD: u64 = 1_009;
const USER: u32 = PERF_SAMPLE_BRANCH_USER;
const BOTH: u32 = USER | PERF_SAMPLE_BRANCH_KERNEL;
const ANY: u32 = PERF_SAMPLE_BRANCH_ANY;
/// The number of branches that the processor records.
const FULL: usize = 16;
/// The first address of Linux' half.
const KERNEL: u64 = 1 << 63;
/// Where Xen is in the addresses of its PV guests.
const XEN: std::ops::Range<u64> = 0xffff_8000_0000_0000..0xffff_8800_0000_0000;
const VCPUS: usize = 2;
const DATA: &str = "/tmp/branches.data";
const PROFILE: &str = "/tmp/branches.profile";

/// The tests of a tenant. Beside it, the control domain records branches, too.
const TESTS: Tests<fn(&Machine) -> Result<()>> = Tests {
    at_rest: &[
        ("every branch of a sample was taken before it", of_one),
        ("the library tells every branch of a sample", by_library),
        ("perfctr record -b notes every branch", by_command),
    ],
    moved: &[
        ("every branch of a sample was taken before it, on any vCPU", of_one),
        ("two programs on one vCPU see their own branches", of_two),
    ],
    saved: &[],
};

/// The tests of a tenant with rings of its own, on a host that records only user mode there.
const TESTS_OWN_RINGS: Tests<fn(&Machine) -> Result<()>> = Tests {
    at_rest: &[
        ("every branch of a sample was taken before it", of_one),
        ("each kind of branches is recorded alone", of_each_kind),
        ("the kernel's branches are refused", without_kernel),
        ("the library tells every branch of a sample", by_library),
        ("perfctr record -b notes every branch", by_command),
        ("a program of eBPF reads the branches of a sample", by_ebpf),
    ],
    moved: &[
        ("every branch of a sample was taken before it, on any vCPU", of_one),
        ("two programs on one vCPU see their own branches", of_two),
    ],
    saved: &[],
};

/// Runs in the control domain. With `pvh`, the CPUs record branches of PVH guests, too.
pub fn control(machine: &Machine, pvh: bool) -> Result<ExitCode> {
    let mut tally = Tally::default();
    let mut test = |name: &str, test: fn(&Machine) -> Result<()>| {
        tally.check(name, test(machine).map_err(|error| format!("{error:#}")));
    };
    test("what is not recorded is refused", refused);
    test("every branch of a sample was taken before it", of_one);
    test("each kind of branches is recorded alone", of_each_kind);
    test("two programs on one vCPU see their own branches", of_two);
    test("the kernel's branches are recorded with a program's, and Xen's never", of_the_kernel);
    test("a user without rights sees no branch of the kernel", of_nobody);
    test("perf record -b shows every branch", recorded);
    test("the library tells every branch of a sample", by_library);
    test("perfctr record -b notes every branch", by_command);
    test("perf reads the branches that perfctr record -b has noted", as_perf_data);
    test("a program of eBPF reads every branch of a sample", by_ebpf);
    test("vCPUs are moved, and every branch of a sample was taken before it", moved);
    if tally.finish() != ExitCode::SUCCESS {
        return Ok(ExitCode::FAILURE);
    }
    let kinds: &[_] = if pvh { &[Kind::Pvh, Kind::Pv] } else { &[Kind::Pv] };
    for &kind in kinds {
        if beside_a_tenant(kind)? != ExitCode::SUCCESS {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the tests of a tenant while this domain has its own branches recorded.
fn beside_a_tenant(kind: Kind) -> Result<ExitCode> {
    let usual = Wanted::usual(kind, "perf", VCPUS, Tsc::Native, "branches-tenant");
    let wanted = Wanted { memory_mib: MEMORY_MIB, ..usual };
    let tests = if kind == Kind::Pv { TESTS } else { TESTS_OWN_RINGS };
    let moves = Moves { pcpus: PCPUS, seed: SEED, switches_min: SWITCHES_MIN };
    let (done, failed) = (&AtomicBool::new(false), &AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                if let Err(error) = sampled(PROGRAMS[0], USER | ANY, &mut Seen::default()) {
                    println!("FAILED beside a tenant: {error:#}");
                    failed.store(true, Relaxed);
                    return;
                }
            }
        });
        let ended = tests.control(&wanted, moves, Tenant::receive);
        done.store(true, Relaxed);
        ended
    })
    .map(|code| if failed.load(Relaxed) { ExitCode::FAILURE } else { code })
}

/// Runs in the tenant.
pub fn tenant() -> Result<ExitCode> {
    run_tests(|| Ok(if is_pv()? { &TESTS } else { &TESTS_OWN_RINGS }))
}

/// The contents of samples.
#[derive(Debug, Default)]
struct Seen {
    samples: usize,
    branches: usize,
    /// Samples with as many branches as there can be.
    full: usize,
    kernels: usize,
}

impl Seen {
    /// Checks that most samples had all branches.
    fn is_rich(&self) -> Result<()> {
        ensure!(self.samples > 50 && 4 * self.full > 3 * self.samples, "{self:?}");
        Ok(())
    }
}

/// Single-steps a program when it is first asked for, and returns what it executes, which is the
/// same each time.
fn path_of(program: &'static str) -> Result<&'static Path> {
    static STEPPED: Mutex<BTreeMap<&str, &Path>> = Mutex::new(BTreeMap::new());
    let mut stepped = STEPPED.lock().expect("no thread panics");
    if let Some(path) = stepped.get(program) {
        return Ok(path);
    }
    let path = Box::leak(Box::new(Path::of(&mut Command::new(program))?));
    stepped.insert(program, path);
    Ok(path)
}

/// Samples a program, and compares each branch with single steps. Branches that begin or end in
/// the kernel are only counted.
fn sampled(program: &'static str, kinds: u32, seen: &mut Seen) -> Result<()> {
    let path = path_of(program)?;
    let held = Held::start(&mut Command::new(program))?;
    let whose = Whose::Thread(held.pid());
    let instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
    let mut sampling = Sampling::with_branches(instructions, PERIOD, whose, kinds)?;
    held.run()?;
    compare(path, kinds, &sampling.branched()?, seen)
}

/// Compares samples with single steps. Each has its place, the instructions that it stands for, and
/// its branches.
fn compare(
    path: &Path,
    kinds: u32,
    samples: &[(u64, u64, Vec<Branch>)],
    seen: &mut Seen,
) -> Result<()> {
    let expected = path.instructions() / PERIOD as usize;
    let periods: u64 = samples.iter().map(|(_, events, _)| events / PERIOD).sum();
    ensure!(periods == expected as u64, "{periods} periods, expected {expected}");
    // In a guest with rings of its own a sample may stand for several periods.
    let one_each = samples.len() == expected || !is_pv()?;
    ensure!(one_each, "{} samples, expected {expected}", samples.len());
    let mut executed = 0;
    for (ip, events, branches) in samples {
        executed += *events as usize;
        let place = path.place_after(executed);
        ensure!(place == Some(*ip), "a sample at {ip:#x}, expected {place:x?}");
        let is_programs = |&&(from, to): &&Branch| (from | to) & KERNEL == 0;
        let own: Vec<_> = branches.iter().filter(is_programs).copied().collect();
        seen.branches += path.check(executed, kinds & !BOTH, &own)?;
        seen.kernels += branches.len() - own.len();
        seen.full += usize::from(branches.len() == FULL);
        let xens = branches.iter().find(|(from, to)| XEN.contains(from) || XEN.contains(to));
        ensure!(xens.is_none(), "an address of Xen: {xens:x?}");
        seen.samples += 1;
    }
    Ok(())
}

fn of_one(_: &Machine) -> Result<()> {
    let mut seen = Seen::default();
    for program in PROGRAMS {
        sampled(program, USER | ANY, &mut seen)?;
    }
    ensure!(seen.kernels == 0, "{} branches of the kernel", seen.kernels);
    // Only a sample whose program has just begun on another CPU has fewer branches.
    ensure!(seen.branches > 8 * seen.samples, "{seen:?}");
    println!("{seen:?}");
    Ok(())
}

fn of_each_kind(_: &Machine) -> Result<()> {
    for kind in [
        PERF_SAMPLE_BRANCH_ANY_CALL,
        PERF_SAMPLE_BRANCH_ANY_RETURN,
        PERF_SAMPLE_BRANCH_COND,
        PERF_SAMPLE_BRANCH_IND_CALL,
        PERF_SAMPLE_BRANCH_IND_JUMP,
    ] {
        let mut seen = Seen::default();
        sampled(PROGRAMS[0], USER | kind, &mut seen)?;
        // The branches of other kinds leave room for this number of this kind.
        ensure!(seen.full > seen.samples / 2, "{kind:#x}: {seen:?}");
    }
    Ok(())
}

/// Checks the branches of two programs that take turns on one vCPU.
fn of_two(machine: &Machine) -> Result<()> {
    let cpu = *machine.cpus.last().context("there is no CPU")?;
    let paths: Result<Vec<_>> = PROGRAMS.into_iter().map(path_of).collect();
    let start = |program: &&str| -> Result<_> {
        let held = Held::start(&mut Command::new(program))?;
        run_on(held.pid(), &[cpu])?;
        let instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
        let whose = Whose::Thread(held.pid());
        Ok((Sampling::with_branches(instructions, PERIOD, whose, USER | ANY)?, held))
    };
    let started: Result<Vec<_>> = PROGRAMS.iter().map(start).collect();
    let (mut samplings, held): (Vec<_>, Vec<_>) = started?.into_iter().unzip();
    // The thread that has started the programs lets them go, and waits for each.
    held.into_iter().try_for_each(Held::run)?;
    let mut seen = Seen::default();
    for (path, sampling) in paths?.iter().zip(&mut samplings) {
        compare(path, USER | ANY, &sampling.branched()?, &mut seen)?;
    }
    ensure!(seen.kernels == 0 && seen.branches > 8 * seen.samples, "{seen:?}");
    Ok(())
}

fn of_the_kernel(_: &Machine) -> Result<()> {
    let mut seen = Seen::default();
    sampled(PROGRAMS[0], BOTH | ANY, &mut seen)?;
    seen.is_rich()?;
    // The program makes system calls and has page faults.
    ensure!(seen.kernels > 0, "no branch of the kernel: {seen:?}");
    Ok(())
}

fn of_nobody(_: &Machine) -> Result<()> {
    let before = fs::read_to_string(PARANOID)?;
    fs::write(PARANOID, "2")?;
    let open = |kinds| {
        let instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
        Sampling::with_branches(instructions, PERIOD, Whose::Thread(SELF), kinds).map(drop)
    };
    let outcome = as_user(NOBODY, || {
        let refused = open(BOTH | ANY).err().and_then(|error| error.downcast::<Errno>().ok());
        ensure!(refused == Some(Errno::EACCES), "the kernel's branches: {refused:?}");
        open(USER | ANY)
    });
    fs::write(PARANOID, before)?;
    outcome
}

/// Checks that nobody gets the kernel's branches where the hypervisor cannot tell them from its
/// own.
fn without_kernel(_: &Machine) -> Result<()> {
    for modes in [BOTH, PERF_SAMPLE_BRANCH_KERNEL] {
        let instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
        let opened =
            Sampling::with_branches(instructions, PERIOD, Whose::Thread(SELF), modes | ANY);
        let errno = opened.err().and_then(|error| error.downcast::<Errno>().ok());
        ensure!(errno == Some(Errno::EOPNOTSUPP), "{modes:#x}: {errno:?}");
    }
    refused_by_library(Event::INSTRUCTIONS.every(PERIOD), Cause::KernelBranches)
}

/// Checks that the library refuses the branches of this event for this reason.
fn refused_by_library(event: Event, expected: Cause) -> Result<()> {
    match Watch::this_thread().branches().sample(event) {
        Err(Error::Refused(refusal)) if refusal.cause == expected => Ok(()),
        other => bail!("{event}: {other:?}, expected {expected:?}"),
    }
}

fn refused(_: &Machine) -> Result<()> {
    let open = |kinds, period| {
        let instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
        let opened = Sampling::with_branches(instructions, period, Whose::Thread(SELF), kinds);
        opened.err().and_then(|error| error.downcast::<Errno>().ok())
    };
    for (what, kinds, period) in [
        ("call stacks", USER | PERF_SAMPLE_BRANCH_CALL_STACK, PERIOD),
        ("transactions", USER | ANY | 1 << 8, PERIOD),
        ("without samples", USER | ANY, 0),
    ] {
        let errno = open(kinds, period);
        ensure!(errno == Some(Errno::EOPNOTSUPP), "{what}: {errno:?}");
    }
    refused_by_library(Event::PAGE_FAULTS.user().every(1), Cause::NoBranches)
}

/// Checks what `bpf_read_branch_records` gives a program that each overflow calls.
fn by_ebpf(_: &Machine) -> Result<()> {
    let path = path_of(PROGRAMS[0])?;
    let held = Held::start(&mut Command::new(PROGRAMS[0]))?;
    let whose = Whose::Thread(held.pid());
    let instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
    let sampling = Sampling::with_branches(instructions, PERIOD, whose, USER | ANY)?;
    let expected = path.instructions() / PERIOD as usize;
    let reader = BranchReader::attach(&sampling.event, expected)?;
    held.run()?;
    let samples = reader.samples()?;
    let (mut executed, mut branches) = (0, 0);
    for sample in 1..=samples {
        let (events, read) = reader.sample(sample)?;
        executed += events as usize;
        branches += path.check(executed, ANY, &read)?;
    }
    let all = expected * PERIOD as usize;
    ensure!(executed == all, "samples of {executed} instructions, expected {all}");
    ensure!(branches > 8 * samples, "{branches} branches in {samples} samples");
    Ok(())
}

fn moved(machine: &Machine) -> Result<()> {
    machine.disturbed(|| of_one(machine))
}

/// Runs `perf record -b`, and `perf script`, which prints the branches.
fn recorded(_: &Machine) -> Result<()> {
    let (path, period) = (path_of(PROGRAMS[0])?, PERIOD.to_string());
    perf(&["record", "-b", "-c", &period, "-e", "instructions:u", "-o", DATA, PROGRAMS[0]])?;
    let (samples, expected) = (scripted()?, path.instructions() / PERIOD as usize);
    ensure!(samples.len() == expected, "{} samples, expected {expected}", samples.len());
    let mut branches = 0;
    for (n, stack) in (1..).zip(&samples) {
        branches += path.check(n * PERIOD as usize, ANY, stack)?;
    }
    ensure!(branches > 8 * expected, "{branches} branches in {expected} samples");
    Ok(())
}

/// Returns what `perf script` prints of the samples in [`DATA`].
fn scripted() -> Result<Vec<Vec<Branch>>> {
    let script = perf(&["script", "-i", DATA, "-F", "ip,brstack"])?;
    let address = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16);
    let branch = |word: &str| -> Result<Branch> {
        let (from, rest) = word.split_once('/').context("a source")?;
        let (to, flags) = rest.split_once('/').context("a target")?;
        // The emulated processor mispredicts nothing.
        ensure!(flags.starts_with('P'), "{word}");
        Ok((address(from)?, address(to)?))
    };
    let sample = |line: &str| -> Result<Vec<Branch>> {
        let stack = line.split_whitespace().filter(|word| word.contains('/'));
        stack.map(branch).collect()
    };
    script.lines().filter(|line| !line.trim().is_empty()).map(sample).collect()
}

/// Compares each branch in the library's samples, which have all fields that samples can have.
fn by_library(_: &Machine) -> Result<()> {
    let path = path_of(PROGRAMS[0])?;
    let held = Held::start(&mut Command::new(PROGRAMS[0]))?;
    let watch = Watch::thread(held.pid().as_raw().cast_unsigned()).callers().counts().branches();
    let mut sampling = watch.sample(Event::INSTRUCTIONS.user().every(PERIOD))?;
    held.run()?;
    let (mut samples, mut executed) = (Vec::new(), 0);
    while let Some(sample) = sampling.take()? {
        executed += sample.period;
        ensure!(sample.count == Some(executed), "{sample:x?} after {executed} instructions");
        let predicted = |branch: &Recorded| branch.flags.mispredicted() == Some(false);
        ensure!(sample.branches.iter().all(predicted), "{sample:x?}");
        let branches = sample.branches.iter().map(|branch| (branch.from, branch.to));
        samples.push((sample.ip, sample.period, branches.collect()));
    }
    ensure!(sampling.lost() == 0, "{} samples were lost", sampling.lost());
    let mut seen = Seen::default();
    compare(path, ANY, &samples, &mut seen)?;
    ensure!(seen.kernels == 0 && seen.branches > 8 * seen.samples, "{seen:?}");
    Ok(())
}

/// Runs the command, and returns what it prints.
fn perfctr(arguments: &[&str]) -> Result<String> {
    let out = Command::new("/work/perfctr").args(arguments).output().context("no command")?;
    let printed = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "perfctr {}: {printed}", arguments.join(" "));
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The time and the branches of each period in a profile, in the order of the times.
type Noted = Vec<(u64, Vec<Branch>)>;

/// Records a program with the command, and returns what is in the profile. The program is always at
/// the addresses that its file states, and so are the frames of the profile.
fn by_perfctr(program: &str) -> Result<Noted> {
    // A tenant has only the directories that it needs.
    fs::create_dir_all("/tmp")?;
    let period = COMMANDS_PERIOD.to_string();
    perfctr(&["record", "-b", "-c", &period, "-e", "instructions:u", "-o", PROFILE, program])?;
    let profile: Value = serde_json::from_slice(&fs::read(PROFILE)?)?;
    let number = |value: &Value| value.as_u64().with_context(|| format!("no number: {value}"));
    let list = |value: &Value| value.as_array().cloned().with_context(|| format!("{value}"));
    let address = |end: &Value| number(&profile["frames"][number(end)? as usize]["address"]);
    let branch = |index: &Value| -> Result<Branch> {
        let branch = &profile["branches"][number(index)? as usize];
        ensure!(
            !BranchFlags::new(number(&branch["flags"])?).mispredicted().context("flags")?,
            "{branch}"
        );
        Ok((address(&branch["from"])?, address(&branch["to"])?))
    };
    let mut noted = Vec::new();
    for stack in list(&profile["stacks"])? {
        // Stacks of which no branch was recorded have no such list.
        let branches = stack.get("branches").map_or(Ok(Vec::new()), list)?;
        let branches: Vec<_> = branches.iter().map(branch).collect::<Result<_>>()?;
        for time in list(&stack["times"])? {
            noted.push((number(&time)?, branches.clone()));
        }
    }
    noted.sort_by_key(|(time, _)| *time);
    Ok(noted)
}

/// Compares each branch in a profile with single steps. A profile does not say in which order
/// samples of one time were taken, and Linux's clock may stand still for some samples.
fn check_noted(path: &Path, noted: &Noted) -> Result<()> {
    let expected = path.instructions() / COMMANDS_PERIOD as usize;
    ensure!(noted.len() == expected, "{} periods, expected {expected}: {noted:x?}", noted.len());
    let mut ended = 0;
    for samples in noted.chunk_by(|(one, _), (next, _)| one == next) {
        let mut left: Vec<&[Branch]> = samples.iter().map(|(_, branches)| &**branches).collect();
        // One with fewer branches may be right in several places.
        left.sort_by_key(|branches| Reverse(branches.len()));
        let mut without = 0;
        for _ in samples {
            ended += 1;
            let executed = ended * COMMANDS_PERIOD as usize;
            let is_here = |branches: &&[Branch]| path.check(executed, ANY, branches).is_ok();
            let Some(found) = left.iter().copied().find(is_here) else {
                // In a guest with rings of its own a sample may stand for several periods.
                without += 1;
                ensure!(!is_pv()?, "no branches of {executed} instructions: {left:x?}");
                continue;
            };
            for _ in 0..=without {
                let at = left.iter().position(|branches| *branches == found);
                left.remove(
                    at.with_context(|| format!("after {executed} instructions: {left:x?}"))?,
                );
            }
            without = 0;
        }
        ensure!(left.is_empty(), "after {ended} periods: {left:x?}");
    }
    let branches: usize = noted.iter().map(|(_, branches)| branches.len()).sum();
    ensure!(branches > 8 * noted.len(), "{branches} branches in {} periods", noted.len());
    Ok(())
}

/// Compares each branch in profiles of the command's.
fn by_command(_: &Machine) -> Result<()> {
    for program in PROGRAMS {
        let noted = by_perfctr(program)?;
        check_noted(path_of(program)?, &noted)?;
        let expected: usize = noted.iter().map(|(_, branches)| branches.len()).sum();
        let table = perfctr(&["report", "--branches", "-i", PROFILE])?;
        // Below the summary and the headings, rows have the number of branches first.
        let row = |line: &str| line.split_whitespace().next()?.parse::<usize>().ok();
        let rows: Option<Vec<_>> = table.lines().skip(2).map(row).collect();
        let all = rows.map(|rows| rows.into_iter().sum::<usize>());
        ensure!(all == Some(expected), "{expected} branches expected: {table}");
    }
    Ok(())
}

/// Checks that perf shows the branches that the command has recorded.
fn as_perf_data(_: &Machine) -> Result<()> {
    for program in PROGRAMS {
        let noted = by_perfctr(program)?;
        check_noted(path_of(program)?, &noted)?;
        perfctr(&["report", "-f", "perf", "-i", PROFILE, "-o", DATA])?;
        let (noted, scripted): (Vec<_>, _) =
            (noted.into_iter().map(|one| one.1).collect(), scripted()?);
        ensure!(noted == scripted, "{scripted:x?}, expected {noted:x?}");
    }
    Ok(())
}
