// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tries the faults that the simulator must find.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{Found, Verdict};
use crate::artefacts::faults::Fault;
use crate::suites::simulator;

/// Tries each of the faults.
pub fn run(faults: Vec<Fault>) -> Result<Vec<Verdict>> {
    let mut verdicts = Vec::new();
    for fault in faults {
        let options = ["--bugs", "--only", &fault.name].map(str::to_owned);
        let mut simulator = simulator(&options)?;
        let start = Instant::now();
        let out = simulator.output().context("the simulator")?;
        let printed = String::from_utf8_lossy(&out.stdout);
        let line = printed.lines().find(|line| line.split(' ').next() == Some(&fault.name));
        let why = String::from_utf8_lossy(&out.stderr);
        ensure!(line.is_some(), "the simulator does not say what it found: {why}");
        let found = match line.filter(|_| out.status.success()) {
            Some(line) => Found::By(words(line)),
            None => Found::Alive,
        };
        verdicts.push(Verdict { fault, found, time: start.elapsed() });
    }
    Ok(verdicts)
}

/// Returns the simulator's text after a fault's name, without the gaps of its table.
fn words(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    match words[..] {
        [seed, step, _, ref what @ ..] => format!("seed {seed}, step {step}: {}", what.join(" ")),
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_becomes_a_sentence() {
        let row = "SharesForgotten                  7      2848       72848  sums go backwards";
        assert_eq!(words(row), "seed 7, step 2848: sums go backwards");
    }
}
