// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The non-maskable interrupts that this kernel has received.

use std::fs;

use anyhow::{Context, Result};

/// Returns how many all CPUs together have received.
///
/// # Errors
///
/// The kernel does not say so.
pub fn received() -> Result<u64> {
    let interrupts = fs::read_to_string("/proc/interrupts")?;
    let line = interrupts.lines().find_map(|line| line.trim_start().strip_prefix("NMI:"));
    let numbers = line.context("/proc/interrupts has no line of NMIs")?.split_whitespace();
    Ok(numbers.map_while(|number| number.parse::<u64>().ok()).sum())
}
