// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides how many rounds a program runs: `cargo xtask test --tier long` asks for more.

/// The variable that xtask sets.
const VARIABLE: &str = "PERFCTR_VOLUME";

/// Returns the number of rounds, usually or in the long tier.
pub fn pick<T>(usual: T, long: T) -> T {
    if std::env::var(VARIABLE).is_ok_and(|volume| volume == "long") { long } else { usual }
}
