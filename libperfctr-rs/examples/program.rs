// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts what a program does, with all threads and processes that it starts, and nothing of this
//! one:
//!
//! ```text
//! cargo run --example program -- ls -l
//! ```

use std::env;
use std::error::Error;
use std::process::Command;

use perfctr::Event;
use perfctr::watch::Watch;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args_os().skip(1);
    let mut command = Command::new(words.next().ok_or("which program?")?);
    let watched = Watch::this_thread()
        .inherit()
        .from_exec()
        .count("instructions", Event::INSTRUCTIONS.user())
        .count("branches", Event::BRANCHES.user())
        .open()?;
    command.args(words).status()?;
    for (name, total) in watched.read()?.iter() {
        match total.scaled() {
            Some(count) if total.share() == 1.0 => println!("{count:>15} {name}"),
            Some(count) => println!("{count:>15} {name} (estimated)"),
            None => println!("    not counted {name}"),
        }
    }
    Ok(())
}
