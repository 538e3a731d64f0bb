// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs seeds.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::choice::{Chooser, Decision};
use crate::coverage::Coverage;
use crate::fiber::Fiber;
use crate::machine::{Machine, Violation};
use crate::planted::Bug;
use crate::rng::Rng;
use crate::search::{Choices, Path};
use crate::shape::Shape;

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Steps made.
    pub steps: u64,
    /// Readings that were compared with the truth.
    pub readings: u64,
    /// The rule that was broken.
    pub violation: Option<Violation>,
    /// The decisions that were made.
    pub decisions: Vec<Decision>,
}

impl Outcome {
    fn of(machine: &Machine, decisions: Vec<Decision>) -> Self {
        Self {
            steps: machine.steps.get(),
            readings: machine.readings.get(),
            violation: machine.violation.borrow().clone(),
            decisions,
        }
    }
}

thread_local! {
    /// The seed that runs, for the message of a panic.
    static RUNNING: Cell<u64> = const { Cell::new(0) };
}

/// Makes a panic say which seed it came from.
pub fn name_seed_in_panics() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        eprintln!("seed {} panics", RUNNING.get());
        hook(info);
    }));
}

/// Runs machines, one after another, on the same stacks.
#[derive(Default)]
pub struct Runner {
    fibers: Vec<Fiber>,
}

impl Runner {
    /// Runs the machine of a seed.
    pub fn seed(&mut self, seed: u64, steps: u64, trace: bool) -> Outcome {
        RUNNING.set(seed);
        let shape = Shape::random(seed);
        let chooser = Chooser::random(seed, shape.period);
        self.run(&shape, chooser, steps, trace)
    }

    /// Runs the machine with decisions made before, and then with others. Returns what was covered,
    /// too.
    pub(crate) fn guided(
        &mut self,
        seed: u64,
        log: Vec<Decision>,
        rng: Rng,
        steps: u64,
    ) -> (Outcome, Coverage) {
        let shape = Shape::random(seed);
        let chooser = crate::guided::chooser(log, rng, shape.period);
        let machine = Machine::run(&shape, chooser, steps, false, &mut self.fibers);
        let decisions = match &mut *machine.chooser.borrow_mut() {
            Chooser::Guided { made, .. } => std::mem::take(made),
            _ => Vec::new(),
        };
        let outcome = Outcome::of(&machine, decisions);
        let coverage = Rc::into_inner(machine).expect("every job has ended").coverage;
        (outcome, coverage)
    }

    /// Runs the machine of a seed with decisions made before.
    pub fn replay(&mut self, seed: u64, log: &[Decision], steps: u64, trace: bool) -> Outcome {
        self.run(&Shape::random(seed), Chooser::replay(log.to_vec()), steps, trace)
    }

    /// Looks for a decision log that is as short as possible and still breaks a rule: drops ever
    /// smaller parts of the log, as long as a rule is still broken.
    pub fn minimise(&mut self, seed: u64, found: &Outcome) -> Outcome {
        let mut best = found.clone();
        let mut part = best.decisions.len().div_ceil(2);
        while part > 0 {
            let mut from = 0;
            while from < best.decisions.len() {
                let mut log = best.decisions.clone();
                log.drain(from..(from + part).min(log.len()));
                let outcome = self.replay(seed, &log, best.steps, false);
                if outcome.violation.is_some() {
                    log.retain(|decision| decision.0.step <= outcome.steps);
                    best = Outcome { decisions: log, ..outcome };
                } else {
                    from += part;
                }
            }
            part /= 2;
        }
        best
    }

    /// Runs a machine as a search demands. Also returns the choices that were made.
    pub(crate) fn explore(&mut self, shape: &Shape, path: Path) -> (Outcome, Choices) {
        let machine = Machine::run(shape, Chooser::Search(path), u64::MAX, false, &mut self.fibers);
        let choices = match &mut *machine.chooser.borrow_mut() {
            Chooser::Search(path) => path.take_choices(),
            _ => Choices::new(),
        };
        (Outcome::of(&machine, Vec::new()), choices)
    }

    fn run(&mut self, shape: &Shape, chooser: Chooser, steps: u64, trace: bool) -> Outcome {
        let machine = Machine::run(shape, chooser, steps, trace, &mut self.fibers);
        let decisions = match &*machine.chooser.borrow() {
            Chooser::Random { log, .. } | Chooser::Replay { log, .. } => log.clone(),
            Chooser::Guided { .. } | Chooser::Search(_) => Vec::new(),
        };
        assert_eq!(Rc::strong_count(&machine), 1, "every job has ended");
        Outcome::of(&machine, decisions)
    }
}

/// The results of many seeds.
#[derive(Debug, Default)]
pub struct Campaign {
    /// Seeds run.
    pub seeds: u64,
    /// Steps made.
    pub steps: u64,
    /// Readings compared with the truth.
    pub readings: u64,
    /// Seeds that broke a rule, lowest first.
    pub violations: Vec<(u64, Violation)>,
}

/// Makes each of some threads do its share of the work, and returns the results.
pub(crate) fn shares<R: Send>(threads: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let (work, bug) = (&work, Bug::switched_on());
        let one = |worker| {
            scope.spawn(move || {
                Bug::switch(bug);
                work(worker)
            })
        };
        let workers: Vec<_> = (0..threads).map(one).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, R>| {
            worker.join().expect("a worker does not panic")
        };
        workers.into_iter().map(join).collect()
    })
}

/// Runs `count` seeds from `first` on, `steps` steps each, on `threads` threads.
pub fn campaign(first: u64, count: u64, steps: u64, threads: usize) -> Campaign {
    let next = AtomicU64::new(first);
    let work = || {
        let (mut runner, mut part) = (Runner::default(), Campaign::default());
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= first + count {
                return part;
            }
            let outcome = runner.seed(seed, steps, false);
            part.seeds += 1;
            part.steps += outcome.steps;
            part.readings += outcome.readings;
            part.violations.extend(outcome.violation.map(|violation| (seed, violation)));
        }
    };
    let mut total = Campaign::default();
    for part in shares(threads, |_| work()) {
        total.seeds += part.seeds;
        total.steps += part.steps;
        total.readings += part.readings;
        total.violations.extend(part.violations);
    }
    total.violations.sort_by_key(|violation| violation.0);
    total
}

/// The result of looking for a planted bug.
#[derive(Debug)]
pub struct Hunt {
    /// The bug.
    pub bug: Bug,
    /// Steps made over all seeds until it was found, or until the search was given up.
    pub steps: u64,
    /// The seed that found it, and how.
    pub found: Option<(u64, Outcome)>,
    /// Whether its decisions, when they were repeated, broke the same rule after the same step.
    pub replays: bool,
}

/// Looks for a planted bug in at most `seeds` seeds of `steps` steps.
pub fn hunt(bug: Bug, seeds: u64, steps: u64) -> Hunt {
    Bug::switch(Some(bug));
    let mut runner = Runner::default();
    let mut hunt = Hunt { bug, steps: 0, found: None, replays: false };
    for seed in 0..seeds {
        let outcome = runner.seed(seed, steps, false);
        hunt.steps += outcome.steps;
        if outcome.violation.is_some() {
            let again = runner.replay(seed, &outcome.decisions, steps, false);
            hunt.replays = again.violation == outcome.violation;
            hunt.found = Some((seed, outcome));
            break;
        }
    }
    Bug::switch(None);
    hunt
}
