// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! How PAPI's tests ended, from what they have printed.

use std::fs;
use std::path::Path;

/// Tests that cannot pass here, with what their output then says and why.
const CANNOT_PASS: &[(&str, &str, &str)] = &[
    (
        "derived",
        "PAPI_L2_DCM  : \t            0",
        "the testbed's PMU does not model events of the caches: they count 0",
    ),
    (
        "multiplex2",
        "Caution: 7 counters had zero values",
        "the testbed's PMU does not model events of the caches, and the test takes 7 of them",
    ),
    (
        "sdsc-mpx",
        "Using 11 events",
        "PAPI's perfctr component multiplexes no more events than the CPU has counters: 7",
    ),
];

/// What PAPI says in every test, or in every one that fails.
const NOISE: &[&str] = &[
    "num_cntrs 16 is more than num_mpx_cntrs 7",
    "Some tests require special hardware",
    "or library versions. PAPI may still function",
    "system without the particular feature",
];

/// Tests whose every PAPI_TOT_INS is a multiple of the first number and a rest of at most the
/// second: what PAPI itself executes between starting the counters and reading them. In `zero` that
/// includes calling the loop of a million instructions 200 times, in `zero_fork` two forks.
const EXACT: &[(&str, u64, u64)] =
    &[("zero", 1_000_000, 1_400), ("zero_pthreads", 5_000_000, 400), ("zero_fork", 5_000_000, 700)];

/// How one test ended.
pub enum Verdict {
    Passed,
    /// By PAPI itself.
    Skipped(String),
    /// As expected here.
    CannotPass(String),
    Failed(String),
}

/// Reads how a test ended from what it has printed.
pub fn verdict(test: &str, out: &Path) -> Verdict {
    let bytes = fs::read(out.join(format!("{test}.log"))).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let is_news = |line: &&str| !line.trim().is_empty() && !NOISE.iter().any(|n| line.contains(n));
    let lines: Vec<&str> = text.lines().filter(is_news).collect();
    let Some((status, output)) = lines.split_last() else {
        return Verdict::Failed("did not run".to_owned());
    };
    let said = |word: &str| output.iter().any(|line| line.contains(word));
    let end = || output.iter().rev().take(3).rev().map(|line| line.trim()).collect::<Vec<_>>();
    if *status == "exit status 0" && said("SKIPPED") {
        return Verdict::Skipped(end().join("; "));
    }
    if *status == "exit status 0" && said("PASSED") && !said("FAILED") {
        return match inexact(test, output) {
            Some(reason) => Verdict::Failed(reason),
            None => Verdict::Passed,
        };
    }
    match CANNOT_PASS.iter().find(|(name, sign, _)| *name == test && said(sign)) {
        Some((_, _, why)) => Verdict::CannotPass((*why).to_owned()),
        None => Verdict::Failed(format!("{}; {status}", end().join("; "))),
    }
}

/// Why the counts of a test are not what they must be.
fn inexact(test: &str, output: &[&str]) -> Option<String> {
    let (_, unit, rest) = EXACT.iter().find(|(name, ..)| *name == test)?;
    let counts: Vec<u64> = output
        .iter()
        .filter_map(|line| line.split_once("PAPI_TOT_INS :"))
        .filter_map(|(_, count)| count.trim().parse().ok())
        .collect();
    let off: Vec<&u64> = counts.iter().filter(|count| *count % unit > *rest).collect();
    if counts.is_empty() {
        Some("printed no PAPI_TOT_INS".to_owned())
    } else if off.is_empty() {
        None
    } else {
        Some(format!("PAPI_TOT_INS is not a multiple of {unit} and at most {rest}: {off:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_multiples_and_a_small_rest() {
        let line = |count: u64| format!("Thread 0x1 PAPI_TOT_INS : \t{count}");
        let good = [line(5_000_310), line(40_000_400)];
        let good: Vec<&str> = good.iter().map(String::as_str).collect();
        assert_eq!(inexact("zero_pthreads", &good), None);
        let off = line(9_999_999);
        assert!(inexact("zero_pthreads", &[&off]).is_some_and(|why| why.contains("9999999")));
        assert!(inexact("zero_pthreads", &[]).is_some());
        assert_eq!(inexact("first", &[]), None);
    }
}
