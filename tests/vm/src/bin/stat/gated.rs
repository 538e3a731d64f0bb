// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what `perfctr gate` says about single functions.

use std::process::{Command, Output};

use anyhow::{Context, Result};
use vm_tests::frames_program::{INNER, OUTER, PROGRAM};
use vm_tests::tally::{Tally, equal};

use crate::command::PERFCTR;
use crate::sampled::{CHILD, FUNCTIONS, THREADS, region};
use crate::subject;

const BASELINE: &str = "/tmp/functions.json";

/// Checks functions whose lengths are known: in a program that is nothing else, and in threads and
/// a process that execute them at once.
pub fn functions(tally: &mut Tally) -> Result<()> {
    let options = ["--function", "inner", "--function", "outer"];
    let output = gate(&options, &[PROGRAM.to_owned()])?;
    tally.check("functions are counted with what they call, to the instruction", {
        equal(["inner", "outer"].map(|name| count(&output, name)), [INNER, OUTER].map(Some))
            .map_err(|why| format!("{why}: {output:?}"))
    });
    let early = |arguments: &[&str]| -> Result<u64> {
        let output = gate(&["--function", FUNCTIONS[0]], &subject::words(arguments)?)?;
        count(&output, FUNCTIONS[0]).with_context(|| format!("{output:?}"))
    };
    let (all, childs) = (early(&["sampled"])?, early(&["sampled-child"])?);
    let known = |(_, lengths): &(&str, [u64; 2])| region(lengths[0]).instructions();
    tally.check("so is a function in several threads, and in a process that is started", {
        // Each call executes the same instructions beside the known ones, which are those of the
        // function's beginning and end. The child makes one call.
        let beside = childs.checked_sub(known(&CHILD)).filter(|&beside| beside < 100);
        let calls = THREADS.iter().chain([&CHILD]).map(known);
        let expected = beside.map(|beside| calls.map(|known| known + beside).sum());
        equal(Some(all), expected)
    });
    refused(tally)
}

/// Checks requests that cannot be met.
fn refused(tally: &mut Tally) -> Result<()> {
    let three = ["inner", "outer", "_start"];
    let three: Vec<&str> = three.iter().flat_map(|name| ["--function", name]).collect();
    for (name, options, printed) in [
        ("a function that no program has", &["--function", "middle"][..], "function \"middle\""),
        ("a function that does not return", &["--function", "_start"], "1 call of \"_start\" did"),
        ("too many functions", &three, "3 functions: at most 2"),
    ] {
        let output = gate(options, &[PROGRAM.to_owned()])?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        tally.check(&format!("{name} is refused"), {
            let is_right = !output.status.success() && words.contains(printed);
            is_right.then_some(()).ok_or(format!("{:?}: {words}", output.status))
        });
    }
    Ok(())
}

fn gate(options: &[&str], program: &[String]) -> Result<Output> {
    let mut command = Command::new(PERFCTR);
    command.args(["gate", "-r", "1", "-b", BASELINE, "--update"]).args(options);
    command.arg("--").args(program).output().context(PERFCTR)
}

/// Returns the instructions of a function, as the gate prints them.
fn count(output: &Output, function: &str) -> Option<u64> {
    let printed = String::from_utf8_lossy(&output.stdout);
    let end = format!(" instructions:u in {function}; not in the baseline");
    let count = printed.lines().find_map(|line| line.strip_suffix(&*end)?.rsplit(' ').next());
    count?.replace(',', "").parse().ok()
}
