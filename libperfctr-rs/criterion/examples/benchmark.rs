// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Benchmarks by instructions. Usually this is a file in `benches`:
//!
//! ```text
//! cargo run -p perfctr-criterion --release --example benchmark -- --bench
//! ```

use std::hint::black_box;
use std::time::Duration;

use criterion::Criterion;
use perfctr::Event;
use perfctr_criterion::Counted;

fn main() -> Result<(), perfctr::Error> {
    let counted = Counted::event(Event::INSTRUCTIONS.user())?;
    let mut criterion = Criterion::default()
        .with_measurement(counted)
        .without_plots()
        .noise_threshold(0.0001)
        .sample_size(10)
        .nresamples(1_001)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500))
        .configure_from_args();
    for rounds in [1_000, 3_000] {
        criterion.bench_function(&format!("sum of {rounds}"), |bencher| {
            bencher.iter(|| (0..rounds).map(black_box).sum::<u64>());
        });
    }
    criterion.final_summary();
    Ok(())
}
