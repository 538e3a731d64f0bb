// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts each piece of work that rayon's threads do, whichever thread does it:
//!
//! ```text
//! cargo run --example workers
//! ```

use perfctr::{Event, shared};
use rayon::iter::{IntoParallelIterator, ParallelIterator};

fn main() -> Result<(), String> {
    // Counters belong to a thread. A thread that begins another part while it has them gets the
    // same ones.
    let counting = || shared([Event::INSTRUCTIONS.user()]);
    let spent = (1..=8_u64).into_par_iter().map_init(counting, |counting, n| {
        let counting = counting.as_ref().map_err(|error| error.to_string())?;
        let mut primes = 0;
        let measured = counting.measure(|| primes = primes_below(n * 1_000));
        let [instructions] = measured.map_err(|error| error.to_string())?.counts;
        Ok((n * 1_000, primes, instructions))
    });
    for (end, primes, count) in spent.collect::<Result<Vec<_>, String>>()? {
        println!("{primes} primes below {end}: {count} instructions");
    }
    Ok(())
}

fn primes_below(end: u64) -> usize {
    (2..end).filter(|n| (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0)).count()
}
