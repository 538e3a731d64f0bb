// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts regions of known length in threads that sample themselves.

use std::mem::forget;
use std::thread;

use crate::region::Region;
use crate::step::{Executed, Kind, Trace};
use anyhow::{Result, bail, ensure};
use perfctr::{Event, PhysSlot, Session};

use crate::sampled::{self, Noted, SIGNAL, WAY_MAX};

const INSTRUCTIONS: Event = Event::INSTRUCTIONS.user();
const BRANCHES: Event = Event::BRANCHES.user();

/// Returns a general counter's slot.
const fn general(n: u32) -> PhysSlot {
    PhysSlot::general(n).expect("every page has two general counters")
}

/// The counters of a thread: one of instructions that samples, another that does not, and one of
/// branches.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    events: [Event; 3],
    periods: [u64; 3],
    /// The indices of the counters.
    sampling: usize,
    beside: usize,
    branches: usize,
}

impl Shape {
    /// Returns the `kind`th arrangement of counters. Instructions sample with this period, and in
    /// one arrangement branches do as well.
    pub const fn new(kind: usize, period: u64) -> Self {
        let sampled = INSTRUCTIONS.every(period);
        match kind % 3 {
            0 => Self {
                events: [sampled, INSTRUCTIONS.on(general(0)), BRANCHES.on(general(1))],
                periods: [period, 0, 0],
                sampling: 0,
                beside: 1,
                branches: 2,
            },
            1 => Self {
                events: [BRANCHES.on(general(0)), sampled.on(general(1)), INSTRUCTIONS],
                periods: [0, period, 0],
                sampling: 1,
                beside: 2,
                branches: 0,
            },
            _ => Self {
                events: [
                    INSTRUCTIONS.on(general(1)),
                    BRANCHES.on(general(0)).every(period),
                    sampled,
                ],
                periods: [0, period, period],
                sampling: 2,
                beside: 0,
                branches: 1,
            },
        }
    }

    /// Starts counting and sampling from 0.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::start_sampling`].
    pub fn start(&self, session: &mut Session) -> Result<()> {
        sampled::expect(&self.periods, self.sampling);
        Ok(session.start_sampling(&self.events, SIGNAL)?)
    }
}

/// A measured region.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    region: Region,
    shape: Shape,
    counts: [u64; 3],
    noted: Noted,
}

/// Counts one region from start to stop.
///
/// # Errors
///
/// The session's error.
pub fn round(session: &mut Session, shape: &Shape, region: Region) -> Result<Round> {
    count(session, shape, region)?;
    let noted = sampled::finish();
    Ok(Round { region, shape: *shape, counts: session.read::<3>()?.counts, noted })
}

/// Counts. This is the one copy of that code.
#[inline(never)]
fn count(session: &mut Session, shape: &Shape, region: Region) -> Result<()> {
    let mut store = 0;
    shape.start(session)?;
    region.execute(&mut store);
    Ok(session.stop()?)
}

/// What is counted in addition to a region, known from the machine code: instructions and branches.
#[derive(Clone, Debug, Default)]
pub struct Constants {
    /// What is counted from the start to the region and from there to the stop.
    once: [u64; 2],
    /// The counts after each signal, by the number of instructions from where the counters continue
    /// to where the thread does.
    way: Vec<[u64; 2]>,
}

impl Constants {
    const SHAPE: Shape = Shape::new(0, 1_000);
    /// The regions that are stepped: one shorter than a period, and one longer than a period and
    /// shorter than two.
    const SILENT: Region = Region { first: 50, second: 50 };
    const SAMPLED: Region = Region { first: 600, second: 50 };

    /// Finds the constants of every thread but the first. In the first thread memory comes from
    /// elsewhere, so other instructions are executed. This has to be called while there are no
    /// other threads, since stepping takes long beside them.
    ///
    /// # Errors
    ///
    /// A thread cannot count, or cannot be stepped.
    ///
    /// # Panics
    ///
    /// The thread that finds them panics.
    pub fn find() -> Result<Self> {
        thread::scope(|scope| scope.spawn(Self::of_this_thread).join().expect("it does not panic"))
    }

    /// Opens a session of a thread whose rounds will be like those stepped: the first start has no
    /// earlier counters to forget.
    ///
    /// # Errors
    ///
    /// The session's error.
    pub fn open() -> Result<Session> {
        let mut session = sampled::open()?;
        count(&mut session, &Self::SHAPE, Self::SILENT)?;
        Ok(session)
    }

    fn of_this_thread() -> Result<Self> {
        let once = {
            let trace = Self::step(Self::SILENT)?;
            let calls = trace.places(Kind::SystemCall);
            let [start, stop, _exit] = calls[..] else { bail!("{} calls in a round", calls.len()) };
            trace.between(start + 1, stop + 1).less(Self::SILENT.executed())
        };
        let trace = Self::step(Self::SAMPLED)?;
        let calls = trace.places(Kind::SystemCall);
        let [_start, _look, go_on, return_, _stop, _exit] = calls[..] else {
            bail!("{} calls in a round with a signal", calls.len())
        };
        let both = |of: Executed| [of.instructions, of.branches];
        let way = (go_on + 1..=return_ + 1).map(|to| both(trace.between(go_on + 1, to)));
        let way: Vec<_> = way.collect();
        ensure!(way.len() <= WAY_MAX, "{} instructions after a signal", way.len() - 1);
        Ok(Self { once: both(once), way })
    }

    /// Returns the counts after a signal that no other signal follows on the way.
    pub fn per_signal(&self) -> [u64; 2] {
        *self.way.last().expect("a way has an end")
    }

    /// Returns the counts after this many signals, some of which came on the way from the one
    /// before. The rest of that way was executed with the counters paused.
    fn after_signals(&self, signals: u64, on_the_way: &[u64; WAY_MAX]) -> [u64; 2] {
        let each_signal = self.per_signal();
        let mut all = each_signal.map(|each| each * signals);
        for (done, times) in self.way.iter().zip(on_the_way) {
            for (kind, all) in all.iter_mut().enumerate() {
                *all -= (each_signal[kind] - done[kind]) * times;
            }
        }
        all
    }

    /// Steps a second round in a child of this thread.
    fn step(region: Region) -> Result<Trace> {
        let body = |mut session: Session| {
            let counted = count(&mut session, &Self::SHAPE, region);
            forget(session);
            counted
        };
        Trace::of(Self::open, body, |_| ())
    }
}

impl Round {
    /// Returns how far the sampling counter, the one beside it, and that of branches are from the
    /// truth.
    pub fn errors(&self, constants: &Constants) -> [u64; 3] {
        let Shape { sampling, beside, branches, .. } = self.shape;
        // If a signal comes in the stop itself, nothing is counted after it.
        let signals = self.noted.signals
            - u64::from(self.noted.signals > 0 && self.noted.last == self.counts[sampling]);
        let after_signals = constants.after_signals(signals, &self.noted.after);
        let off = |counter: usize, truth: u64, kind: usize| {
            let expected = truth + constants.once[kind] + after_signals[kind];
            self.counts[counter].abs_diff(expected)
        };
        [
            off(sampling, self.region.instructions(), 0),
            off(beside, self.region.instructions(), 0),
            off(branches, self.region.branches(), 1),
        ]
    }

    /// Returns the number of periods that passed together with one before them. After the last
    /// signal, the first period that passes has none before it, and it has no signal when the
    /// counters are stopped.
    pub fn merged(&self) -> u64 {
        let after_last = self.overflows().lost - self.noted.lost;
        self.noted.lost + after_last.saturating_sub(1)
    }

    /// Returns what the sampling counter has counted since its last period ended.
    pub fn since_last_period(&self) -> u64 {
        let sampling = self.shape.sampling;
        self.counts[sampling] % self.shape.periods[sampling]
    }

    /// Returns the overflows of this round, with the number of its periods.
    pub fn overflows(&self) -> Overflows {
        let periods = self.counts.iter().zip(self.shape.periods);
        let expected = periods.filter_map(|(count, period)| count.checked_div(period)).sum();
        let Noted { signals, overflows, lost, extra, unread, .. } = self.noted;
        // This many periods had passed at the last signal. The others passed after it.
        let seen = overflows + lost - extra;
        Overflows {
            expected,
            signals,
            signalled: overflows,
            lost: lost + expected - seen,
            extra,
            unread,
        }
    }
}

/// Overflows, and the periods for which they have to stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overflows {
    /// How often the periods fit into the counts.
    pub expected: u64,
    /// The number of signals.
    pub signals: u64,
    /// The number of overflows that these have reported.
    pub signalled: u64,
    /// The number of periods that no signal has reported in their turn.
    pub lost: u64,
    /// The number of overflows that were reported although no period had passed.
    pub extra: u64,
    /// The number of signals at which the counters could not be read.
    pub unread: u64,
}

impl Overflows {
    /// Adds the numbers of another round or thread.
    pub fn add(&mut self, other: &Self) {
        self.expected += other.expected;
        self.signals += other.signals;
        self.signalled += other.signalled;
        self.lost += other.lost;
        self.extra += other.extra;
        self.unread += other.unread;
    }

    /// Returns whether every period was reported once.
    pub fn are_exact(&self) -> bool {
        self.signalled == self.expected && self.lost == 0 && self.extra == 0 && self.unread == 0
    }
}
