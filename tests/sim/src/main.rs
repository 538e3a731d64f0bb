// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `cargo xtask sim`: see the crate's documentation.

#[cfg(not(sim))]
fn main() {
    eprintln!("built without --cfg sim: see the documentation of this crate");
    std::process::exit(2);
}

#[cfg(sim)]
fn main() {
    let mut runner = sim::run::Runner::default();
    let arg = |n: usize, d: u64| std::env::args().nth(n).and_then(|s| s.parse().ok()).unwrap_or(d);
    let (from, count, steps) = (arg(1, 0), arg(2, 100), arg(3, 10000));
    let trace = std::env::args().nth(4).is_some();
    let t = std::time::Instant::now();
    let (mut total, mut readings, mut bad) = (0, 0, 0);
    for seed in from..from + count {
        let o = runner.seed(seed, steps, trace);
        total += o.steps;
        readings += o.readings;
        if let Some(v) = o.violation {
            bad += 1;
            if bad < 15 {
                println!("seed {seed} step {}: {}", v.step, v.what);
            }
        }
    }
    println!("{total} steps {readings} readings {bad} bad in {:?}", t.elapsed());
}
