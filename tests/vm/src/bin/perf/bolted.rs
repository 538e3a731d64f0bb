// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Compares a program with what BOLT has made of it by the branches that `perf record -b` has seen.

use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_BRANCH_INSTRUCTIONS, PERF_COUNT_HW_CPU_CYCLES, PERF_COUNT_HW_INSTRUCTIONS,
};
use vm_tests::branches::Path;
use vm_tests::perf::{Event, Whose, generic};
use vm_tests::step::Held;
use vm_tests::tally::Tally;

/// The program, and its optimised form.
const PROGRAMS: [&str; 2] = ["/work/layout", "/work/layout.bolt"];

/// What an execution of a program takes.
struct Cost {
    printed: Vec<u8>,
    /// By single steps.
    taken: usize,
    /// By counters.
    instructions: u64,
    branches: u64,
    cycles: u64,
}

/// Checks that the optimised program computes the same and takes fewer branches.
pub fn check() -> Result<ExitCode> {
    let mut tally = Tally::default();
    tally.check("a program that was optimised by its branches takes fewer", compared());
    Ok(tally.finish())
}

fn compared() -> Result<(), String> {
    let costs = PROGRAMS.map(|program| cost(program).map_err(|error| format!("{error:#}")));
    let [before, after] = costs;
    let (before, after) = (before?, after?);
    let fail = |what: &str| Err(what.to_owned());
    if before.printed != after.printed {
        return fail("it computes something else");
    }
    println!(
        "note taken branches: {} before, {} after; instructions: {}, {}; branches: {}, {}; \
         cycles: {}, {}",
        before.taken,
        after.taken,
        before.instructions,
        after.instructions,
        before.branches,
        after.branches,
        before.cycles,
        after.cycles,
    );
    // By a profile that single steps made, it takes three of five.
    if 4 * after.taken > 3 * before.taken {
        return fail("it still takes most of them");
    }
    Ok(())
}

fn cost(program: &str) -> Result<Cost> {
    let path = Path::of(&mut Command::new(program))?;
    let held = Held::start(&mut Command::new(program))?;
    let events =
        [PERF_COUNT_HW_INSTRUCTIONS, PERF_COUNT_HW_BRANCH_INSTRUCTIONS, PERF_COUNT_HW_CPU_CYCLES];
    let whose = Whose::Thread(held.pid());
    let events = events.map(|event| Event::open(generic(event), whose, None));
    let [instructions, branches, cycles] = events;
    let (instructions, branches, cycles) = (instructions?, branches?, cycles?);
    held.run()?;
    let cost = Cost {
        printed: Command::new(program).output()?.stdout,
        taken: path.taken(),
        instructions: instructions.count()?,
        branches: branches.count()?,
        cycles: cycles.count()?,
    };
    let stepped = path.instructions() as u64;
    ensure!(cost.instructions == stepped, "{} counted, {stepped} expected", cost.instructions);
    Ok(cost)
}
