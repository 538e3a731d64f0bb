// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs the program that is counted: work of known lengths, in itself, in threads and in processes.

use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::sys::prctl;
use vm_tests::region::Region;
use vm_tests::step::Executed;

/// The lengths of work in two threads, and then in a process, for two runs. Programs parse their
/// arguments, so both runs have the same number of digits, in total and for the process.
pub const TREES: [[&str; 4]; 2] =
    [["subject", "40000", "700000", "1090000"], ["subject", "900000", "30000", "2000000"]];

/// Returns the path of this program.
pub fn path() -> Result<String> {
    let path = std::env::current_exe()?;
    Ok(path.to_str().context("a path that is no text")?.to_owned())
}

/// Returns the words that execute it with these arguments.
pub fn words(arguments: &[&str]) -> Result<Vec<String>> {
    Ok([path()?].into_iter().chain(arguments.iter().map(|&word| word.to_owned())).collect())
}

/// Returns what the work of each of these lengths executes.
pub fn work(lengths: &[&str]) -> Vec<Executed> {
    lengths.iter().filter_map(|text| Some(region(text.parse().ok()?).executed())).collect()
}

const fn region(length: u64) -> Region {
    Region { first: length, second: length / 2 + 1 }
}

/// Writes to this many new pages, in a thread. All runs have room for equally many.
pub fn pages(arguments: &[String]) -> Result<()> {
    const PAGE: usize = 4096;
    const ROOM: usize = 4_000;
    let [pages] = arguments else {
        anyhow::bail!("{arguments:?} found, a number of pages expected")
    };
    let pages = pages.parse()?;
    // With a huge page there would be only a single fault.
    prctl::set_thp_disable(true)?;
    let thread = thread::spawn(move || {
        let mut memory = vec![0_u8; ROOM * PAGE];
        memory.iter_mut().step_by(PAGE).take(pages).for_each(|byte| *byte = 1);
        std::hint::black_box(memory);
    });
    ensure!(thread.join().is_ok(), "the thread has ended early");
    Ok(())
}

/// Executes work of these lengths. A single length is this program's own work. If there are
/// several, the last one is for a child, which gets only that one. The others are for threads, one
/// after the other.
pub fn run(lengths: &[String]) -> Result<()> {
    match lengths {
        [] => anyhow::bail!("no work"),
        [length] => region(length.parse()?).execute(&mut 0),
        [threads @ .., child] => {
            for length in threads {
                let region = region(length.parse()?);
                let thread = thread::spawn(move || region.execute(&mut 0));
                ensure!(thread.join().is_ok(), "a thread has ended early");
            }
            let status = Command::new(path()?).args(["subject", child]).status()?;
            ensure!(status.success(), "a child has failed: {status}");
        }
    }
    Ok(())
}
