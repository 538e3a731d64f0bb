// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Keeps the truth: the ledgers that readings are compared with.
//!
//! They are kept by the machine as events occur, never by looking at a counter or a page, and
//! are 64 bits wide.

use shared_abi::CounterConfig;
use shared_abi::ioctl::{
    CONTROL_KEEP_PERIOD, CONTROL_KEEP_TSC, CONTROL_RING, CONTROL_TSC, Control,
};
use shared_abi::limits::MAX_COUNTERS;

use crate::model::{PERIOD_TOLD, SLOTS};
use crate::pmu::{Events, OS, USR, event_of_counter};

/// The ledgers of one thread and one vCPU at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    /// All events of the thread in user mode so far.
    pub thread_user: Events,
    /// All events of the vCPU in user mode so far.
    pub vcpu_user: Events,
    /// All events of the vCPU in its kernel so far.
    pub vcpu_kernel: Events,
    /// All interrupts of the vCPU's user mode so far that count as instructions. The module
    /// subtracts them where only user mode is counted.
    pub vcpu_surplus: Events,
}

/// The moments at which somebody last read counters and clock.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    /// The moments, by physical counter.
    pub counter: [Moment; SLOTS],
    /// The TSC ticks for which the vCPU had run.
    pub tsc: u64,
}

/// The moments at which a guest kernel read during one entry.
#[derive(Debug, Default)]
pub struct Sampling {
    latest: Looks,
    /// The reads before the first write to a thread's page belong to a suspension. The reads before
    /// the last write belong to a resumption.
    published: Option<(Box<Looks>, Box<Looks>)>,
    fresh: bool,
}

impl Sampling {
    /// Notes that a counter was read.
    pub fn counter(&mut self, counter: usize, moment: Moment) {
        self.latest.counter[counter] = moment;
    }

    /// Notes that the clock was read, which every sample does first.
    pub fn tsc(&mut self, tsc: u64) {
        self.latest.tsc = tsc;
        self.fresh = true;
    }

    /// Notes that a thread's page is written: the samples until now belong together.
    pub fn publish(&mut self) {
        if std::mem::take(&mut self.fresh) {
            let looks = Box::new(self.latest.clone());
            match &mut self.published {
                Some((_, last)) => *last = looks,
                None => self.published = Some((looks.clone(), looks)),
            }
        }
    }

    /// Returns whether a sample was published during this entry.
    pub fn has_published(&self) -> bool {
        self.published.is_some()
    }

    /// Returns the moments of the entry's first sample, or of its only one if nothing was
    /// published.
    pub fn first(&self) -> &Looks {
        self.published.as_ref().map_or(&self.latest, |(first, _)| first)
    }

    /// Returns the moments of its last sample.
    pub fn last(&self) -> &Looks {
        self.published.as_ref().map_or(&self.latest, |(_, last)| last)
    }

    /// Begins another entry.
    pub fn restart(&mut self) {
        self.published = None;
        self.fresh = false;
    }
}

/// One virtual counter's truth.
#[derive(Clone, Copy, Debug)]
struct Counter {
    /// The configuration that was asked for.
    asked: CounterConfig,
    physical: usize,
    event: Option<usize>,
    rings: u64,
    start: u64,
    /// The number of events between two overflows, or 0 if it does not sample.
    period: u64,
    /// The value at which it overflows next.
    next: u64,
}

impl Counter {
    /// Returns the ledger of which its value is an interval.
    fn ledger(&self, moment: &Moment) -> u64 {
        let Some(event) = self.event else { return 0 };
        match self.rings {
            USR => moment.thread_user[event],
            OS => moment.vcpu_kernel[event],
            _ => {
                let both = moment.vcpu_user[event].wrapping_add(moment.vcpu_kernel[event]);
                both.wrapping_add(moment.vcpu_surplus[event])
            }
        }
    }

    /// Returns whether the counter follows the thread. User-mode events are the thread's own,
    /// whatever its kernel does. A counter that also counts in the kernel is charged to the thread
    /// from one read by the kernel to the next.
    fn follows_thread(&self) -> bool {
        self.rings == USR
    }
}

/// A thread's truth.
#[derive(Debug)]
pub struct Truth {
    counters: Vec<Counter>,
    sums: [u64; MAX_COUNTERS],
    tsc: bool,
    tsc_sum: u64,
    tsc_start: u64,
    active: bool,
    stopped: bool,
    /// Whether an overflow has paused it.
    paused: bool,
    /// Whether the thread is told of overflows by records.
    recorded: bool,
    /// The counters that have overflowed, and of which the thread was not told yet, or which it has
    /// not let continue yet.
    pending: u32,
}

impl Truth {
    /// Makes the truth of a thread whose counters have just been created.
    pub fn new() -> Self {
        Self {
            counters: Vec::new(),
            sums: [0; MAX_COUNTERS],
            tsc: false,
            tsc_sum: 0,
            tsc_start: 0,
            active: false,
            stopped: true,
            paused: false,
            recorded: false,
            pending: 0,
        }
    }

    /// Returns the number of virtual counters in use.
    pub fn used(&self) -> usize {
        self.counters.len()
    }

    /// Returns whether its counters were started and not stopped.
    pub fn is_counting(&self) -> bool {
        !self.stopped
    }

    /// Returns the value of virtual counter `index` when somebody read at these moments.
    pub fn counter(&self, index: usize, looks: &Looks) -> u64 {
        let counter = &self.counters[index];
        let running = !self.stopped && !self.paused && (self.active || counter.follows_thread());
        let interval = if running {
            counter.ledger(&looks.counter[counter.physical]).wrapping_sub(counter.start)
        } else {
            0
        };
        self.sums[index].wrapping_add(interval)
    }

    /// Returns whether its clock is counted.
    pub fn has_tsc(&self) -> bool {
        self.tsc
    }

    /// Returns the value of its clock.
    pub fn tsc(&self, looks: &Looks) -> u64 {
        let running = self.active && self.tsc;
        let interval = if running { looks.tsc.wrapping_sub(self.tsc_start) } else { 0 };
        self.tsc_sum.wrapping_add(interval)
    }

    /// Returns what is published while its counters are suspended: time, then all counters.
    pub fn published(&self, now: &Moment) -> Vec<u64> {
        let looks = Looks { counter: [*now; SLOTS], tsc: 0 };
        let mut values = vec![0; 1 + MAX_COUNTERS];
        values[0] = self.tsc_sum;
        for index in 0..self.counters.len() {
            values[1 + index] = self.counter(index, &looks);
        }
        values
    }

    /// Notes that its counters continue from `looks`.
    pub fn resume(&mut self, looks: &Looks) {
        self.active = true;
        self.tsc_start = looks.tsc;
        for counter in self.counters.iter_mut().filter(|counter| !counter.follows_thread()) {
            counter.start = counter.ledger(&looks.counter[counter.physical]);
        }
    }

    /// Notes that its counters are suspended at `looks`.
    pub fn suspend(&mut self, looks: &Looks) {
        if !self.active {
            return;
        }
        self.tsc_sum = self.tsc(looks);
        self.notice(looks);
        for index in 0..self.counters.len() {
            if !self.counters[index].follows_thread() {
                self.sums[index] = self.counter(index, looks);
            }
        }
        self.active = false;
    }

    /// Notes that its counters are stopped. `now` is the present moment.
    pub fn stop(&mut self, now: &Moment) {
        let looks = Looks { counter: [*now; SLOTS], tsc: 0 };
        for index in 0..self.counters.len() {
            self.sums[index] = self.counter(index, &looks);
        }
        self.stopped = true;
        // The overflow that the thread was told of is over.
        if std::mem::take(&mut self.paused) {
            self.pending = 0;
        }
        self.tsc = false;
    }

    /// Returns the counters that have overflowed when somebody read at these moments.
    fn due(&self, looks: &Looks) -> u32 {
        self.past(looks, |_| 0)
    }

    /// Returns the counters whose overflows must be on their way. Several overflows of a short
    /// period are reported together.
    pub fn overdue(&self, looks: &Looks) -> u32 {
        self.past(looks, |period| match period {
            PERIOD_TOLD.. => 0,
            _ => (PERIOD_TOLD - 1).next_multiple_of(period),
        })
    }

    /// Returns the counters that have overflowed, by more events than `late` returns for a period.
    fn past(&self, looks: &Looks, late: impl Fn(u64) -> u64) -> u32 {
        let past = |index: &usize| {
            let Counter { period, next, .. } = self.counters[*index];
            let over = self.counter(*index, looks).wrapping_sub(next) as i64;
            period != 0 && over >= late(period) as i64
        };
        (0..self.counters.len()).filter(past).fold(self.pending, |all, index| all | 1 << index)
    }

    fn notice(&mut self, looks: &Looks) {
        self.pending = self.due(looks);
        for index in 0..self.counters.len() {
            let value = self.counter(index, looks);
            let counter = &mut self.counters[index];
            let late = value.wrapping_sub(counter.next);
            if counter.period != 0 && late as i64 >= 0 {
                let periods = late / counter.period + 1;
                counter.next = counter.next.wrapping_add(periods.wrapping_mul(counter.period));
            }
        }
    }

    /// Returns the counters of which the thread still has to be told.
    pub fn untold(&self) -> u32 {
        let stopped = self.stopped && !self.recorded;
        if self.paused || stopped { 0 } else { self.pending }
    }

    /// Returns whether it is told of overflows by records.
    pub fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// Notes that the thread is told of an overflow by records.
    pub fn record(&mut self) {
        self.pending = 0;
    }

    /// Returns whether an overflow has paused the counters.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Notes that the thread is told of an overflow, which pauses its counters.
    pub fn pause(&mut self, now: &Moment) {
        let looks = Looks { counter: [*now; SLOTS], tsc: 0 };
        for index in 0..self.counters.len() {
            self.sums[index] = self.counter(index, &looks);
        }
        self.paused = true;
    }

    /// Notes that the thread lets its counters continue.
    pub fn go_on(&mut self, now: &Moment) {
        self.paused = false;
        self.pending = 0;
        for counter in &mut self.counters {
            counter.start = counter.ledger(now);
        }
    }

    /// Returns whether these very counters were asked for last.
    fn asked_for(&self, listed: &[CounterConfig]) -> bool {
        let same = |(one, two): (&Counter, &CounterConfig)| one.asked == *two;
        self.counters.len() == listed.len() && self.counters.iter().zip(listed).all(same)
    }

    /// Notes that a control that counts something has succeeded at `now`. `failed` says whether
    /// there were no numbers before.
    pub fn control(&mut self, control: &Control, now: &Moment, failed: bool) {
        let tsc = control.flags & CONTROL_TSC != 0;
        let had_tsc = self.tsc && !failed;
        self.stop(now);
        let listed = &control.counter[..control.counters as usize];
        let keeps = control.flags & CONTROL_KEEP_PERIOD != 0 && !failed && self.asked_for(listed);
        let left: Vec<u64> =
            self.counters.iter().zip(self.sums).map(|(c, sum)| c.next.wrapping_sub(sum)).collect();
        if !keeps {
            self.pending = 0;
        }
        if !(tsc && had_tsc) && control.flags & CONTROL_KEEP_TSC == 0 {
            self.tsc_sum = 0;
        }
        for (index, sum) in self.sums.iter_mut().enumerate() {
            if control.preserve >> index & 1 == 0 {
                *sum = 0;
            }
        }
        self.tsc = tsc;
        self.stopped = false;
        self.recorded = control.flags & CONTROL_RING != 0;
        self.counters = listed
            .iter()
            .zip(self.sums)
            .enumerate()
            .map(|(index, (counter, sum))| {
                let physical = counter.slot as usize;
                let ahead = if keeps { left[index] } else { counter.period };
                let mut truth = Counter {
                    asked: *counter,
                    physical,
                    event: event_of_counter(physical, counter.evntsel),
                    rings: counter.evntsel & (USR | OS),
                    start: 0,
                    period: counter.period,
                    next: sum.wrapping_add(ahead),
                };
                truth.start = truth.ledger(now);
                truth
            })
            .collect();
    }
}
