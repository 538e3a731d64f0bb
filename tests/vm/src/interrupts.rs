// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The interrupts that this kernel has received.

use std::fs;

use anyhow::{Context, Result};

/// A kind of interrupt.
#[derive(Clone, Copy, Debug)]
pub enum Interrupt {
    /// One that cannot be masked.
    Nmi,
    /// An interrupt by which a CPU interrupts itself, for work that could not be done at once.
    Work,
    /// An interrupt by which a CPU has others call a function.
    Call,
}

/// Returns how many such interrupts all CPUs together have received.
///
/// # Errors
///
/// The kernel does not say so.
pub fn received(interrupt: Interrupt) -> Result<u64> {
    let name = match interrupt {
        Interrupt::Nmi => "NMI:",
        Interrupt::Work => "IWI:",
        Interrupt::Call => "CAL:",
    };
    let interrupts = fs::read_to_string("/proc/interrupts")?;
    let line = interrupts.lines().find_map(|line| line.trim_start().strip_prefix(name));
    let line = line.with_context(|| format!("/proc/interrupts has no line {name}"))?;
    Ok(line.split_whitespace().map_while(|number| number.parse::<u64>().ok()).sum())
}
