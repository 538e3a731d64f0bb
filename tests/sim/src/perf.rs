// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Simulates Linux's perf in a guest: its handling of events around the module's core, its books of
//! them, and the truth about each event.
//!
//! An event belongs to a task, or to a vCPU, where it counts whoever executes. A task's events are
//! in its *context*. A context that was inherited has a copy of each event. If two tasks whose
//! contexts are copies of each other switch directly, perf exchanges the contexts, and the events
//! stay on the vCPU. Events are in *groups*, which perf adds as a whole or not at all; most groups
//! have one event. Groups that find no counters wait for their turn.
//!
//! All events here count user mode only. So it does not matter when the kernel reads a counter,
//! and the truth is what was executed while the event was scheduled in.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use guest_kmod::LocalVcpu;
use guest_kmod::perf::{EventAttr, EventConfig, EventTime, LocalEvents, Progress, Registers, fit};
use shared_abi::hypercall::{HvPlace, PLACE_USER};
use shared_abi::{Config, Errno};

use crate::machine::{Counts, Machine};
use crate::model::PERIOD_TOLD;
use crate::pmu::{EVENT_CODES, EVENTS};
use crate::rng::Rng;
use crate::shape::Kind;
use crate::users::{Here, observer};

/// `PERF_TYPE_RAW`, and the bit of `exclude_kernel`.
const RAW: u32 = 4;
const EXCLUDE_KERNEL: u64 = 1 << 5;

/// The most events of a context.
const CONTEXT_MAX: usize = 6;

/// Whose execution an event counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// The execution of the thread in whose context it is.
    Task,
    /// The execution of everything on the vCPU in whose context it is.
    Vcpu,
}

/// The events that were executed while vCPUs counted, while it was not clear whether they did, and
/// while it was known that they did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ledger {
    counted: u64,
    unclear: u64,
    missed: u64,
}

impl Ledger {
    /// Returns this ledger plus the growth of another one from `start` to `now`.
    const fn and_since(self, start: Self, now: Self) -> Self {
        Self {
            counted: self.counted.wrapping_add(now.counted.wrapping_sub(start.counted)),
            unclear: self.unclear.wrapping_add(now.unclear.wrapping_sub(start.unclear)),
            missed: self.missed.wrapping_add(now.missed.wrapping_sub(start.missed)),
        }
    }
}

/// The state of an event's stalls.
#[derive(Clone, Copy, Debug, Default)]
struct Stalls {
    /// The events that were executed during stalls.
    missed: u64,
    /// The time in which the event did not count, as reported to perf.
    reported: u64,
    /// The number of steps for which the vCPU has not counted.
    still: u64,
    /// Whether the vCPU did not count when this was noted.
    was_still: bool,
}

/// An event, and what it should have counted.
#[derive(Clone, Debug)]
struct Event {
    whose: Whose,
    /// The number of its group. The events of a group follow each other in their context, its
    /// leader first.
    group: u64,
    /// The kind, as an index into those that occur here.
    kind: usize,
    config: EventConfig,
    /// The number of events between samples, or 0 if it does not sample.
    period: u64,
    /// The rest of the present period, as perf keeps it.
    left: i64,
    /// Its number on the vCPU, while it is scheduled in.
    on: Option<u32>,
    /// The ledger when it was scheduled in or began to follow another thread.
    start: Ledger,
    /// The count that it should have had before that.
    truth: Ledger,
    /// The time when perf added it.
    since: u64,
    /// The time in which the event did not count, as reported to perf.
    stalled: u64,
    /// The state of its stalls when perf last read it.
    seen: Stalls,
    /// The count that the core has returned.
    count: u64,
    /// The number of periods of which perf was told.
    reported: u64,
}

impl Event {
    /// Returns a copy as if it had just been opened.
    fn copy(&self) -> Self {
        let left = self.period as i64;
        let (start, truth, seen) = Default::default();
        let stalled = 0;
        Self { on: None, start, truth, seen, stalled, count: 0, reported: 0, left, ..self.clone() }
    }
}

/// The events of a task, or of a vCPU, in the order of their turns.
#[derive(Debug, Default)]
struct Context {
    events: Vec<Event>,
    /// Contexts with this number are copies of each other. No context has 0.
    lineage: u64,
}

impl Context {
    /// Returns the places of the events of a group, whose leader is at `first`.
    fn group_at(&self, first: usize) -> Range<usize> {
        let rest = self.events.get(first..).unwrap_or_default();
        let group = rest.first().map(|leader| leader.group);
        first..first + rest.iter().take_while(|event| Some(event.group) == group).count()
    }
}

/// The state of perf in a machine.
#[derive(Debug, Default)]
pub struct Perf {
    tasks: Vec<RefCell<Context>>,
    vcpus: Vec<RefCell<Context>>,
    lineages: Cell<u64>,
    groups: Cell<u64>,
    observers: Cell<u32>,
    /// For each vCPU, the thread that is about to execute and has already got the present thread's
    /// context.
    heirs: Vec<Cell<Option<usize>>>,
    /// Whether a sample of a vCPU was disturbed so often that the module has given up. Then nothing
    /// is known of the vCPU's events.
    given_up: Cell<bool>,
}

impl Perf {
    /// Makes the state of perf in a machine with this many threads and vCPUs.
    pub fn new(threads: usize, vcpus: usize) -> Self {
        Self {
            tasks: (0..threads).map(|_| RefCell::default()).collect(),
            vcpus: (0..vcpus).map(|_| RefCell::default()).collect(),
            heirs: (0..vcpus).map(|_| Cell::default()).collect(),
            ..Self::default()
        }
    }

    fn new_lineage(&self) -> u64 {
        self.lineages.set(self.lineages.get() + 1);
        self.lineages.get()
    }

    fn new_group(&self) -> u64 {
        self.groups.set(self.groups.get() + 1);
        self.groups.get()
    }

    /// Returns a number that no observer has had.
    pub fn new_observer(&self) -> u32 {
        self.observers.set(self.observers.get() + 1);
        1_000 + self.observers.get()
    }
}

/// Returns whether a thread has no counters of its own but only perf's.
pub const fn has_perf_only(thread: usize) -> bool {
    (thread / 2).is_multiple_of(2)
}

impl LocalEvents for Here<'_> {
    fn time(&mut self, index: u32, which: EventTime) -> u64 {
        let mut time = self.machine.steps.get();
        if which == EventTime::Added {
            self.machine.change_event(self.index, index, |event| time = event.since);
        }
        time
    }

    fn book_progress(&mut self, index: u32, progress: &Progress) {
        self.machine.change_event(self.index, index, |event| {
            event.count = event.count.wrapping_add(progress.count);
            event.stalled += progress.stalled;
            if event.period > 0 {
                event.left = progress.left;
            }
            self.machine.check_event(self.index, event);
            self.machine.check_stalls(self.index, event);
        });
    }

    fn book_stall(&mut self, index: u32, stalled: u64) {
        self.machine.change_event(self.index, index, |event| event.stalled += stalled);
    }

    fn sample(&mut self, index: u32, _: Registers, _: &HvPlace, periods: u64) {
        self.machine.change_event(self.index, index, |event| event.reported += periods);
    }

    fn report_later(&mut self) {
        self.machine.vcpus[self.index].report_due.set(true);
    }
}

impl Machine {
    /// Returns whether a domain's threads use perf.
    pub fn has_perf(&self, domain: usize) -> bool {
        self.shape.perf && self.domains[domain].kind == Kind::Good
    }

    fn has_perf_here(&self, index: usize) -> bool {
        self.has_perf(self.vcpus[index].domain)
    }

    fn fails_perf(&self, what: String) {
        if !self.is_gone() && !self.perf.given_up.get() {
            self.fail(what);
        }
    }

    /// Returns the present ledger for an event on this vCPU: that of the vCPU, or that of the
    /// thread that executes there.
    fn ledger(&self, index: usize, whose: Whose, kind: usize) -> Ledger {
        let vcpu = &self.vcpus[index];
        match (whose, vcpu.current.get()) {
            (Whose::Vcpu, _) => {
                let ledgers = [&vcpu.counted, &vcpu.unclear, &vcpu.missed];
                let [counted, unclear, missed] = ledgers.map(|ledger| ledger.get()[kind]);
                Ledger { counted, unclear, missed }
            }
            (Whose::Task, Some(thread)) => self.ledger_of(thread, kind),
            (Whose::Task, None) => Ledger::default(),
        }
    }

    fn ledger_of(&self, thread: usize, kind: usize) -> Ledger {
        let own = &self.threads[thread];
        let ledgers = [&own.counted, &own.unclear, &own.missed];
        let [counted, unclear, missed] = ledgers.map(|ledger| ledger.get()[kind]);
        Ledger { counted, unclear, missed }
    }

    /// Returns the count that an event on this vCPU should have by now.
    fn truth_of(&self, index: usize, event: &Event) -> u64 {
        self.books_of(index, event).counted
    }

    fn books_of(&self, index: usize, event: &Event) -> Ledger {
        let ledger = event.on.map(|_| self.ledger(index, event.whose, event.kind));
        ledger.map_or(event.truth, |now| event.truth.and_since(event.start, now))
    }

    /// Returns the context of a task whose events are on this vCPU.
    fn task_here(&self, index: usize) -> Option<&RefCell<Context>> {
        let heir = self.perf.heirs[index].get();
        heir.or(self.vcpus[index].current.get()).map(|thread| &self.perf.tasks[thread])
    }

    /// Returns how many events are on this vCPU: of its own, and of the task that executes there.
    pub fn events_here(&self, index: usize) -> [usize; 2] {
        let on = |context: &RefCell<Context>| {
            context.borrow().events.iter().filter(|event| event.on.is_some()).count()
        };
        [on(&self.perf.vcpus[index]), self.task_here(index).map_or(0, on)]
    }

    /// Notes that the module could not read a sample in any of its attempts, and so does not count
    /// it.
    pub fn note_disturbed(&self, index: usize) {
        if self.has_perf_here(index) && !self.is_gone() && self.was_disturbed() {
            self.perf.given_up.set(true);
        }
    }

    /// Returns the thread that executes here, if it has counters of its own.
    fn thread_with_counters(&self, index: usize) -> Option<usize> {
        let has = |thread: &usize| self.threads[*thread].pmu.borrow().is_some();
        self.vcpus[index].current.get().filter(has)
    }

    /// Returns whether an event of this vCPU's own is on it.
    pub fn counts_whoever_executes(&self, index: usize) -> bool {
        self.has_perf_here(index) && self.events_here(index)[0] > 0
    }

    /// Returns the observer of a thread's counters, if it has any that count.
    pub fn observer_of_counting(&self, thread: usize) -> Option<u32> {
        let user = self.threads[thread].owner.get();
        self.counts(thread).then(|| observer(user).number)
    }

    /// Returns the observer of the counters of the present thread, if it has any that count.
    pub fn own_observer(&self, index: usize) -> Option<u32> {
        self.observer_of_counting(self.vcpus[index].current.get()?)
    }

    /// Makes perf disable its PMU.
    fn pmu_disable(&self, index: usize) {
        self.with_core(index, |cpu| cpu.disable_events());
        self.note_disturbed(index);
    }

    /// Makes perf enable its PMU.
    fn pmu_enable(&self, index: usize) {
        let (forbidden, allowed) = self.policy_of(index);
        let was_still = Cell::new(false);
        let shown = self.here(index).enable_events(|_| self.load_events(index, &was_still));
        self.check_pages(index, shown);
        self.note_whether_known(index, was_still.get());
        if allowed {
            self.check_goes_on(index, forbidden);
        }
    }

    /// Makes perf's events on this vCPU continue in perf's page, because another page may have been
    /// unregistered.
    pub fn page_changed(&self, index: usize) {
        if self.has_perf_here(index) {
            let shown = self.here(index).page_changed();
            self.check_pages(index, shown);
        }
    }

    fn policy_of(&self, index: usize) -> (u64, bool) {
        let domain = &self.domains[self.vcpus[index].domain];
        (domain.forbidden.get(), domain.allowed.get())
    }

    /// Notes whether the module has found that nothing counts, although something should.
    fn note_whether_known(&self, index: usize, was_still: bool) {
        let vcpu = &self.vcpus[index];
        vcpu.knows.set(was_still && vcpu.counts.get() == Counts::Nothing);
    }

    /// Makes the module load perf's events. Returns whether it has found an overflow of the thread
    /// here.
    fn load_events(&self, index: usize, was_still: &Cell<bool>) -> bool {
        was_still.set(self.vcpus[index].counts.get() == Counts::Nothing);
        let Some(thread) = self.thread_with_counters(index) else {
            let overflowed = self.with_core(index, |cpu| cpu.enable_events(None));
            self.note_disturbed(index);
            return overflowed;
        };
        let page = &self.threads[thread].page;
        let overflowed =
            self.on_thread(index, thread, |pmu, cpu| cpu.enable_events(Some((pmu, page))));
        self.note_disturbed(index);
        self.thread_was_loaded_again(index, thread);
        overflowed == Some(true)
    }

    /// Reports overflows that were found while perf held locks.
    pub fn report_if_due(&self, index: usize) {
        if self.vcpus[index].report_due.take()
            && let Some(thread) = self.thread_with_counters(index)
        {
            let page = &self.threads[thread].page;
            let found = self.on_thread(index, thread, |pmu, cpu| pmu.report(page, cpu));
            self.interrupted(index, thread, found.flatten());
            self.report(index, thread);
        }
    }

    /// Notes that the counters of a thread were suspended and resumed, if anything was published
    /// about them.
    fn thread_was_loaded_again(&self, index: usize, thread: usize) {
        if self.vcpus[index].sampling.borrow().has_published() {
            self.suspended(index, thread);
            self.published(index, thread);
            self.resumed(index, thread);
        }
    }

    /// Returns the configuration that the present thread needs loaded.
    fn kept(&self, index: usize) -> Option<Config> {
        let thread = self.thread_with_counters(index)?;
        let pmu = self.threads[thread].pmu.borrow();
        pmu.as_ref()?.needs().copied()
    }

    /// Makes perf add an event and start it, with its PMU disabled. Returns whether the event found
    /// a counter.
    fn add_event(&self, index: usize, context: &RefCell<Context>, at: usize) -> bool {
        let mut event = context.borrow().events[at].clone();
        let (own, kept) = (self.own_observer(index), self.kept(index));
        let wide = event.whose == Whose::Vcpu;
        match self.here(index).add_event(&event.config, own, kept.as_ref(), wide) {
            Ok(number) => {
                event.on = Some(number);
                event.start = self.ledger(index, event.whose, event.kind);
                event.since = self.steps.get();
                event.seen = self.stalls_of(index, &event);
                let (period, left) = (event.period, event.left);
                context.borrow_mut().events[at] = event;
                self.with_core(index, |cpu| cpu.start_event(number, period, left, 0));
                self.note_disturbed(index);
                true
            }
            Err(Errno::AGAIN) => false,
            Err(errno) => {
                self.fails_perf(format!("vCPU {index}: an event cannot be added: {errno:?}"));
                false
            }
        }
    }

    /// Changes perf's books of an event that is on this vCPU.
    fn change_event(&self, index: usize, number: u32, change: impl FnOnce(&mut Event)) {
        let contexts = [Some(&self.perf.vcpus[index]), self.task_here(index)];
        for context in contexts.into_iter().flatten() {
            let events = &mut context.borrow_mut().events;
            if let Some(event) = events.iter_mut().find(|event| event.on == Some(number)) {
                return change(event);
            }
        }
        self.fails_perf(format!("vCPU {index}: perf has no event {number}"));
    }

    fn stalls_of(&self, index: usize, event: &Event) -> Stalls {
        let vcpu = &self.vcpus[index];
        Stalls {
            missed: self.books_of(index, event).missed,
            reported: event.stalled,
            still: vcpu.still_for(self.steps.get()),
            was_still: vcpu.counts.get() != Counts::All,
        }
    }

    /// Checks that perf was told of a stall if events were missed since it last read the event, and
    /// only if the vCPU did not count.
    fn check_stalls(&self, index: usize, event: &mut Event) {
        let now = self.stalls_of(index, event);
        let before = std::mem::replace(&mut event.seen, now);
        let (missed, reported) = (now.missed - before.missed, now.reported - before.reported);
        if missed > 0 && reported == 0 {
            self.fails_perf(format!("vCPU {index}: perf is not told of a stall of {missed}"));
        }
        if reported > 0 && now.still == before.still && !before.was_still {
            self.fails_perf(format!("vCPU {index}: perf is told of a stall: nothing has stalled"));
        }
    }

    /// Checks that perf's events here count if nothing prevents them from counting.
    fn check_goes_on(&self, index: usize, forbidden: u64) {
        let (vcpu, domain) = (&self.vcpus[index], &self.domains[self.vcpus[index].domain]);
        let busy = self.host_was_busy(vcpu.domain);
        let may = domain.allowed.get() && domain.forbidden.get() == forbidden && !busy;
        let online = vcpu.online.get() && vcpu.module.borrow().is_online();
        if may
            && online
            && self.events_here(index) != [0; 2]
            && vcpu.counts.get() == Counts::Nothing
        {
            self.fails_perf(format!("vCPU {index}: perf's events do not go on"));
        }
    }

    /// Checks that an event has counted the events that were executed while it was scheduled in.
    fn check_event(&self, index: usize, event: &Event) {
        let Ledger { counted: truth, unclear, .. } = self.books_of(index, event);
        self.readings.set(self.readings.get() + 1);
        if event.count.wrapping_sub(truth) > unclear {
            let (count, whose) = (event.count, event.whose);
            self.fails_perf(format!("vCPU {index}: a {whose:?}'s event is {count}, not {truth}"));
        }
    }

    /// Checks that perf has been told of every period of an event exactly once.
    fn check_samples(&self, index: usize, event: &Event) {
        let Ledger { counted, unclear, .. } = self.books_of(index, event);
        let periods = |count: u64| count.checked_div(event.period).unwrap_or(0);
        let passed = periods(counted);
        if event.reported < passed || event.reported > periods(counted.wrapping_add(unclear)) {
            let reported = event.reported;
            self.fails_perf(format!("vCPU {index}: perf has {reported} samples of {passed}"));
        }
    }

    /// Makes perf stop an event and remove it, with its PMU disabled.
    fn remove_event(&self, index: usize, context: &RefCell<Context>, at: usize) {
        let (number, wide) = {
            let event = &context.borrow().events[at];
            (event.on, event.whose == Whose::Vcpu)
        };
        let Some(number) = number else { return };
        if let Err(errno) = self.here(index).remove_event(number, true, wide) {
            self.fails_perf(format!("vCPU {index} keeps its page: {errno:?}"));
        }
        self.change_event(index, number, |event| {
            self.check_samples(index, event);
            event.truth = self.books_of(index, event);
            event.on = None;
        });
    }

    /// Makes perf add the groups of a context that find counters, in order, up to the first group
    /// that does not.
    fn schedule_in(&self, index: usize, context: &RefCell<Context>) {
        let mut group = context.borrow().group_at(0);
        while !group.is_empty() {
            if !self.schedule_group_in(index, context, group.clone()) {
                return self.check_turned_away(index, context, group);
            }
            group = context.borrow().group_at(group.end);
        }
    }

    /// Makes perf add the events of a group. If one finds no counter, those before it are removed
    /// again. Returns whether the group is on the vCPU.
    fn schedule_group_in(
        &self,
        index: usize,
        context: &RefCell<Context>,
        group: Range<usize>,
    ) -> bool {
        for at in group.clone() {
            let is_there = context.borrow().events[at].on.is_some();
            if !is_there && !self.add_event(index, context, at) {
                self.remove_events(index, context, group.start..at);
                return false;
            }
        }
        true
    }

    /// Checks that a group is refused only if there are no counters for it, or if the host forbids
    /// counters, or has forbidden them and has let no page be registered since.
    fn check_turned_away(&self, index: usize, context: &RefCell<Context>, group: Range<usize>) {
        let domain = &self.domains[self.vcpus[index].domain];
        let lost = domain.forbidden.get() > 0 && self.vcpus[index].registered.borrow().is_none();
        if self.kept(index).is_some() || lost || !domain.allowed.get() {
            return;
        }
        let (task, vcpu) = (self.vcpus[index].current.get(), self.perf.vcpus[index].borrow());
        let task = task.map(|thread| self.perf.tasks[thread].borrow());
        let task = task.iter().flat_map(|context| &context.events);
        let here = vcpu.events.iter().chain(task).filter(|event| event.on.is_some());
        let group = &context.borrow().events[group];
        if self.can_count(here.chain(group)) {
            let kinds: Vec<usize> = group.iter().map(|event| event.kind).collect();
            self.fails_perf(format!("vCPU {index}: no counters for a group of {kinds:?}"));
        }
    }

    /// Returns whether a vCPU has enough counters for these events. Those of one kind share one.
    fn can_count<'a>(&self, events: impl Iterator<Item = &'a Event>) -> bool {
        let mut kinds: Vec<usize> = events.map(|event| event.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds.len() <= self.guests_model().general as usize
    }

    fn schedule_out(&self, index: usize, context: &RefCell<Context>) {
        let events = context.borrow().events.len();
        self.remove_events(index, context, 0..events);
    }

    fn remove_events(&self, index: usize, context: &RefCell<Context>, places: Range<usize>) {
        places.for_each(|at| self.remove_event(index, context, at));
    }

    /// Does perf's part of a switch, while the thread that leaves is still current.
    pub fn perf_out(&self, index: usize, next: Option<usize>) -> bool {
        let Some(prev) = self.vcpus[index].current.get() else { return false };
        if !self.has_perf_here(index) {
            return false;
        }
        let (one, other) = (&self.perf.tasks[prev], next.map(|next| &self.perf.tasks[next]));
        let lineage = one.borrow().lineage;
        let swaps = lineage != 0 && other.is_some_and(|other| other.borrow().lineage == lineage);
        if one.borrow().events.is_empty() && !swaps {
            return false;
        }
        self.pmu_disable(index);
        match (next, other) {
            (Some(next), Some(other)) if swaps => {
                one.swap(other);
                self.follow(&mut other.borrow_mut().events, prev, next);
                self.perf.heirs[index].set(Some(next));
            }
            _ => self.schedule_out(index, one),
        }
        self.pmu_enable(index);
        self.perf.heirs[index].set(None);
        swaps
    }

    /// Makes the events that stay on the vCPU count another thread from now on.
    fn follow(&self, events: &mut [Event], prev: usize, next: usize) {
        for event in events.iter_mut().filter(|event| event.on.is_some()) {
            event.truth = event.truth.and_since(event.start, self.ledger_of(prev, event.kind));
            event.start = self.ledger_of(next, event.kind);
        }
    }

    /// Does perf's part of a switch, when the thread that comes is current.
    pub fn perf_in(&self, index: usize, next: usize, swapped: bool) {
        let context = &self.perf.tasks[next];
        if !swapped && self.has_perf_here(index) && !context.borrow().events.is_empty() {
            self.pmu_disable(index);
            self.schedule_in(index, context);
            self.pmu_enable(index);
        }
    }

    /// Lets perf's clock tick, so that other events get their turn. Now and then the user whose
    /// page is shown has gone. Then the page is unregistered, whatever counts.
    pub fn perf_tick(&self, index: usize) {
        if !self.has_perf_here(index) || !self.vcpus[index].online.get() {
            return;
        }
        let rng = &mut Rng::new(self.steps.get() ^ self.shape.seed);
        let counting = self.vcpus[index].current.get().is_some_and(|thread| self.counts(thread));
        if rng.one_in(3) && !counting {
            if let Err(errno) = self.here(index).hide() {
                self.fails_perf(format!("vCPU {index} keeps its page: {errno:?}"));
            }
            self.page_changed(index);
        } else {
            self.reschedule(index, |context| {
                let first = context.group_at(0).len();
                context.events.rotate_left(first);
            });
        }
    }

    /// Makes perf change the contexts of this vCPU and of its thread, with nothing scheduled in.
    fn reschedule(&self, index: usize, change: impl Fn(&mut Context)) {
        let task = self.vcpus[index].current.get().map(|thread| &self.perf.tasks[thread]);
        let contexts = || [Some(&self.perf.vcpus[index]), task].into_iter().flatten();
        if contexts().all(|context| context.borrow().events.is_empty()) {
            return;
        }
        self.pmu_disable(index);
        contexts().for_each(|context| self.schedule_out(index, context));
        contexts().for_each(|context| change(&mut context.borrow_mut()));
        contexts().for_each(|context| self.schedule_in(index, context));
        self.pmu_enable(index);
    }

    /// Handles the interrupt of an overflow of any counter.
    pub fn perf_interrupt(&self, index: usize) {
        if !self.has_perf_here(index) || self.events_here(index) == [0; 2] {
            return;
        }
        let interrupted = HvPlace { mode: PLACE_USER, ..HvPlace::default() };
        let was_still = Cell::new(false);
        let enable = |_: &mut Here<'_>| {
            self.check_all_samples(index);
            self.load_events(index, &was_still)
        };
        self.here(index).interrupt_events(&interrupted, enable);
        self.note_whether_known(index, was_still.get());
    }

    /// Checks that perf has been told of every period of the events that are on this vCPU.
    fn check_all_samples(&self, index: usize) {
        let contexts = [Some(&self.perf.vcpus[index]), self.task_here(index)];
        for context in contexts.into_iter().flatten() {
            for event in &context.borrow().events {
                self.check_samples(index, event);
            }
        }
    }

    /// Checks that an overflow that was not reported to perf yet is on its way. If counters were
    /// loaded anew before its interrupt came, the event's counter overflows at the next event that
    /// it counts.
    pub fn check_event_overflows(&self, index: usize, on_its_way: bool) {
        if on_its_way || !self.has_perf_here(index) {
            return;
        }
        let vcpu = &self.vcpus[index];
        let (counted, armed) = (vcpu.counted.get(), vcpu.armed.get());
        let task = self.task_here(index);
        for context in [Some(&self.perf.vcpus[index]), task].into_iter().flatten() {
            for event in context.borrow().events.iter().filter(|event| event.on.is_some()) {
                let due = self.truth_of(index, event) / event.period.max(1);
                let counted = counted[event.kind] != armed[event.kind];
                if event.period >= PERIOD_TOLD && due > event.reported && counted {
                    self.fails_perf(format!("vCPU {index}: an overflow of an event is lost"));
                }
            }
        }
    }

    /// Makes a thread use perf.
    pub fn operate_perf(&self, thread: usize, rng: &mut Rng) {
        self.in_kernel(|index| {
            if self.is_gone() || self.domains[self.vcpus[index].domain].caps.get().is_none() {
                return;
            }
            match rng.below(8) {
                0..3 => self.open_event(index, &self.perf.tasks[thread], Whose::Task, rng),
                3 => self.open_event(index, &self.perf.vcpus[index], Whose::Vcpu, rng),
                4 => self.inherit(thread, rng),
                5 => self.close_event(index, thread, rng),
                _ => self.read_events(index, thread),
            }
        });
    }

    fn open_event(&self, index: usize, own: &RefCell<Context>, whose: Whose, rng: &mut Rng) {
        if own.borrow().events.len() == CONTEXT_MAX || !self.vcpus[index].online.get() {
            return;
        }
        let kind = rng.index(EVENTS);
        let samples = self.guests_model().samples() && rng.one_in(2);
        let period = if samples { self.random_period(rng) } else { 0 };
        let attr = EventAttr {
            kind: RAW,
            config: EVENT_CODES[kind],
            period,
            flags: EXCLUDE_KERNEL,
            ..EventAttr::default()
        };
        let Some(caps) = self.domains[self.vcpus[index].domain].caps.get() else { return };
        let config = match EventConfig::open(&caps, &attr, 0) {
            Ok(config) => config,
            Err(errno) => return self.fails_perf(format!("no event {kind}: {errno:?}")),
        };
        // An event may join the last group.
        let last = own.borrow().events.last().map(|event| event.group).filter(|_| rng.one_in(3));
        let event = Event {
            whose,
            group: last.unwrap_or_else(|| self.perf.new_group()),
            kind,
            config,
            period,
            left: period as i64,
            on: None,
            start: Ledger::default(),
            truth: Ledger::default(),
            since: 0,
            stalled: 0,
            seen: Stalls::default(),
            count: 0,
            reported: 0,
        };
        if !self.fits_its_group(index, own, &event) {
            return;
        }
        self.pmu_disable(index);
        if last.is_some() {
            self.schedule_out(index, own);
        }
        {
            let own = &mut own.borrow_mut();
            own.events.push(event);
            own.lineage = self.perf.new_lineage();
        }
        self.schedule_in(index, own);
        self.pmu_enable(index);
    }

    /// Returns whether an event may be opened beside those of its group. Checks that it is refused
    /// exactly if there could never be counters for all of them.
    fn fits_its_group(&self, index: usize, own: &RefCell<Context>, event: &Event) -> bool {
        let own = own.borrow();
        let others = own.events.iter().filter(|other| other.group == event.group);
        let group: Vec<&Event> = others.chain([event]).collect();
        let configs: Vec<EventConfig> = group.iter().map(|event| event.config).collect();
        let fits = fit(&configs);
        if fits != self.can_count(group.iter().copied()) {
            let kinds: Vec<usize> = group.iter().map(|event| event.kind).collect();
            self.fails_perf(format!("vCPU {index}: a group of {kinds:?} fits: {fits}"));
        }
        fits
    }

    fn close_event(&self, index: usize, thread: usize, rng: &mut Rng) {
        let wide = rng.one_in(3);
        let own = if wide { &self.perf.vcpus[index] } else { &self.perf.tasks[thread] };
        let events = own.borrow().events.len();
        if events == 0 {
            return;
        }
        self.pmu_disable(index);
        let at = rng.index(events);
        self.remove_event(index, own, at);
        {
            let own = &mut own.borrow_mut();
            let rest = own.group_at(at);
            // Without its leader a group falls apart.
            if at == 0 || own.events[at - 1].group != own.events[at].group {
                own.events[rest].iter_mut().for_each(|event| event.group = self.perf.new_group());
            }
            own.events.remove(at);
            own.lineage = self.perf.new_lineage();
        }
        self.pmu_enable(index);
    }

    fn read_events(&self, index: usize, thread: usize) {
        for context in [&self.perf.tasks[thread], &self.perf.vcpus[index]] {
            let here = |event: &Event| event.on;
            let on: Vec<u32> = context.borrow().events.iter().filter_map(here).collect();
            on.into_iter().for_each(|number| self.here(index).read_event(number));
        }
    }

    /// Gives another thread, which does not execute, copies of all events, as if this thread had
    /// started it.
    fn inherit(&self, thread: usize, rng: &mut Rng) {
        let threads = self.domains[self.threads[thread].domain].threads.clone();
        let other = threads.start + rng.index(threads.len());
        let own = self.perf.tasks[thread].borrow();
        let Ok(mut heir) = self.perf.tasks[other].try_borrow_mut() else { return };
        if other == thread || self.threads[other].on.get().is_some() || own.events.is_empty() {
            return;
        }
        heir.events = own.events.iter().map(Event::copy).collect();
        heir.lineage = own.lineage;
    }

    /// Ends a thread's events with the thread.
    pub fn perf_exit(&self, index: usize, thread: usize) {
        let own = &self.perf.tasks[thread];
        if self.has_perf_here(index) && !own.borrow().events.is_empty() {
            self.pmu_disable(index);
            self.schedule_out(index, own);
            own.take();
            self.pmu_enable(index);
        }
    }

    /// Ends the events of a vCPU that goes offline, where no thread executes any more.
    pub fn perf_offline(&self, index: usize) {
        let own = &self.perf.vcpus[index];
        if self.has_perf_here(index) && !own.borrow().events.is_empty() {
            self.pmu_disable(index);
            self.schedule_out(index, own);
            own.take();
            self.pmu_enable(index);
        }
    }
}
