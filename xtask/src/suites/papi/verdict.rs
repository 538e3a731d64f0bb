// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Judges how PAPI's tests have ended by what they have printed.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::artefacts::papi::Component::{self, PerfEvent, Perfctr};

/// Tests that cannot pass on the C library. Each has the text that its output then contains, and
/// the reason.
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

/// Lines that PAPI prints in every test, or in every one that fails.
const NOISE: &[&str] = &[
    "num_cntrs 16 is more than num_mpx_cntrs 7",
    "Some tests require special hardware",
    "or library versions. PAPI may still function",
    "system without the particular feature",
];

/// How the tests that cannot pass end: PAPI itself has found them failed.
const FAILED: &str = "exit status 1";

/// A test for which the true values of every `PAPI_TOT_INS` are known.
struct Exact {
    component: Component,
    test: &'static str,
    /// The instructions of its processes and threads, in `UNIT`s, in ascending order. One of these
    /// lists has to fit.
    executed: &'static [&'static [u64]],
    /// The instructions of PAPI itself between starting the counters and reading them: at least
    /// one, and at most this many.
    rest: u64,
}

/// Half a million iterations of PAPI's loop, of 10 instructions each.
const UNIT: u64 = 5_000_000;

/// The additional instructions if a thread is switched in the middle of a reading of two counters,
/// which then begins anew. `overflow_exact` prints how many. Two such readings are allowed. In the
/// guest, perf's events are read by a system call.
const DISTURBED: u64 = 2 * 120;

/// What the threads of `zero_pthreads` execute. The first one reads how often to loop from a
/// variable that PAPI's test sets again.
const THREADS: &[&[u64]] = &[&[1, 2, 4, 8, 16], &[1, 1, 4, 8, 16]];

const EXACT: &[Exact] = &[
    // The rest includes calling a loop of a million instructions 200 times.
    Exact { component: Perfctr, test: "zero", executed: &[&[40]], rest: 1_400 + DISTURBED },
    Exact { component: PerfEvent, test: "zero", executed: &[&[40]], rest: 1_300 },
    Exact { component: Perfctr, test: "zero_pthreads", executed: THREADS, rest: 400 + DISTURBED },
    Exact { component: PerfEvent, test: "zero_pthreads", executed: THREADS, rest: 300 },
    // The rest includes two forks. A later PAPI skips this test on perf's events.
    Exact { component: Perfctr, test: "zero_fork", executed: &[&[2, 4, 8]], rest: 700 + DISTURBED },
];

/// How one test ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    Passed,
    /// PAPI has skipped it, for this reason.
    Skipped(String),
    /// It has failed as expected here, for this reason.
    CannotPass(String),
    Failed(String),
}

impl Verdict {
    /// Returns the word for a table.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Skipped(_) => "skipped",
            Self::CannotPass(_) => "cannot pass",
            Self::Failed(_) => "FAILED",
        }
    }

    /// Returns why it did not pass, or an empty text.
    pub fn reason(&self) -> &str {
        match self {
            Self::Passed => "",
            Self::Skipped(reason) | Self::CannotPass(reason) | Self::Failed(reason) => reason,
        }
    }

    /// Returns an error if it did not pass.
    pub fn passed(&self) -> Result<()> {
        match self {
            Self::Passed => Ok(()),
            _ => bail!("{}: {}", self.word(), self.reason()),
        }
    }
}

/// Reads how a test ended from what it has printed.
pub fn verdict(component: Component, test: &str, out: &Path) -> Verdict {
    let bytes = fs::read(out.join(format!("{test}.log"))).unwrap_or_default();
    judge(component, test, &String::from_utf8_lossy(&bytes))
}

/// Judges a test. Its status and its text must agree: a test that was ended by a signal or by its
/// time-out has neither passed, nor skipped itself, nor failed as expected, whatever it printed
/// before.
fn judge(component: Component, test: &str, text: &str) -> Verdict {
    let is_news = |line: &&str| !line.trim().is_empty() && !NOISE.iter().any(|n| line.contains(n));
    let lines: Vec<&str> = text.lines().filter(is_news).collect();
    let Some((status, output)) = lines.split_last() else {
        return Verdict::Failed("did not run".to_owned());
    };
    let where_said = |word: &str| output.iter().rposition(|line| line.contains(word));
    let printed = |word: &str| where_said(word).is_some();
    if *status == "exit status 0" && !printed("FAILED") {
        if let Some(line) = where_said("SKIPPED") {
            return Verdict::Skipped(end(&output[..=line]));
        }
        if printed("PASSED") {
            let inexact = inexact(component, test, output);
            return inexact.map_or(Verdict::Passed, Verdict::Failed);
        }
    }
    let is_expected = component == Perfctr && *status == FAILED && printed("FAILED");
    let known = CANNOT_PASS.iter().find(|(name, sign, _)| *name == test && printed(sign));
    match known.filter(|_| is_expected) {
        Some((_, _, why)) => Verdict::CannotPass((*why).to_owned()),
        None => Verdict::Failed(format!("{}; {status}", end(output))),
    }
}

/// Returns the last three of these lines.
fn end(lines: &[&str]) -> String {
    let words = |line: &&str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    lines[lines.len().saturating_sub(3)..].iter().map(words).collect::<Vec<_>>().join("; ")
}

/// Returns why the counts of a test are wrong, or `None` if they are right.
fn inexact(component: Component, test: &str, output: &[&str]) -> Option<String> {
    let is_it = |exact: &&Exact| exact.component == component && exact.test == test;
    let exact = EXACT.iter().find(is_it)?;
    let printed = output.iter().filter_map(|line| line.split_once("PAPI_TOT_INS :"));
    let counts: Result<Vec<u64>, _> = printed.map(|(_, count)| count.trim().parse()).collect();
    let Ok(mut counts) = counts else {
        return Some("a PAPI_TOT_INS is no number".to_owned());
    };
    counts.sort_unstable();
    let rests = 1..=exact.rest;
    let is = |count: &u64, units: &u64| {
        count.checked_sub(units * UNIT).is_some_and(|rest| rests.contains(&rest))
    };
    let fits = |units: &&[u64]| {
        units.len() == counts.len() && counts.iter().zip(*units).all(|(count, n)| is(count, n))
    };
    if exact.executed.iter().any(fits) {
        return None;
    }
    let executed = exact.executed;
    Some(format!("PAPI_TOT_INS: {counts:?}, not {executed:?} x {UNIT} and {rests:?} each"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(counts: &[u64]) -> String {
        let line = |count: &u64| format!("Thread 0x1 PAPI_TOT_INS : \t{count}\n");
        counts.iter().map(line).collect::<String>() + "PASSED\n"
    }

    fn is_failed(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Failed(_))
    }

    fn with_status(output: &str, status: u32) -> String {
        format!("{output}exit status {status}\n")
    }

    #[test]
    fn counts_are_those_of_the_test() {
        let judge = |all: &[u64]| judge(Perfctr, "zero_fork", &with_status(&counts(all), 0));
        assert_eq!(judge(&[40_000_400, 10_000_001, 20_000_940]), Verdict::Passed);
        for wrong in [
            &[0, 20_000_400, 40_000_400][..],
            &[0, 0, 0],
            &[10_000_400, 20_000_400],
            &[10_000_400, 20_000_400, 40_000_400, 5_000_400],
            // A whole loop is missing.
            &[10_000_400, 20_000_400, 35_000_400],
            &[10_000_400, 20_000_400, 39_999_999],
            &[10_000_400, 20_000_400, 40_000_000],
            &[10_000_400, 20_000_400, 40_000_941],
            &[],
        ] {
            assert!(is_failed(&judge(wrong)), "{wrong:?}");
        }
    }

    #[test]
    fn the_first_thread_may_loop_as_often_as_the_last() {
        let judge = |first| {
            let all = [5_000_310, first, 20_000_310, 40_000_310, 80_000_310];
            judge(Perfctr, "zero_pthreads", &with_status(&counts(&all), 0))
        };
        assert_eq!(judge(10_000_310), Verdict::Passed);
        assert_eq!(judge(5_000_310), Verdict::Passed);
        assert!(is_failed(&judge(15_000_310)));
        let not_a_number = "PAPI_TOT_INS : -1\nPASSED\nexit status 0\n";
        assert!(is_failed(&super::judge(Perfctr, "zero", not_a_number)));
    }

    #[test]
    fn each_component_has_its_own_expectations() {
        let judge = |component, rest| {
            judge(component, "zero", &with_status(&counts(&[40 * UNIT + rest]), 0))
        };
        assert_eq!(judge(PerfEvent, 1_300), Verdict::Passed);
        assert!(is_failed(&judge(PerfEvent, 1_301)));
        assert_eq!(judge(Perfctr, 1_301), Verdict::Passed);
        let printed = "Using 11 events\nFAILED!!!\nexit status 1\n";
        assert!(is_failed(&super::judge(PerfEvent, "sdsc-mpx", printed)));
    }

    #[test]
    fn status_and_text_go_together() {
        assert_eq!(judge(Perfctr, "first", "PASSED\nexit status 0\n"), Verdict::Passed);
        let skipped = judge(Perfctr, "first", "no such event\nSKIPPED\nexit status 0\n");
        assert_eq!(skipped, Verdict::Skipped("no such event; SKIPPED".to_owned()));
        let child = judge(Perfctr, "first", "no event\nSKIPPED\nPASSED\nexit status 0\n");
        assert_eq!(child, Verdict::Skipped("no event; SKIPPED".to_owned()));
        for failed in [
            "",
            "exit status 0\n",
            "PASSED\nexit status 139\n",
            "PASSED\nexit status 124\n",
            "PASSED\nFAILED\nexit status 0\n",
            "SKIPPED\nFAILED\nexit status 0\n",
            "SKIPPED\nexit status 1\n",
            "FAILED\nexit status 1\n",
        ] {
            assert!(is_failed(&judge(Perfctr, "first", failed)), "{failed}");
        }
    }

    #[test]
    fn what_cannot_pass_fails_in_its_own_way_only() {
        let printed = "Using 11 events\nFAILED!!!\n";
        let cannot = |status| judge(Perfctr, "sdsc-mpx", &with_status(printed, status));
        assert!(matches!(cannot(1), Verdict::CannotPass(_)));
        for status in [0, 124, 137, 139] {
            assert!(is_failed(&cannot(status)), "{status}");
        }
        assert!(is_failed(&judge(Perfctr, "sdsc-mpx", "Using 11 events\nexit status 1\n")));
        assert!(is_failed(&judge(Perfctr, "sdsc-mpx", "FAILED!!!\nexit status 1\n")));
    }
}
