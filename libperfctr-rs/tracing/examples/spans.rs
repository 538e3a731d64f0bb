// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Prints what each span of a program counts when it is closed:
//!
//! ```text
//! cargo run -p perfctr-tracing --example spans
//! ```

use std::hint::black_box;

use perfctr::Event;
use perfctr_tracing::SpanCounter;
use tracing::info_span;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let subscriber = SpanCounter::new(&[Event::INSTRUCTIONS.user()])
        .on_close(|span| {
            println!("{} {} in all, {} its own", span.name(), span.total()[0], span.own()[0]);
            if span.retries() > 0 {
                println!("{} readings were disturbed", span.retries());
            }
        })
        .around(tracing_subscriber::registry());
    tracing::subscriber::set_global_default(subscriber)?;
    for rounds in [1_000, 1_000, 3_000] {
        info_span!("request").in_scope(|| {
            info_span!("empty").in_scope(|| ());
            info_span!("sum").in_scope(|| sum(rounds));
        });
    }
    let thread = std::thread::spawn(|| info_span!("elsewhere").in_scope(|| sum(2_000)));
    thread.join().expect("the thread ends by itself");
    Ok(())
}

#[inline(never)]
fn sum(rounds: u64) {
    let mut sum = 0;
    for n in 0..rounds {
        sum += black_box(n);
    }
    black_box(sum);
}
