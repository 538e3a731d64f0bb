// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A list of named checks.

use std::process::ExitCode;

/// Counts checks as they are made and prints each.
#[derive(Debug, Default)]
pub struct Tally {
    passed: usize,
    failed: usize,
}

impl Tally {
    /// Records one check.
    pub fn check(&mut self, name: &str, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("ok      {name}");
            }
            Err(why) => {
                self.failed += 1;
                println!("FAILED  {name}: {why}");
            }
        }
    }

    /// Prints the totals; fails if any check did, or if there was none.
    pub fn finish(self) -> ExitCode {
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 && self.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Returns `Ok` if both are equal, or else a text with what was found and expected.
pub fn equal<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?} found, {expected:?} expected")) }
}
