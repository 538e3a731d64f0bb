// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! A list of named checks.

use std::process::ExitCode;

/// Keeps checks as they are made, and prints each.
#[derive(Debug, Default)]
pub struct Tally {
    made: Vec<Made>,
}

/// A check's name, and why it has failed if it has.
pub type Made = (String, Option<String>);

impl Tally {
    /// Records one check.
    pub fn check(&mut self, name: &str, outcome: Result<(), String>) {
        match &outcome {
            Ok(()) => println!("ok      {name}"),
            Err(why) => println!("FAILED  {name}: {why}"),
        }
        self.made.push((name.to_owned(), outcome.err()));
    }

    /// Returns the checks that were made.
    pub fn made(&self) -> &[Made] {
        &self.made
    }

    /// Prints the totals; fails if any check did, or if there was none.
    pub fn finish(self) -> ExitCode {
        let failed = self.made.iter().filter(|(_, why)| why.is_some()).count();
        println!("{} passed, {failed} failed", self.made.len() - failed);
        if failed == 0 && !self.made.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Returns `Ok` if both are equal, or else a text with what was found and expected.
pub fn equal<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?} found, {expected:?} expected")) }
}
