// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Searches near runs that were new: it keeps, changes and continues the decisions of each run that
//! had features (`coverage`) which no earlier run had.

use crate::choice::{Chooser, Decision};
use crate::machine::Violation;
use crate::rng::Rng;
use crate::run::{Runner, shares};

/// The number of steps of one run. A machine does most of what it can do early, or never.
const STEPS: u64 = 4_000;

/// The number of runs that are kept.
const CORPUS_MAX: usize = 4_096;

/// A run that is kept.
struct Kept {
    seed: u64,
    log: Vec<Decision>,
    /// The number of its new features, minus the number of times that it was tried.
    worth: u64,
}

/// The results of a guided search.
#[derive(Debug, Default)]
pub struct Guided {
    /// Runs made.
    pub runs: u64,
    /// Steps made.
    pub steps: u64,
    /// Readings compared with the truth.
    pub readings: u64,
    /// Features found by the worker that found most.
    pub features: u64,
    /// The broken rules: the seed of the machine, the decisions, and the rule.
    pub violations: Vec<(u64, Vec<Decision>, Violation)>,
}

/// Searches on `threads` threads until `steps` steps are made. If `blind`, every run starts from a
/// new seed.
pub fn guided(first: u64, steps: u64, threads: usize, blind: bool) -> Guided {
    let work = |worker: usize| one_worker(first + worker as u64, steps / threads as u64, blind);
    let mut all = Guided::default();
    for part in shares(threads, work) {
        all.runs += part.runs;
        all.steps += part.steps;
        all.readings += part.readings;
        all.features = all.features.max(part.features);
        all.violations.extend(part.violations);
    }
    all
}

fn one_worker(first: u64, steps: u64, blind: bool) -> Guided {
    let mut runner = Runner::default();
    let mut rng = Rng::new(first ^ 0x0c0f_fee0);
    let mut corpus: Vec<Kept> = Vec::new();
    let (mut result, mut seen) = (Guided::default(), Vec::new());
    while result.steps < steps && result.violations.is_empty() {
        let (seed, log) = if blind || corpus.is_empty() || rng.one_in(2) {
            (rng.next() >> 32, Vec::new())
        } else {
            // A run that has led to many new features is tried more often, until it is used up.
            let any = (0..4).map(|_| rng.index(corpus.len()));
            let best = any.max_by_key(|&kept| corpus[kept].worth).unwrap_or(0);
            let kept = &mut corpus[best];
            kept.worth -= kept.worth / 4;
            (kept.seed, changed(kept.log.clone(), &mut rng))
        };
        let (outcome, coverage) = runner.guided(seed, log, Rng::new(rng.next()), STEPS);
        result.runs += 1;
        result.steps += outcome.steps;
        result.readings += outcome.readings;
        let new = coverage.add_to(&mut seen);
        result.features += new;
        if let Some(violation) = outcome.violation {
            result.violations.push((seed, outcome.decisions, violation));
        } else if new > 0 {
            if corpus.len() == CORPUS_MAX {
                corpus.swap_remove(rng.index(CORPUS_MAX));
            }
            corpus.push(Kept { seed, log: outcome.decisions, worth: new });
        }
    }
    result
}

/// Changes a log of decisions: ends it early, changes one decision, or removes one.
fn changed(mut log: Vec<Decision>, rng: &mut Rng) -> Vec<Decision> {
    if log.is_empty() {
        return log;
    }
    let place = rng.index(log.len());
    match rng.below(3) {
        0 => log.truncate(place),
        1 => log[place].1 = rng.next(),
        _ => drop(log.remove(place)),
    }
    log
}

/// Returns a chooser that decides as before, and then by a seed.
pub fn chooser(log: Vec<Decision>, rng: Rng, period: u64) -> Chooser {
    Chooser::Guided { log, next: 0, rng, left: 1, period, made: Vec::new() }
}
