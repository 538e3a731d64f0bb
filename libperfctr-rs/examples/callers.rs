// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Samples a program, with all threads and processes that it starts, and says from where it called
//! what it executed most:
//!
//! ```text
//! cargo run --example callers -- ls -l
//! ```

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::process::Command;

use perfctr::Event;
use perfctr::watch::Watch;

/// Instructions between two samples.
const PERIOD: u64 = 100_003;
/// How many places are told.
const PLACES: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args_os().skip(1);
    let mut command = Command::new(words.next().ok_or("which program?")?);
    let event = Event::INSTRUCTIONS.user().every(PERIOD);
    let mut samples = Watch::this_thread().inherit().from_exec().callers().sample(event)?;
    command.args(words).status()?;

    let mut hits = BTreeMap::<_, usize>::new();
    let mut taken = 0;
    while let Some(sample) = samples.take()? {
        *hits.entry((sample.callers.first().copied(), sample.ip)).or_default() += 1;
        taken += 1;
    }
    println!("{taken} samples, {} lost", samples.lost());
    let mut hits: Vec<_> = hits.into_iter().collect();
    hits.sort_by_key(|&(_, hits)| std::cmp::Reverse(hits));
    for ((caller, ip), hits) in hits.into_iter().take(PLACES) {
        println!("{hits:>8} {ip:#x}, called from {:#x}", caller.unwrap_or_default());
    }
    Ok(())
}
