// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Prints a table of what named regions count in each thread:
//!
//! ```text
//! cargo run --example regions
//! ```

use std::hint::black_box;

use perfctr::{Error, Event, regions};

fn main() -> Result<(), Error> {
    regions::count(&[Event::INSTRUCTIONS.user(), Event::BRANCHES.user()])?;
    regions::print_at_exit()?;
    let threads = [1_000, 3_000].map(|rounds| std::thread::spawn(move || work(rounds)));
    work(2_000)?;
    for thread in threads {
        thread.join().expect("a thread ends by itself")?;
    }
    print!("{}", regions::table());
    // This is reported when the program ends.
    regions::start("left open")
}

/// The sum is within the work, and an empty region within the sum.
#[inline(never)]
fn work(rounds: u64) -> Result<(), Error> {
    let _work = regions::enter("work")?;
    regions::start("sum")?;
    regions::start("empty")?;
    regions::stop("empty")?;
    let mut sum = 0;
    for n in 0..rounds {
        sum += black_box(n);
    }
    regions::stop("sum")?;
    black_box(sum);
    Ok(())
}
