// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The program that is counted: work of known lengths, in itself, in threads and in processes.

use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};
use vm_tests::region::Region;
use vm_tests::step::Executed;

/// Work in two threads, and then in a process that is told so, in as many digits each time: it
/// reads them.
pub const TREES: [[&str; 4]; 2] =
    [["subject", "40000", "700000", "1090000"], ["subject", "900000", "30000", "2000000"]];

/// Where this program is.
pub fn path() -> Result<String> {
    let path = std::env::current_exe()?;
    Ok(path.to_str().context("a path that is no text")?.to_owned())
}

/// The words that execute it with these arguments.
pub fn words(arguments: &[&str]) -> Result<Vec<String>> {
    Ok([path()?].into_iter().chain(arguments.iter().map(|&word| word.to_owned())).collect())
}

/// What the work of such lengths executes, each for itself.
pub fn work(lengths: &[&str]) -> Vec<Executed> {
    lengths.iter().filter_map(|text| Some(region(text.parse().ok()?).executed())).collect()
}

const fn region(length: u64) -> Region {
    Region { first: length, second: length / 2 + 1 }
}

/// One length is this program's own work.  Of several the last is a child's, which is told all but
/// that it is alone, and the others are those of threads, one after the other.
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
