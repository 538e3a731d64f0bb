// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Running seeds.

use std::rc::Rc;

use crate::choice::{Chooser, Decision};
use crate::fiber::Fiber;
use crate::machine::{Machine, Violation};
use crate::shape::Shape;

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Steps made.
    pub steps: u64,
    /// Readings that were compared with the truth.
    pub readings: u64,
    /// The rule that was broken.
    pub violation: Option<Violation>,
    /// What was decided.
    pub decisions: Vec<Decision>,
}

/// Runs machines, one after another, on the same stacks.
#[derive(Default)]
pub struct Runner {
    fibers: Vec<Fiber>,
}

impl Runner {
    /// Runs the machine of a seed.
    pub fn seed(&mut self, seed: u64, steps: u64, trace: bool) -> Outcome {
        let shape = Shape::random(seed);
        let chooser = Chooser::random(seed, shape.period);
        self.run(&shape, chooser, steps, trace)
    }

    /// Runs it with decisions made before.
    pub fn replay(&mut self, seed: u64, log: &[Decision], steps: u64, trace: bool) -> Outcome {
        self.run(&Shape::random(seed), Chooser::replay(log.to_vec()), steps, trace)
    }

    fn run(&mut self, shape: &Shape, chooser: Chooser, steps: u64, trace: bool) -> Outcome {
        let machine = Machine::run(shape, chooser, steps, trace, &mut self.fibers);
        let violation = machine.violation.borrow().clone();
        let decisions = match &*machine.chooser.borrow() {
            Chooser::Random { log, .. } | Chooser::Replay { log, .. } => log.clone(),
        };
        assert_eq!(Rc::strong_count(&machine), 1, "every job has ended");
        Outcome {
            steps: machine.steps.get(),
            readings: machine.readings.get(),
            violation,
            decisions,
        }
    }
}
