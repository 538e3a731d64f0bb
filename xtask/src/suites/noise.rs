// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! How far two measurements of one number of instructions may differ. The larger of the two bands
//! applies. Such numbers depend on when the kernel's timer interrupts, and on the code that the
//! compiler makes of changed sources.

/// The band in percent of the number.
pub const NOISE_PERCENT: f64 = 5.0;
/// The least band, unit: instructions. Figures of samples and switches vary more than in percent,
/// since they are differences of larger numbers.
pub const NOISE_INSTRUCTIONS: f64 = 50.0;
