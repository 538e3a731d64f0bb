// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Faults that people make, each of which a test must notice: the catalogue in `tests/faults`, and
//! a copy of the sources in which each can be switched on.

mod catalogue;
mod copy;

pub use self::catalogue::{Fault, Tier, check, read};
pub use self::copy::{Copy, VARIABLE, copy, copy_with};
