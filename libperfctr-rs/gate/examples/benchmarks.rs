// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Two benchmarks that are compared with a baseline. Usually this is a file in `benches`:
//!
//! ```text
//! cargo run -p perfctr-gate --release --example benchmarks -- --bench --update
//! cargo run -p perfctr-gate --release --example benchmarks -- --bench
//! ```

use std::hint::black_box;

use perfctr_gate::Gate;

/// Adds numbers, and one more if the variable `MORE` is set.
fn sum(gate: &mut Gate) {
    let last: u64 = if std::env::var_os("MORE").is_some() { 1_001 } else { 1_000 };
    gate.count("sum of 1,000 numbers", || (0..last).map(black_box).sum::<u64>());
}

fn sort(gate: &mut Gate) {
    let numbers: Vec<u32> = (0..1_000).map(|n: u32| n.wrapping_mul(2_654_435_761)).collect();
    gate.count("sort 1,000 numbers", || {
        let mut numbers = black_box(&numbers).clone();
        numbers.sort_unstable();
        numbers
    });
}

perfctr_gate::main!(sum, sort);
