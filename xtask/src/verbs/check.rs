// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask check` checks what has to hold before anything is committed.

use anyhow::{Result, bail};

use crate::checks::{CHECKS, Check, Pace};

/// Checks format, lints, house rules, documentation, generated files, objects and insertions.
#[derive(clap::Args)]
pub struct Args {
    /// Run only what takes seconds: house rules, format, the generated headers.
    #[arg(long)]
    quick: bool,
    /// Run only checks whose name contains this text.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

/// Runs every check that is asked for, and fails if any of them does.
pub fn run(args: &Args) -> Result<()> {
    let is_wanted = |check: &&Check| {
        let is_asked_for = check.pace != Pace::Named || !args.only.is_empty();
        let is_in_time = !args.quick || check.pace == Pace::Quick;
        check.name.contains(&args.only) && is_asked_for && is_in_time
    };
    let wanted: Vec<&Check> = CHECKS.iter().filter(is_wanted).collect();
    if wanted.is_empty() {
        bail!(
            "no such check; there are: {}",
            CHECKS.iter().map(|check| check.name).collect::<Vec<_>>().join(", ")
        );
    }
    let mut failed = Vec::new();
    for check in &wanted {
        match (check.run)() {
            Ok(()) => println!("ok      {}", check.name),
            Err(error) => {
                println!("FAILED  {}: {error:#}", check.name);
                failed.push(check.name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} checks failed: {}", failed.len(), wanted.len(), failed.join(", "));
    }
    Ok(())
}
