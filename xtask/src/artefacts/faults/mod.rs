// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The faults that people make, each of which a test must notice. The catalogue is in
//! `tests/faults`, and each fault can be switched on in a copy of the sources.

use std::path::Path;

use anyhow::Result;

mod catalogue;
mod copy;
mod counts;

#[cfg(test)]
pub use self::catalogue::Edit;
pub use self::catalogue::{Fault, Tier, read};
pub use self::copy::{Copy, VARIABLE, copy, copy_with};
pub use self::counts::write as write_counts;

/// Makes sure that each fault is where the catalogue says, and that the table in the documents is
/// right.
pub fn check(root: &Path) -> Result<()> {
    catalogue::check(root)?;
    counts::check(root)
}
