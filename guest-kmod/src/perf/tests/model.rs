// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Compares what the module gives perf in sequences of operations with a model. The model knows
//! nothing of counters. Once the module has accepted an event on a vCPU, the event counts what its
//! task executes there, and its running time is the time in which the host allows to count. The
//! model leaves out the time for which an event is enabled, since perf keeps that by itself.

use std::collections::BTreeSet;
use std::mem::take;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::local::LocalVcpu;
use crate::perf::LocalEvents;
use crate::shown::{SUBJECT_KERNEL, Subject};
use crate::testing::{Local, program};

const VCPUS: usize = 2;
/// The first and the last of the tasks have the same user.
const TASKS: usize = 3;
/// The most events at once, which all find a place, but not a counter, if they are of one task.
const EVENTS: usize = 8;
/// Select words of events, which are more than there are general counters, and perf's own event of
/// instructions, which also has a fixed counter.
const SELECTS: [u64; 6] =
    [0xc0, 0xc4, 0xc0 | 1 << 24, 0xc4 | 1 << 24, 0xc0 | 2 << 24, 0xc4 | 2 << 24];
const KINDS: usize = SELECTS.len() + 1;
const GENERAL: usize = 4;

#[derive(Clone, Debug)]
enum Operation {
    /// A task opens an event of a kind, which is enabled.
    Open(usize, usize),
    Close(Index),
    Enable(Index, bool),
    /// perf stops an event that stays where it is, or starts it again.
    Throttle(Index),
    Read(Index),
    /// A vCPU switches to a task, which may be on the other vCPU before, or to none.
    Switch(usize, Option<usize>),
    /// Another event of the task is the first to get a counter.
    Rotate(usize),
    /// A vCPU executes instructions and branches, while time passes on both.
    Execute(usize, u64, u64),
    /// The host allows the machine to count, or does not.
    Allow(bool),
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::{Allow, Close, Enable, Execute, Open, Read, Rotate, Switch, Throttle};

    let event = any::<Index>;
    prop_oneof![
        4 => (0..TASKS, 0..KINDS).prop_map(|(task, kind)| Open(task, kind)),
        1 => event().prop_map(Close),
        2 => (event(), any::<bool>()).prop_map(|(event, enabled)| Enable(event, enabled)),
        2 => event().prop_map(Throttle),
        2 => event().prop_map(Read),
        4 => (0..VCPUS, prop::option::of(0..TASKS)).prop_map(|(vcpu, task)| Switch(vcpu, task)),
        2 => (0..VCPUS).prop_map(Rotate),
        6 => (0..VCPUS, 1..9_000_u64, 0..2_000_u64)
            .prop_map(|(vcpu, all, branches)| Execute(vcpu, all, branches)),
        1 => prop::bool::weighted(0.6).prop_map(Allow),
    ]
}

/// How much an event has counted, and for how long it has run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    count: u64,
    running: u64,
}

struct Opened {
    task: usize,
    config: EventConfig,
    enabled: bool,
    throttled: bool,
    /// The vCPU where it is, and its number there.
    at: Option<(usize, u32)>,
    /// perf's account of it, and the model's.
    books: Account,
    truth: Account,
}

/// perf, as far as it calls the module, and the model.
struct Perf<'a> {
    machine: &'a Machine,
    vcpus: [Local<'a>; VCPUS],
    /// The task that each vCPU executes.
    tasks: [Option<usize>; VCPUS],
    events: Vec<Opened>,
    clock: u64,
    allowed: bool,
}

fn subject(task: Option<usize>) -> Subject {
    let idle = Subject { kind: SUBJECT_KERNEL, ..program(0) };
    task.map_or(idle, |task| program(1_000 + task as u32 % 2))
}

impl<'a> Perf<'a> {
    fn new(machine: &'a Machine) -> Self {
        let vcpus = [0, 1].map(|vcpu| Local::of_vcpu(machine, vcpu, subject(None)));
        Self { machine, vcpus, tasks: [None; VCPUS], events: Vec::new(), clock: 0, allowed: true }
    }

    fn carry_out(&mut self, operation: &Operation) {
        match *operation {
            Operation::Open(task, kind) => self.open(task, kind),
            Operation::Close(index) => self.with(index, |perf, event| {
                perf.enable(event, false);
                perf.check(event);
                perf.events.remove(event);
            }),
            Operation::Enable(index, enabled) => {
                self.with(index, |perf, event| perf.enable(event, enabled))
            }
            Operation::Throttle(index) => self.with(index, Self::throttle),
            Operation::Read(index) => self.with(index, Self::check),
            Operation::Switch(vcpu, task) => self.switch(vcpu, task),
            Operation::Rotate(vcpu) => self.change(vcpu, |perf| {
                perf.each(|perf, event| perf.remove(vcpu, event));
                let first = perf.events.len().min(1);
                perf.events.rotate_left(first);
                perf.each(|perf, event| perf.add(vcpu, event));
            }),
            Operation::Execute(vcpu, instructions, branches) => {
                self.execute(vcpu, instructions, branches)
            }
            Operation::Allow(allowed) => self.allow(allowed),
        }
    }

    /// Does this with one of the events, if there is any.
    fn with(&mut self, index: Index, act: impl FnOnce(&mut Self, usize)) {
        if !self.events.is_empty() {
            act(self, index.index(self.events.len()));
        }
    }

    fn each(&mut self, act: impl Fn(&mut Self, usize)) {
        (0..self.events.len()).for_each(|event| act(self, event));
    }

    /// perf disables its PMU on a vCPU, changes what is there, and enables it.
    fn change(&mut self, vcpu: usize, change: impl FnOnce(&mut Self)) {
        self.vcpus[vcpu].with_cpu(|cpu| cpu.disable_events());
        change(self);
        let local = &mut self.vcpus[vcpu];
        local.enable_events(|local| local.with_cpu(|cpu| cpu.enable_events(None))).unwrap();
        self.enter_in_books(vcpu);
    }

    fn add(&mut self, vcpu: usize, event: usize) {
        let Opened { task, config, enabled, at, .. } = self.events[event];
        if self.tasks[vcpu] != Some(task) || !enabled || at.is_some() {
            return;
        }
        match self.vcpus[vcpu].add_event(&config, None, None, false) {
            Ok(index) => {
                self.vcpus[vcpu].with_cpu(|cpu| cpu.start_event(index, 0, 0, 0));
                let event = &mut self.events[event];
                (event.at, event.throttled) = (Some((vcpu, index)), false);
            }
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                let there = self.events.iter().filter(|other| other.is_on(vcpu));
                let others: Vec<_> = there.map(|other| other.config).collect();
                let selects: BTreeSet<_> = others.iter().map(|other| other.general).collect();
                // An event that has a fixed counter cannot share it with one that has none.
                let alike = |other: &EventConfig| {
                    other.general == config.general && other.slots == config.slots
                };
                let has_room = selects.len() < GENERAL || others.iter().any(alike);
                assert!(!has_room && config.slots >> 16 == 0, "there is a counter for it");
            }
        }
    }

    fn remove(&mut self, vcpu: usize, event: usize) {
        let Opened { at: Some((on, index)), throttled, .. } = self.events[event] else { return };
        if on == vcpu {
            self.vcpus[vcpu].remove_event(index, !throttled, false).unwrap();
            self.enter_in_books(vcpu);
            self.events[event].at = None;
        }
    }

    /// Enters in perf's books what the module has told.
    fn enter_in_books(&mut self, vcpu: usize) {
        let books = &mut self.vcpus[vcpu].books;
        let progress = take(&mut books.progress).into_iter();
        let progress = progress.map(|(index, more)| (index, more.count, more.stalled));
        let stalls =
            take(&mut books.stalls).into_iter().map(|(index, stalled)| (index, 0, stalled));
        for (index, count, stalled) in progress.chain(stalls) {
            let told = self.events.iter_mut().find(|event| event.at == Some((vcpu, index)));
            let books = &mut told.expect("there is such an event").books;
            books.count += count;
            books.running -= stalled;
        }
    }

    fn open(&mut self, task: usize, kind: usize) {
        if self.events.len() == EVENTS {
            return;
        }
        let config = match SELECTS.get(kind) {
            Some(&select) => event(select, false),
            None => EventConfig::generic(&Machine::caps(), Generic::Instructions.perf()).unwrap(),
        };
        let [books, truth] = [Account::default(); 2];
        let (enabled, throttled, at) = (false, false, None);
        self.events.push(Opened { task, config, enabled, throttled, at, books, truth });
        self.enable(self.events.len() - 1, true);
    }

    fn enable(&mut self, event: usize, enabled: bool) {
        let Opened { task, .. } = self.events[event];
        self.events[event].enabled = enabled;
        if let Some(vcpu) = self.tasks.iter().position(|present| *present == Some(task)) {
            let act = if enabled { Self::add } else { Self::remove };
            self.change(vcpu, |perf| act(perf, vcpu, event));
        }
    }

    fn throttle(&mut self, event: usize) {
        let Opened { at: Some((vcpu, index)), throttled, .. } = self.events[event] else { return };
        self.events[event].throttled = !throttled;
        self.change(vcpu, |perf| match throttled {
            true => perf.vcpus[vcpu].with_cpu(|cpu| {
                cpu.start_event(index, 0, 0, 0);
            }),
            false => perf.vcpus[vcpu].stop_event(index, true),
        });
    }

    fn switch(&mut self, vcpu: usize, task: Option<usize>) {
        let before = self.tasks.iter().position(|present| task.is_some() && *present == task);
        if let Some(other) = before.filter(|other| *other != vcpu) {
            self.switch(other, None);
        }
        // The module is told of the switch before perf is.
        self.vcpus[vcpu].leave_to(&subject(task), None, |_| ()).unwrap();
        self.change(vcpu, |perf| perf.each(|perf, event| perf.remove(vcpu, event)));
        (self.vcpus[vcpu].present, self.tasks[vcpu]) = (subject(task), task);
        self.change(vcpu, |perf| perf.each(|perf, event| perf.add(vcpu, event)));
    }

    fn execute(&mut self, vcpu: usize, instructions: u64, branches: u64) {
        self.machine.preempt_vcpu(vcpu);
        self.machine.execute(vcpu, instructions, branches);
        self.clock += instructions;
        self.vcpus.iter_mut().for_each(|local| local.books.times = [self.clock; 3]);
        for event in self.events.iter_mut().filter(|event| event.at.is_some()) {
            // perf believes so, until it is told of a stall.
            event.books.running += instructions;
            if !self.allowed {
                continue;
            }
            event.truth.running += instructions;
            if event.is_on(vcpu) && !event.throttled {
                let counts_branches = event.config.event_and_umask() == 0xc4;
                event.truth.count += if counts_branches { branches } else { instructions };
            }
        }
    }

    fn allow(&mut self, allowed: bool) {
        if allowed == self.allowed {
            return;
        }
        self.allowed = allowed;
        self.machine.refuses_loads.set(!allowed);
        for vcpu in 0..VCPUS {
            if !allowed && self.vcpus[vcpu].registered().is_some() {
                self.machine.revoke(vcpu);
            }
            // An interrupt says so.
            self.vcpus[vcpu].interrupt_events(&HvPlace::default(), |local| {
                local.with_cpu(|cpu| cpu.enable_events(None))
            });
            self.enter_in_books(vcpu);
        }
    }

    /// Reads an event, and compares.
    fn check(&mut self, event: usize) {
        if let Some((vcpu, index)) = self.events[event].at {
            self.vcpus[vcpu].read_event(index);
            self.enter_in_books(vcpu);
        }
        let Opened { books, truth, .. } = self.events[event];
        assert_eq!(books, truth, "perf's account, and what has happened");
    }
}

impl Opened {
    fn is_on(&self, vcpu: usize) -> bool {
        self.at.is_some_and(|(on, _)| on == vcpu)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn perfs_accounts_are_right_whatever_it_does(
        operations in prop::collection::vec(operation(), 1..80),
    ) {
        let machine = Machine::new();
        let mut perf = Perf::new(&machine);
        operations.iter().for_each(|operation| perf.carry_out(operation));
        perf.each(Perf::check);
    }
}
