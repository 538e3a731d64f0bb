// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs code that can be stopped between any two of its steps and resumed later. It has a stack of
//! its own.

use std::cell::Cell;

use generator::{Generator, Gn};

/// The size of a stack, unit: words. A core's deepest frame holds an argument of less than a
/// kilobyte.
const STACK_WORDS: usize = 0x2000;

type Job = Box<dyn FnOnce()>;

thread_local! {
    /// The job of the fiber that is about to be resumed.
    static INBOX: Cell<Option<Job>> = const { Cell::new(None) };
}

/// A stack on which one job after another runs. It is made for the first one.
pub struct Fiber {
    job: Option<Job>,
    /// The coroutine, which yields whether the job is finished.
    coroutine: Option<Generator<'static, (), bool>>,
    busy: bool,
}

#[expect(deprecated, reason = "the cores' accesses have no scope to hand down")]
fn pass(finished: bool) {
    generator::yield_with(finished);
}

impl Fiber {
    /// Makes a stack without a job.
    pub fn new() -> Self {
        Self { job: None, coroutine: None, busy: false }
    }

    /// Gives it a job, which runs when the fiber is resumed.
    pub fn start(&mut self, job: Job) {
        assert!(!self.busy, "a fiber runs one job at a time");
        self.job = Some(job);
        self.busy = true;
    }

    /// Returns whether it has a job.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Runs the job until it pauses or is finished.
    pub fn resume(&mut self) {
        assert!(self.busy, "only a fiber with a job can run");
        INBOX.set(self.job.take());
        let coroutine = self.coroutine.get_or_insert_with(|| {
            Gn::new_opt(STACK_WORDS, || {
                while let Some(job) = INBOX.take() {
                    job();
                    pass(true);
                }
                true
            })
        });
        if coroutine.resume() != Some(false) {
            self.busy = false;
        }
    }
}

impl Default for Fiber {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        // Without a job the coroutine returns from its loop. A coroutine in the middle of a job
        // cannot be unwound, so its stack is lost. The machine lets every job finish first.
        if let Some(coroutine) = self.coroutine.as_mut().filter(|_| !self.busy) {
            coroutine.resume();
        }
    }
}

/// Stops the job that calls this until its fiber is resumed.
pub fn pause() {
    pass(false);
}
