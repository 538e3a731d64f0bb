// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests precise samples: each has to be at the instruction that single steps of the same program
//! have found there, although the interrupt comes later.

use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_BRANCH_INSTRUCTIONS, PERF_COUNT_HW_CPU_CYCLES, PERF_COUNT_HW_INSTRUCTIONS,
    PERF_SAMPLE_REGS_INTR, perf_event_attr,
};
use vm_tests::branches::Path;
use vm_tests::perf::{Event, Sampling, Whose, generic};
use vm_tests::step::Held;
use vm_tests::tally::Tally;
use vm_tests::threads::SELF;

use crate::Machine;

/// See `branchy.S`. It also has page faults and makes system calls.
const PROGRAM: &str = "/work/branchy";
const PERIODS: [u64; 3] = [101, 211, 499];
/// The first address of Linux' half.
const KERNEL: u64 = 1 << 63;

/// The PMU's file that says how precise its samples can be.
const MAX_PRECISE: &str = "/sys/bus/event_source/devices/cpu/caps/max_precise";

pub fn check_all(machine: &Machine, skid: usize) -> Result<ExitCode> {
    let path = Path::of(&mut Command::new(PROGRAM))?;
    let mut tally = Tally::default();
    let mut test = |name: &str, outcome: Result<()>| {
        tally.check(name, outcome.map_err(|error| format!("{error:#}")));
    };
    test("the PMU says how precise its samples can be", says_so());
    test("what cannot be precise is refused", refused());
    test("other samples are as late as their interrupts", late(&path, skid));
    test("each precise sample is at its instruction", exact(&path, 2));
    test("who asks for a constant skid gets none", exact(&path, 1));
    test("vCPUs are moved, and each precise sample is at its instruction", moved(machine, &path));
    test("each precise sample of branches is at a branch", of_branches(&path));
    test("precise samples of the kernel are where it executes", of_the_kernel());
    Ok(tally.finish())
}

fn says_so() -> Result<()> {
    let said = fs::read_to_string(MAX_PRECISE)?;
    ensure!(said.trim() == "2", "{said}");
    Ok(())
}

fn instructions(precise: u64) -> perf_event_attr {
    let mut attributes = generic(PERF_COUNT_HW_INSTRUCTIONS);
    attributes.set_precise_ip(precise);
    attributes
}

fn refused() -> Result<()> {
    let sampling = |set: &dyn Fn(&mut perf_event_attr)| {
        let mut attributes = instructions(2);
        attributes.__bindgen_anon_1.sample_period = 1_000;
        set(&mut attributes);
        Event::open(attributes, Whose::Thread(SELF), None).err()
    };
    ensure!(sampling(&|_| ()).is_none(), "what can be precise is refused");
    for (what, refusal, errno) in [
        ("more than that", sampling(&|of| of.set_precise_ip(3)), Errno::EOPNOTSUPP),
        ("cycles", sampling(&|of| of.config = PERF_COUNT_HW_CPU_CYCLES.into()), Errno::EOPNOTSUPP),
        (
            "registers",
            sampling(&|of| {
                of.sample_type = PERF_SAMPLE_REGS_INTR.into();
                of.sample_regs_intr = 1;
            }),
            Errno::EOPNOTSUPP,
        ),
        ("a count", sampling(&|of| of.__bindgen_anon_1.sample_period = 0), Errno::EINVAL),
    ] {
        ensure!(refusal == Some(errno), "{what}: {refusal:?}, expected {errno}");
    }
    Ok(())
}

/// Samples the program. Returns the places, each with whether it is said to be exact.
fn sampled(attributes: perf_event_attr, period: u64) -> Result<Vec<(u64, bool)>> {
    let held = Held::start(&mut Command::new(PROGRAM))?;
    let mut sampling = Sampling::open(attributes, period, Whose::Thread(held.pid()))?;
    held.run()?;
    sampling.placed()
}

/// Checks that samples without precision are late, so that precise ones show something.
///
/// A sample is less late than its interrupt if the program enters the kernel before: a change of
/// mode shows the overflow to the driver.
fn late(path: &Path, skid: usize) -> Result<()> {
    let (mut as_late, mut exact, mut all) = (0, 0, 0);
    for period in PERIODS {
        for (n, (ip, is_exact)) in sampled(instructions(0), period)?.into_iter().enumerate() {
            ensure!(!is_exact, "a sample at {ip:#x} is said to be exact");
            let executed = (n + 1) * period as usize;
            as_late += usize::from(path.place_after(executed + skid) == Some(ip));
            exact += usize::from(path.place_after(executed) == Some(ip));
            all += 1;
        }
    }
    println!("of {all} samples {as_late} are {skid} instructions late, and {exact} are exact");
    ensure!(2 * as_late > all && 2 * exact < all, "{as_late} and {exact} of {all}");
    Ok(())
}

fn exact(path: &Path, precise: u64) -> Result<()> {
    for period in PERIODS {
        let samples = sampled(instructions(precise), period)?;
        let expected = path.instructions() / period as usize;
        ensure!(samples.len() == expected, "{} samples, expected {expected}", samples.len());
        for (n, (ip, is_exact)) in samples.into_iter().enumerate() {
            ensure!(is_exact, "sample {n} of a period of {period} is not said to be exact");
            let place = path.place_after((n + 1) * period as usize);
            ensure!(
                place == Some(ip),
                "sample {n} of a period of {period} at {ip:#x}, expected {place:x?}"
            );
        }
    }
    Ok(())
}

fn moved(machine: &Machine, path: &Path) -> Result<()> {
    machine.disturbed(|| exact(path, 2))
}

/// Single steps do not count the branches, so this checks only that each place is one.
fn of_branches(path: &Path) -> Result<()> {
    let mut attributes = generic(PERF_COUNT_HW_BRANCH_INSTRUCTIONS);
    attributes.set_precise_ip(2);
    let samples = sampled(attributes, 53)?;
    let inexact = samples.iter().filter(|(_, is_exact)| !is_exact).count();
    println!("{inexact} of {} samples of branches have no record", samples.len());
    // These are the ones before the program has entered the kernel.
    ensure!(samples.len() > 20 && 4 * inexact < samples.len(), "{inexact} of {}", samples.len());
    for (ip, is_exact) in samples {
        ensure!(!is_exact || path.is_branch(ip), "an exact sample at {ip:#x}, which is no branch");
    }
    Ok(())
}

fn of_the_kernel() -> Result<()> {
    let mut attributes = instructions(2);
    attributes.set_exclude_kernel(0);
    attributes.set_exclude_user(1);
    let samples = sampled(attributes, 10_007)?;
    let exact = samples.iter().filter(|(_, is_exact)| *is_exact).count();
    let programs = samples.iter().find(|(ip, _)| ip & KERNEL == 0);
    ensure!(programs.is_none(), "a sample in the program: {programs:x?}");
    let all = samples.len();
    ensure!(2 * exact > all, "{exact} of {all} are exact");
    (all > 5).then_some(()).context("hardly any samples")
}
