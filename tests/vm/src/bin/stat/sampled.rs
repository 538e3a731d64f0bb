// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs the program that is sampled: functions of known lengths, in threads and in a process.

use std::hint::black_box;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};
use vm_tests::region::Region;

/// The threads' names, and the number of iterations that each is in [`early`] and in [`late`].
pub const THREADS: [(&str, [u64; 2]); 3] = [
    ("one", [1_400_000, 3_100_000]),
    ("two", [900_000, 1_700_000]),
    ("three", [2_300_000, 600_000]),
];

/// The same for the first thread of a process that is started.
pub const CHILD: (&str, [u64; 2]) = ("stat", [1_100_000, 800_000]);

/// The functions with these lengths, and their caller.
pub const FUNCTIONS: [&str; 2] = ["stat::sampled::early", "stat::sampled::late"];
pub const CALLER: &str = "stat::sampled::caller";

pub const fn region(iterations: u64) -> Region {
    Region { first: iterations, second: iterations / 3 + 1 }
}

#[inline(never)]
fn early(iterations: u64) {
    region(iterations).execute(black_box(&mut 0));
}

/// Executes code that differs from that of [`early`], with which it might otherwise be merged.
#[inline(never)]
fn late(iterations: u64) {
    let Region { first, second } = region(iterations);
    Region { first: second, second: first }.execute(black_box(&mut 0));
}

#[inline(never)]
fn caller(lengths: [u64; 2]) {
    early(black_box(lengths[0]));
    late(black_box(lengths[1]));
    // This prevents either call from being the function's last instruction.
    black_box(lengths);
}

/// Runs all threads at once, and then the process.
pub fn run() -> Result<()> {
    let start = |&(name, lengths): &(&str, _)| {
        thread::Builder::new().name(name.to_owned()).spawn(move || caller(lengths))
    };
    let threads = THREADS.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    for thread in threads {
        ensure!(thread.join().is_ok(), "a thread has ended early");
    }
    let status = Command::new(super::subject::path()?).arg("sampled-child").status();
    let status = status.context("cannot start a process")?;
    ensure!(status.success(), "a child has failed: {status}");
    Ok(())
}

/// Runs the process.
pub fn child() {
    caller(CHILD.1);
}
