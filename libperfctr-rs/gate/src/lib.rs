// SPDX-License-Identifier: MIT OR GPL-2.0-only
#![doc = include_str!("../README.md")]
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

mod baseline;
mod error;
mod harness;
pub mod surroundings;
pub mod text;
mod verdict;

pub use baseline::{Baseline, Benchmark, Range, cpu_name};
pub use error::Error;
pub use harness::{Gate, run};
pub use verdict::{Compared, Verdict, WORSE, junit, markdown};

/// Makes the program's `main`, which runs these benchmarks: functions that take a
/// [`&mut Gate`](Gate).
#[macro_export]
macro_rules! main {
    ($($benchmark:path),+ $(,)?) => {
        fn main() -> ::std::process::ExitCode {
            $crate::run(&[$($benchmark),+])
        }
    };
}
