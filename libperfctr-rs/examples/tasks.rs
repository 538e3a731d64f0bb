// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts each of tokio's tasks by itself, although they take turns in one thread:
//!
//! ```text
//! cargo run --example tasks
//! ```

use std::error::Error;

use perfctr::{Event, start};
use tokio::runtime::Builder;
use tokio::task::{LocalSet, yield_now};

fn main() -> Result<(), Box<dyn Error>> {
    let counting = std::rc::Rc::new(start([Event::INSTRUCTIONS.user()])?);
    let runtime = Builder::new_current_thread().build()?;
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, async {
        let spawn = |rounds| {
            let counting = counting.clone();
            tasks.spawn_local(async move { counting.polls(sums(rounds)).await })
        };
        let spawned: Vec<_> = [10, 20, 30].into_iter().map(spawn).collect();
        for task in spawned {
            let (sum, spent) = task.await??;
            println!("{sum}: {} instructions", spent.counts[0]);
        }
        Ok(())
    })
}

/// Lets the others have a turn after each round.
async fn sums(rounds: u64) -> u64 {
    let mut sum = 0;
    for round in 0..rounds {
        sum += (0..1_000 * round).map(std::hint::black_box).sum::<u64>();
        yield_now().await;
    }
    sum
}
