// SPDX-License-Identifier: MIT OR GPL-2.0-only

extern crate std;

use std::vec::Vec;

use shared_abi::arch::{EVNTSEL_ANY, EVNTSEL_EN, EVNTSEL_INT, EVNTSEL_OS, EVNTSEL_USR};
use shared_abi::config::MODE_SAMPLING;
use shared_abi::events::Generic;
use shared_abi::hypercall::{
    HvPlace, OP_LOAD, OP_PLACE, OP_REGISTER, OP_UNREGISTER, PLACE_KERNEL, PLACE_USER,
};
use shared_abi::limits::PERIOD_EVENTS_MAX;
use shared_abi::slot::slots_of;
use shared_abi::{CounterConfig, Errno, PhysSlot};

use super::event::{SAMPLE_BRANCH_STACK, SAMPLE_REGS_INTR, TYPE_HARDWARE, TYPE_RAW, flags};
use super::held::EVENTS_MAX;
use super::{EventAttr, EventConfig, Progress, Registers, fit};
use crate::testing::{BRANCHES, INSTRUCTIONS, Machine, counter};

mod again;
mod books;
mod branches;
mod interrupted;
mod model;
mod precise;

const USER: u64 = EVNTSEL_USR;
/// Flags that are nothing to the core, by the names that `linux/perf_event.h` gives these bits.
const PINNED: u64 = 1 << 2;
const EXCLUDE_GUEST: u64 = 1 << 20;

fn event(select: u64, samples: bool) -> EventConfig {
    EventConfig::new(&Machine::caps(), TYPE_RAW, select, USER, samples).unwrap()
}

impl Machine {
    /// Schedules events in on a vCPU, as perf does.
    fn schedule(&self, vcpu: usize, wanted: &[(EventConfig, i64)]) -> Vec<Result<u32, Errno>> {
        self.on(vcpu, |cpu| {
            cpu.disable_events();
            let added = wanted.iter().map(|(wanted, left)| {
                let index = cpu.add_event(wanted, None)?;
                cpu.start_event(index, left.unsigned_abs(), *left, 0);
                Ok(index)
            });
            let added = added.collect();
            assert!(!cpu.enable_events(None), "nobody is to be told");
            added
        })
    }

    fn progress(&self, vcpu: usize, index: u32) -> Progress {
        self.on(vcpu, |cpu| cpu.progress_of_event(index, 0))
    }
}

#[test]
fn events_are_asked_for_as_perf_does() {
    let caps = Machine::caps();
    let new = |kind, config| EventConfig::new(&caps, kind, config, USER, false);
    let instructions = new(TYPE_HARDWARE, Generic::Instructions.perf()).unwrap();
    assert_eq!((instructions.general, instructions.fixed), (INSTRUCTIONS, USER | EVNTSEL_EN));
    assert_eq!(instructions.slots, 0b1_0000_0000_0000_1111);
    let reference = new(TYPE_HARDWARE, Generic::ReferenceCycles.perf()).unwrap();
    assert_eq!((reference.general, reference.slots), (0, 1 << 18), "a fixed counter's alone");
    assert_eq!(new(TYPE_RAW, 0xc4).unwrap().general, BRANCHES);
    assert_eq!(new(TYPE_HARDWARE, 7), Err(Errno::NOENT), "no CPU has it");
    assert_eq!(new(TYPE_HARDWARE, u64::MAX), Err(Errno::NOENT));
    assert_eq!(new(3, 0), Err(Errno::NOENT), "another type");
    assert_eq!(new(TYPE_RAW, 0x01_b7), Err(Errno::PERM), "another core's");
    let whole_word = 0xc4 | EVNTSEL_USR | EVNTSEL_OS | EVNTSEL_INT | EVNTSEL_EN;
    assert_eq!(new(TYPE_RAW, whole_word), new(TYPE_RAW, 0xc4), "rings are perf's to say");
    assert_eq!(new(TYPE_RAW, 0xc0 | EVNTSEL_ANY), Err(Errno::PERM), "another thread's");
    assert_eq!(new(TYPE_RAW, 0xc0 | 1 << 40), Err(Errno::INVAL));
    assert_eq!(EventConfig::new(&caps, TYPE_RAW, 0x01_b7, 0, false), Err(Errno::PERM));
}

#[test]
fn a_generic_event_counts_user_mode_and_does_not_sample() {
    let caps = Machine::caps();
    let cycles = Generic::Cycles.perf();
    let wanted = EventConfig::new(&caps, TYPE_HARDWARE, cycles, USER, false).unwrap();
    assert_eq!(
        (wanted.general, wanted.fixed, wanted.samples),
        (0x3c | USER | EVNTSEL_EN, USER | EVNTSEL_EN, 0)
    );
    assert_eq!(EventConfig::generic(&caps, cycles), Ok(wanted));
    assert_eq!(EventConfig::generic(&caps, 7), Err(Errno::NOENT), "no CPU has it");
}

#[test]
fn what_would_not_be_counted_as_asked_for_is_refused() {
    let caps = Machine::caps();
    let usual = EventAttr { kind: TYPE_RAW, config: 0xc0, period: 5_000, ..EventAttr::default() };
    let open = |attr| EventConfig::open(&caps, &attr, 0);
    let both = EVNTSEL_USR | EVNTSEL_OS;
    assert_eq!(open(usual), EventConfig::new(&caps, TYPE_RAW, 0xc0, both, true));
    for (excluded, rings) in [
        (flags::EXCLUDE_USER, EVNTSEL_OS),
        (flags::EXCLUDE_KERNEL, EVNTSEL_USR),
        (flags::EXCLUDE_USER | flags::EXCLUDE_KERNEL, 0),
        (flags::EXCLUDE_HOST, 0),
        (flags::EXCLUDE_HOST | flags::EXCLUDE_USER, 0),
        (EXCLUDE_GUEST | flags::EXCLUDE_KERNEL | PINNED, EVNTSEL_USR),
    ] {
        let attr = EventAttr { flags: excluded, period: 0, ..usual };
        assert_eq!(open(attr), EventConfig::new(&caps, TYPE_RAW, 0xc0, rings, false));
    }
    let with = |flags| EventAttr { flags, ..usual };
    let unknown = EventAttr { kind: 3, flags: flags::EXCLUDE_IDLE, ..usual };
    assert_eq!(open(unknown), Err(Errno::NOENT), "another PMU's");
    assert_eq!(open(with(flags::EXCLUDE_IDLE)), Err(Errno::INVAL));
    for attr in [
        with(1 << 15),
        with(1 << 16),
        with(flags::SIGTRAP),
        EventAttr { config1: 1, ..usual },
        EventAttr { config2: 1, ..usual },
        EventAttr { sample_type: SAMPLE_BRANCH_STACK, ..usual },
        EventAttr { sample_type: SAMPLE_REGS_INTR, ..usual },
    ] {
        assert_eq!(open(attr), Err(Errno::OPNOTSUPP), "{attr:?}");
    }
    let in_user = EventAttr { sample_type: SAMPLE_REGS_INTR, ..with(flags::EXCLUDE_KERNEL) };
    assert!(open(in_user).is_ok(), "the thread's own registers are all known");
}

#[test]
fn a_frequency_begins_with_a_period_that_is_no_storm() {
    let first = |flags, period| EventAttr { flags, period, ..EventAttr::default() }.first_period();
    assert_eq!(first(flags::FREQ, 4_000), 250_000);
    assert_eq!(first(flags::FREQ, 100_000), 10_000);
    assert_eq!(first(flags::FREQ, u64::MAX), 1);
    assert_eq!(first(flags::FREQ, 0), 0, "it does not sample");
    assert_eq!(first(0, 4_000), 0, "that is a period");
}

/// Returns the time between these two that perf has to take back.
fn stalled_between(machine: &Machine, index: u32, from: u64, to: u64) -> u64 {
    machine.on(0, |cpu| {
        cpu.vcpu.events.settle(index, from, from);
        cpu.vcpu.events.settle(index, to, to)
    })
}

fn is_stalled(machine: &Machine, index: u32) -> bool {
    let lost = stalled_between(machine, index, 1_000, 1_250);
    assert!(lost == 0 || lost == 250, "{lost}");
    lost > 0
}

#[test]
fn a_stall_is_taken_back_once_from_where_it_began() {
    let machine = Machine::new();
    let unsettled = || machine.on(0, |cpu| cpu.vcpu.events.take_unsettled());
    machine.schedule(0, &[(event(0xc0, false), 0), (event(0xc4, false), 0)]);
    assert!(!unsettled());
    assert_eq!(machine.on(0, |cpu| cpu.vcpu.events.settle(0, 100, 300)), 0);
    machine.revoke(0);
    machine.refuse(Some(Errno::PERM));
    machine.on(0, |cpu| cpu.enable_events(None));
    assert!(unsettled());
    machine.on(0, |cpu| {
        assert_eq!(cpu.vcpu.events.settle(0, 400, 1_000), 0, "it has begun");
        assert_eq!(cpu.vcpu.events.settle(1, 900, 1_000), 0);
        assert_eq!(cpu.progress_of_event(0, 1_100).stalled, 700, "since it began");
        assert_eq!(cpu.progress_of_event(0, 1_150).stalled, 50, "since it was told");
        assert_eq!(cpu.vcpu.events.settle(0, 0, 1_200), 50, "the same stall goes on");
        assert_eq!(cpu.remove_event(1, 1_300), 400);
    });
    assert!(unsettled(), "still");
    machine.refuse(None);
    machine.on(0, |cpu| cpu.enable_events(None));
    assert!(unsettled(), "it has ended");
    assert_eq!(machine.on(0, |cpu| cpu.vcpu.events.settle(0, 1_400, 1_400)), 200);
    assert!(!unsettled());
    assert_eq!(machine.on(0, |cpu| cpu.remove_event(0, 2_000)), 0);
}

#[test]
fn an_event_in_neither_ring_counts_nothing() {
    let machine = Machine::new();
    for samples in [false, true] {
        let nowhere = EventConfig::new(&Machine::caps(), TYPE_RAW, 0xc0, 0, samples).unwrap();
        let of = [(nowhere, 100), (event(0xc4, false), 0)];
        assert_eq!(machine.schedule(0, &of), [Ok(0), Ok(1)]);
        machine.execute(0, 1_000, 100);
        assert_eq!(machine.progress(0, 0), Progress { left: 100, ..Progress::default() });
        assert_eq!(machine.progress(0, 1).count, 100, "the other one does");
        machine.on(0, |cpu| {
            assert_eq!(cpu.overflowed_events(), 0);
            cpu.disable_events();
            (cpu.remove_event(0, 0), cpu.remove_event(1, 0))
        });
    }
}

#[test]
fn an_event_counts_where_it_is_and_when_it_is_started() {
    let machine = Machine::new();
    machine.execute(0, 100, 10);
    let of = [(event(0xc0, false), 0), (event(0xc4, false), 0)];
    assert_eq!(machine.schedule(0, &of), [Ok(0), Ok(1)]);
    assert_eq!(machine.take_hypercalls(), [(0, OP_LOAD)], "one for both");
    machine.execute(0, 1_000, 100);
    machine.preempt_vcpu(0);
    assert_eq!([0, 1].map(|n| machine.progress(0, n).count), [1_000, 100]);
    machine.execute(0, 5, 1);
    machine.on(0, |cpu| {
        cpu.disable_events();
        cpu.stop_event(1);
        cpu.enable_events(None);
    });
    machine.execute(0, 7, 2);
    assert_eq!([0, 1].map(|n| machine.progress(0, n).count), [12, 1]);
    machine.on(0, |cpu| (cpu.disable_events(), cpu.remove_event(0, 0), cpu.remove_event(1, 0)));
    assert_eq!(machine.schedule(0, &of[..1]), [Ok(0)]);
    machine.execute(0, 3, 0);
    assert_eq!(machine.progress(0, 0).count, 3);
    assert_eq!(machine.take_hypercalls(), [], "it was still loaded");
}

#[test]
fn events_count_on_whichever_of_them_goes_and_comes_back() {
    let wanted = [(event(0xc0, false), 1), (event(0xc4, false), 1), (event(0xc4, true), 5_000)];
    for gone in 0..3 {
        let machine = Machine::new();
        assert_eq!(machine.schedule(0, &wanted), [Ok(0), Ok(1), Ok(2)]);
        let counted = || [0, 1, 2].map(|n| machine.progress(0, n).count);
        machine.execute(0, 1_000, 100);
        assert_eq!(counted(), [1_000, 100, 100]);
        machine.on(0, |cpu| {
            cpu.disable_events();
            cpu.remove_event(gone, 0);
            cpu.enable_events(None);
        });
        machine.execute(0, 500, 40);
        let mut expected = [500, 40, 40];
        expected[gone as usize] = 0;
        assert_eq!(counted(), expected, "event {gone} has gone");
        assert_eq!(machine.schedule(0, &wanted[gone as usize..][..1]), [Ok(gone)]);
        machine.execute(0, 30, 2);
        assert_eq!(counted(), [30, 2, 2], "event {gone} has come back");
    }
}

#[test]
fn nothing_counts_while_perf_has_disabled_its_pmu() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    machine.on(0, |cpu| cpu.disable_events());
    machine.execute(0, 1_000, 0);
    assert_eq!(machine.progress(0, 0).count, 0);
    machine.on(0, |cpu| cpu.enable_events(None));
    machine.execute(0, 10, 0);
    assert_eq!(machine.progress(0, 0).count, 10);
}

#[test]
fn there_is_no_counter_for_too_many() {
    let machine = Machine::new();
    let kinds = [0xc0, 0xc4, 0xc0 | 1 << 24, 0xc4 | 1 << 24, 0xc0 | 2 << 24];
    let of = kinds.map(|select| (event(select, false), 0));
    let added = machine.schedule(0, &of);
    assert_eq!(added, [Ok(0), Ok(1), Ok(2), Ok(3), Err(Errno::AGAIN)], "4 general counters");
    let same = machine.schedule(0, &of[..1]);
    assert_eq!(same, [Ok(4)], "the same event needs none of its own");
    machine.on(0, |cpu| cpu.refuse(Errno::NODEV));
    assert_eq!(machine.schedule(0, &of[..1]), [Err(Errno::AGAIN)]);
}

#[test]
fn a_group_fits_if_all_of_it_has_counters() {
    let kinds = [0xc0, 0xc4, 0xc0 | 1 << 24, 0xc4 | 1 << 24, 0xc0 | 2 << 24];
    let group = kinds.map(|select| event(select, false));
    assert!(fit(&[]) && fit(&group[..4]), "4 general counters");
    assert!(!fit(&group));
    let [one, two, three, four, _] = group;
    assert!(fit(&[one, two, three, four, one]), "the same event needs none of its own");
    assert!(!fit(&[one; EVENTS_MAX + 1]), "perf has no more here at once");
}

#[test]
fn events_go_on_when_the_page_is_another_users() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    machine.execute(0, 1_000, 0);
    machine.take_hypercalls();
    machine.on(0, |cpu| {
        cpu.unregister().unwrap();
        cpu.register(2, 7).unwrap();
    });
    assert_eq!(machine.take_hypercalls(), [(0, OP_UNREGISTER), (0, OP_REGISTER), (0, OP_LOAD)]);
    machine.execute(0, 50, 0);
    assert_eq!(machine.progress(0, 0).count, 1_050);
}

#[test]
fn events_and_threads_count_beside_each_other() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    let held = machine.programmed(0).slots();
    machine.execute(0, 100, 10);
    let thread = machine.thread();
    // The thread wants all general counters, and the event's for something else.
    thread.start(&[0, 1, 2].map(|slot| counter(slot, BRANCHES)));
    thread.execute(1_000);
    assert_eq!(held, 1 << 3, "the last one is asked for least");
    assert_eq!(machine.programmed(0).slots(), 0b1111);
    thread.start(&[counter(3, BRANCHES)]);
    thread.execute(1_000);
    assert_eq!(machine.progress(0, 0).count, 2_100, "on another counter by now");
    assert_eq!(thread.read().unwrap().counter[0], 100);
    let all = [0, 1, 2, 3].map(|slot| counter(slot, BRANCHES));
    assert_eq!(thread.control(&crate::testing::control(&all)), Err(Errno::BUSY));
    thread.execute(1_000);
    assert_eq!(thread.read().unwrap().counter[0], 200, "it goes on as before");
    assert_eq!(machine.progress(0, 0).count, 1_000);
    let shared = [counter(3, BRANCHES), counter(0, INSTRUCTIONS)];
    thread.start(&shared);
    thread.execute(10);
    assert_eq!(thread.read().unwrap().counter[..2], [1, 10]);
}

#[test]
fn an_event_comes_while_a_thread_counts() {
    let machine = Machine::new();
    let thread = machine.thread();
    let sampling = CounterConfig { mode: MODE_SAMPLING, period: 1_000, ..counter(0, INSTRUCTIONS) };
    let mut control = crate::testing::control(&[sampling, counter(3, BRANCHES)]);
    control.signal = 27;
    thread.control(&control).unwrap();
    thread.execute(400);
    machine.on(0, |cpu| {
        let mut pmu = thread.pmu.borrow_mut();
        cpu.disable_events();
        let same = cpu.add_event(&event(0xc0, false), pmu.needs()).unwrap();
        cpu.start_event(same, 0, 0, 0);
        machine.take_hypercalls();
        assert!(!cpu.enable_events(Some((&mut pmu, &thread.page))));
        assert_eq!(machine.take_hypercalls(), [], "the thread's own counter counts it");
        cpu.disable_events();
        let other = cpu.add_event(&event(0xc0 | 1 << 24, false), pmu.needs()).unwrap();
        cpu.start_event(other, 0, 0, 0);
        let tell = cpu.enable_events(Some((&mut pmu, &thread.page)));
        assert!(!tell, "nothing has overflowed");
    });
    let programmed = machine.programmed(0);
    let general = |n| PhysSlot::general(n).unwrap();
    assert_eq!(programmed.evntsel(general(0)), INSTRUCTIONS);
    assert_eq!(programmed.period(general(0)), 600, "what is left of the thread's period");
    assert_eq!(programmed.evntsel(general(3)), BRANCHES);
    thread.execute(100);
    assert_eq!([0, 1].map(|n| machine.progress(0, n).count), [100, 100]);
    assert_eq!(thread.read().unwrap().counter[..2], [500, 50]);
}

#[test]
fn an_event_leaves_room_for_a_thread_that_is_being_switched_in() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[0, 1, 2, 3].map(|slot| counter(slot, BRANCHES)));
    thread.execute(100);
    thread.switch_out();
    machine.on(0, |cpu| {
        cpu.disable_events();
        let thread = thread.pmu.borrow();
        let added = cpu.add_event(&event(0xc0 | 1 << 24, false), thread.needs());
        assert_eq!(added, Err(Errno::AGAIN));
        cpu.enable_events(None);
    });
    thread.switch_in(0);
    thread.execute(100);
    assert_eq!(thread.read().unwrap().counter[..4], [20; 4]);
}

#[test]
fn what_cannot_interrupt_is_not_sampled() {
    let mut caps = Machine::caps();
    caps.features = 0;
    let new = |samples| EventConfig::new(&caps, TYPE_RAW, 0xc0, USER, samples);
    assert_eq!(new(true), Err(Errno::OPNOTSUPP));
    assert!(new(false).is_ok());
}

/// Has a thread load these counters and leave them behind.
fn left_behind(machine: &Machine, counters: &[CounterConfig]) {
    let thread = machine.thread();
    thread.start(counters);
    thread.stop();
    machine.take_hypercalls();
}

#[test]
fn what_counts_it_already_is_taken() {
    let machine = Machine::new();
    left_behind(&machine, &[counter(1, INSTRUCTIONS)]);
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    assert_eq!(machine.take_hypercalls(), []);
    machine.execute(0, 10, 1);
    assert_eq!(machine.progress(0, 0).count, 10);
}

#[test]
fn a_free_counter_is_taken_rather_than_one_in_use() {
    let machine = Machine::new();
    left_behind(&machine, &[counter(3, BRANCHES)]);
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    assert_eq!(machine.programmed(0).slots(), 0b1100);
}

#[test]
fn what_nobody_needs_makes_room() {
    let machine = Machine::new();
    left_behind(&machine, &[0, 1, 2, 3].map(|slot| counter(slot, BRANCHES)));
    machine.schedule(0, &[(event(0xc0, false), 0), (event(0xc0 | 1 << 24, false), 0)]);
    machine.execute(0, 10, 1);
    assert_eq!([0, 1].map(|n| machine.progress(0, n).count), [10, 10]);
    assert_eq!(machine.programmed(0).slots(), 0b1111, "the others stay");
}

#[test]
fn what_could_not_be_loaded_counts_nothing() {
    let machine = Machine::new();
    left_behind(&machine, &[0, 1, 2, 3].map(|slot| counter(slot, BRANCHES)));
    machine.refuse(Some(Errno::PERM));
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    machine.execute(0, 1_000, 100);
    assert_eq!(machine.progress(0, 0).count, 0);
}

#[test]
fn a_thread_that_begins_does_not_enable_perf() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    machine.on(0, |cpu| cpu.disable_events());
    let thread = machine.thread();
    thread.start(&[counter(0, BRANCHES)]);
    thread.execute(1_000);
    assert_eq!(machine.progress(0, 0).count, 0);
}

#[test]
fn what_was_counted_before_the_domain_was_saved_stays() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    machine.execute(0, 1_000, 0);
    machine.preempt_vcpu(0);
    machine.on(0, |cpu| {
        cpu.unregister().unwrap();
        cpu.register(2, 7).unwrap();
    });
    machine.execute(0, 50, 0);
    assert_eq!(machine.progress(0, 0).count, 1_050);
}

#[test]
fn events_are_stalled_while_the_host_forbids() {
    let machine = Machine::new();
    let stalled = || is_stalled(&machine, 0);
    machine.on(0, |cpu| assert!(!cpu.enable_events(None)));
    assert!(!stalled(), "there are none");
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    machine.execute(0, 1_000, 0);
    assert!(!stalled());
    machine.revoke(0);
    machine.refuse(Some(Errno::PERM));
    // The interrupt says so.
    machine.on(0, |cpu| assert!(!cpu.enable_events(None)));
    assert!(stalled());
    machine.execute(0, 1_000, 0);
    assert_eq!(machine.progress(0, 0).count, 1_000, "what was counted before");
    machine.on(0, |cpu| (cpu.disable_events(), assert!(!cpu.enable_events(None))));
    assert!(stalled(), "also what comes anew");
    machine.refuse(None);
    machine.on(0, |cpu| assert!(!cpu.enable_events(None)));
    assert!(!stalled());
    machine.execute(0, 7, 0);
    assert_eq!(machine.progress(0, 0).count, 7);
}

#[test]
fn a_reading_that_lacks_events_is_not_said_to_be_whole() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    for round in 1..=2 {
        machine.execute(0, 1_000, 0);
        machine.revoke(0);
        machine.refuse(Some(Errno::PERM));
        machine.execute(0, 300, 0);
        // The interrupt that says so has not come yet.
        let read = |at| machine.on(0, |cpu| cpu.progress_of_event(0, at));
        let [part, none, rest] = [5_000, 5_000, 5_040].map(read);
        assert_eq!((part.count, part.stalled), (1_000, 1), "round {round}");
        assert_eq!((none.count, none.stalled), (0, 0), "round {round}");
        assert_eq!((rest.count, rest.stalled), (0, 40), "round {round}");
        machine.refuse(None);
        machine.on(0, |cpu| assert!(!cpu.enable_events(None)));
        assert_eq!(read(5_050).stalled, 10, "round {round}");
        assert_eq!(read(5_060).stalled, 0, "round {round}");
    }
}

#[test]
fn an_event_that_is_removed_before_the_interrupt_is_not_said_to_have_counted_all_the_time() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0), (event(0xc4, false), 0)]);
    machine.execute(0, 1_000, 0);
    machine.revoke(0);
    machine.refuse(Some(Errno::PERM));
    machine.on(0, |cpu| {
        cpu.disable_events();
        assert_eq!([0, 1].map(|index| cpu.remove_event(index, 700)), [1; 2]);
    });
}

#[test]
fn events_are_stalled_where_there_is_no_page() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    machine.execute(0, 1_000, 0);
    machine.on(0, |cpu| {
        cpu.unregister().unwrap();
        cpu.refuse(Errno::STALE);
    });
    assert!(is_stalled(&machine, 0));
    assert_eq!(machine.progress(0, 0).count, 1_000);
}

#[test]
fn events_are_stalled_in_a_new_page_in_which_nothing_could_be_loaded() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    for round in 1..=2 {
        machine.execute(0, 300, 0);
        machine.on(0, |cpu| cpu.unregister()).unwrap();
        machine.refuses_loads.set(true);
        machine.on(0, |cpu| cpu.register(5, 8)).unwrap();
        machine.on(0, |cpu| assert!(!cpu.enable_events(None)));
        assert!(is_stalled(&machine, 0), "round {round}");
        machine.refuses_loads.set(false);
        machine.on(0, |cpu| assert!(!cpu.enable_events(None)));
        assert!(!is_stalled(&machine, 0), "round {round}");
        machine.execute(0, 40, 0);
        assert_eq!(machine.progress(0, 0).count, 340, "round {round}");
    }
}

#[test]
fn events_are_stalled_from_when_their_page_was_refused() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    for round in 1..=2 {
        machine.execute(0, 300, 0);
        machine.on(0, |cpu| cpu.unregister()).unwrap();
        machine.refuse(Some(Errno::NOMEM));
        assert_eq!(machine.on(0, |cpu| cpu.register(5, 8)), Err(Errno::NOMEM));
        machine.refuse(None);
        assert!(is_stalled(&machine, 0), "round {round}");
        machine.on(0, |cpu| cpu.register(5, 8)).unwrap();
        assert!(!is_stalled(&machine, 0), "round {round}");
        assert_eq!(machine.progress(0, 0).count, 300, "round {round}");
    }
}

#[test]
fn what_cannot_be_read_does_not_count_backwards() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    for round in 1..=2 {
        machine.execute(0, 500, 0);
        assert_eq!(machine.progress(0, 0).count, 500, "round {round}");
        machine.execute(0, 300, 0);
        machine.refuses_reads.set(true);
        machine.on(0, |cpu| cpu.fold_events());
        machine.refuses_reads.set(false);
        assert_eq!(machine.progress(0, 0).count, 0, "round {round}: nobody knows");
        machine.on(0, |cpu| (cpu.disable_events(), cpu.enable_events(None)));
    }
}

#[test]
fn an_interrupt_concerns_only_what_samples() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    machine.take_hypercalls();
    machine.execute(0, 1_000, 0);
    machine.on(0, |cpu| {
        assert_eq!(cpu.overflowed_events(), 0);
        cpu.enable_events(None);
    });
    assert_eq!(machine.take_hypercalls(), []);
    machine.execute(0, 7, 0);
    assert_eq!(machine.progress(0, 0).count, 1_007, "nothing is lost by it");
    let two = [(event(0xc4, true), 1_000), (event(0xc0 | 1 << 24, true), 1_000)];
    assert_eq!(machine.schedule(0, &two), [Ok(1), Ok(2)]);
    machine.execute(0, 1_000, 1_000);
    machine.on(0, |cpu| assert_eq!(cpu.overflowed_events(), 0b110));
}

const INTERRUPTED: HvPlace =
    HvPlace { slot: 0, mode: PLACE_KERNEL, ip: 0x2000, sp: 0x88, flags: 2 };
const SEEN: HvPlace = HvPlace { slot: 0, mode: PLACE_KERNEL, ip: 0x1000, sp: 0x99, flags: 4 };

/// Returns whose registers a sample of an event in these rings gets, and the place with them.
fn registers(machine: &Machine, rings: u64, interrupted: HvPlace) -> (Registers, HvPlace) {
    let event = EventConfig::new(&Machine::caps(), TYPE_RAW, 0xc0, rings, true).unwrap();
    let [Ok(index)] = machine.schedule(0, &[(event, 5_000)])[..] else { panic!("no counter") };
    machine.take_hypercalls();
    machine.on(0, |cpu| {
        let mut place = interrupted;
        let registers = cpu.registers_of_event(index, &mut place);
        cpu.remove_event(index, 0);
        (registers, place)
    })
}

#[test]
fn a_sample_of_the_kernel_is_where_the_hypervisor_has_seen_it() {
    let machine = Machine::new();
    let both = EVNTSEL_USR | EVNTSEL_OS;
    machine.place.set(SEEN);
    let found = registers(&machine, both, INTERRUPTED);
    assert_eq!(found, (Registers::Place, HvPlace { slot: 3, ..SEEN }), "of its own counter");
    assert_eq!(machine.take_hypercalls(), [(0, OP_PLACE)]);
    let (nothing, stopped) = (HvPlace::default(), INTERRUPTED);
    assert_eq!(registers(&machine, both, nothing), (Registers::Place, HvPlace { slot: 3, ..SEEN }));
    let same = HvPlace { ip: SEEN.ip, sp: SEEN.sp, ..stopped };
    assert_eq!(registers(&machine, both, same).0, Registers::Interrupted, "with all registers");
    for elsewhere in [HvPlace { ip: SEEN.ip, ..stopped }, HvPlace { sp: SEEN.sp, ..stopped }] {
        assert_eq!(registers(&machine, both, elsewhere).0, Registers::Place);
    }
    machine.place.set(HvPlace { mode: PLACE_USER, ..SEEN });
    assert_eq!(registers(&machine, both, stopped), (Registers::User, stopped));
    machine.place.set(nothing);
    assert_eq!(registers(&machine, both, stopped), (Registers::Interrupted, stopped));
    assert_eq!(registers(&machine, both, nothing), (Registers::User, nothing));
    let unknown = machine.on(0, |cpu| cpu.registers_of_event(7, &mut { stopped }));
    assert_eq!(unknown, Registers::User, "no event");
}

#[test]
fn a_sample_of_the_kernel_keeps_its_place_when_the_page_is_taken_back_before() {
    let machine = Machine::new();
    let both = EVNTSEL_USR | EVNTSEL_OS;
    let of = |rings, select| EventConfig::new(&Machine::caps(), TYPE_RAW, select, rings, true);
    let wanted = [(of(both, 0xc0).unwrap(), 5_000), (of(both, 0xc4).unwrap(), 400)];
    assert_eq!(machine.schedule(0, &wanted), [Ok(0), Ok(1)]);
    for round in 1..=2 {
        machine.execute(0, 6_000, 300);
        machine.place.set(SEEN);
        machine.take_hypercalls();
        machine.on(0, |cpu| cpu.unregister()).unwrap();
        let calls = [(0, OP_PLACE), (0, OP_UNREGISTER)];
        assert_eq!(machine.take_hypercalls(), calls, "only one of the two has overflowed");
        machine.on(0, |cpu| {
            cpu.unregister().unwrap();
            let mut place = HvPlace::default();
            assert_eq!(cpu.registers_of_event(0, &mut place), Registers::Place, "round {round}");
            assert_eq!(place, HvPlace { slot: 3, ..SEEN }, "round {round}");
            let mut place = HvPlace::default();
            assert_eq!(
                cpu.registers_of_event(0, &mut place),
                Registers::User,
                "a place is given once"
            );
            cpu.next_period_of_event(0);
            cpu.register(7, 1).unwrap();
            cpu.enable_events(None);
        });
        machine.execute(0, 1, 0);
        machine.on(0, |cpu| cpu.start_event(1, 400, 400, 0));
        machine.on(0, |cpu| cpu.enable_events(None));
    }
}

#[test]
fn a_sample_of_user_mode_is_where_the_kernel_was_entered() {
    let machine = Machine::new();
    machine.place.set(SEEN);
    assert_eq!(registers(&machine, EVNTSEL_USR, INTERRUPTED), (Registers::User, INTERRUPTED));
    assert_eq!(machine.take_hypercalls(), [], "nobody is asked");
    let in_user = HvPlace { mode: PLACE_USER, ..INTERRUPTED };
    assert_eq!(registers(&machine, EVNTSEL_USR, in_user), (Registers::Interrupted, in_user));
    let nothing = HvPlace::default();
    assert_eq!(registers(&machine, EVNTSEL_USR, nothing), (Registers::User, nothing));
}

#[test]
fn a_short_period_of_user_mode_interrupts_where_it_ends() {
    for (period, overshoot) in [(1, 0), (25, 0), (102, 7), (999, 3)] {
        let machine = Machine::new();
        start_periods(&machine, &[(event(0xc0, true), period, 0)]);
        for _ in 0..3 {
            assert_eq!(armed(&machine, [3]), [period]);
            machine.execute(0, period, 0);
            assert_eq!(interrupt(&machine), 0b1);
        }
        // An interrupt that is late takes nothing from the period that it is late for.
        machine.execute(0, period + overshoot, 0);
        assert_eq!(interrupt(&machine), 0b1);
        assert_eq!(armed(&machine, [3]), [period - overshoot]);
    }
}

#[test]
fn a_period_longer_than_a_counter_is_reached_in_steps() {
    let machine = Machine::new();
    let period = 2 * PERIOD_EVENTS_MAX + 5;
    start_periods(&machine, &[(event(0xc0, true), period, 0), (event(0xc4, true), 1 << 60, 0)]);
    for _ in 0..2 {
        for step in [PERIOD_EVENTS_MAX, PERIOD_EVENTS_MAX, 5] {
            assert_eq!(armed(&machine, [3, 2]), [step, PERIOD_EVENTS_MAX]);
            machine.execute(0, step, 0);
            assert_eq!(interrupt(&machine), u32::from(step == 5));
        }
    }
    assert_eq!(
        machine.progress(0, 0),
        Progress { count: 2 * period, left: period as i64, stalled: 0 }
    );
    assert_eq!(machine.progress(0, 1).left, 1 << 60);
}

#[test]
fn short_periods_of_the_kernel_leave_room_between_interrupts() {
    let machine = Machine::new();
    let both = EVNTSEL_USR | EVNTSEL_OS;
    let of_both = EventConfig::new(&Machine::caps(), TYPE_RAW, 0xc0, both, true).unwrap();
    machine.schedule(0, &[(of_both, 30)]);
    let slot = PhysSlot::general(3).unwrap();
    assert_eq!(machine.programmed(0).period(slot), 1_020, "the first multiple beyond");
    machine.execute(0, 1_020, 0);
    machine.on(0, |cpu| {
        assert_eq!(cpu.overflowed_events(), 0b1);
        assert_eq!(cpu.next_period_of_event(0), 34);
    });
}

#[test]
fn every_period_of_an_event_is_told() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, true), 1_000), (event(0xc4, false), 0)]);
    let slot = PhysSlot::general(3).unwrap();
    assert_eq!(machine.programmed(0).period(slot), 1_000);
    machine.execute(0, 900, 90);
    machine.on(0, |cpu| assert_eq!(cpu.overflowed_events(), 0, "it was another's"));
    machine.on(0, |cpu| cpu.load_events());
    assert_eq!(machine.programmed(0).period(slot), 100);
    machine.execute(0, 2_150, 0);
    machine.on(0, |cpu| {
        assert_eq!(cpu.overflowed_events(), 0b1);
        assert_eq!(cpu.next_period_of_event(0), 3);
        assert_eq!(cpu.next_period_of_event(1), 0, "that one does not sample");
        cpu.enable_events(None);
    });
    assert_eq!(machine.programmed(0).period(slot), 950);
    assert_eq!(machine.progress(0, 0), Progress { count: 3_050, left: 950, stalled: 0 });
    // It is told late, and never forgotten.
    machine.execute(0, 950, 0);
    assert_eq!(machine.progress(0, 0).left, 0);
    machine.on(0, |cpu| cpu.load_events());
    assert_eq!(machine.programmed(0).period(slot), 1, "at the next event");
}

/// Events come and are started with these periods and what is left of them.
fn start_periods(machine: &Machine, events: &[(EventConfig, u64, i64)]) {
    machine.on(0, |cpu| {
        cpu.disable_events();
        for (event, period, left) in events {
            let index = cpu.add_event(event, None).unwrap();
            cpu.start_event(index, *period, *left, 0);
        }
        cpu.enable_events(None);
    });
}

/// Handles an interrupt. Returns which events have overflowed, which have begun their next
/// periods.
fn interrupt(machine: &Machine) -> u32 {
    machine.on(0, |cpu| {
        let overflowed = cpu.overflowed_events();
        for index in slots_of(overflowed).map(|slot| slot.index() as u32) {
            cpu.next_period_of_event(index);
        }
        cpu.enable_events(None);
        overflowed
    })
}

/// Returns what the general counters are armed with.
fn armed<const N: usize>(machine: &Machine, slots: [u32; N]) -> [u64; N] {
    slots.map(|n| machine.programmed(0).period(PhysSlot::general(n).unwrap()))
}

#[test]
fn a_period_goes_on_where_it_was_left() {
    let machine = Machine::new();
    let (one, other) = (event(0xc0, true), event(0xc4, true));
    start_periods(&machine, &[(one, 10_000, 1_500), (other, 7_000, 2_300)]);
    assert_eq!(armed(&machine, [3, 2]), [1_500, 2_300]);
    machine.execute(0, 1_500, 1_000);
    assert_eq!(interrupt(&machine), 0b01);
    assert_eq!(armed(&machine, [3, 2]), [10_000, 1_300]);
    machine.execute(0, 4_000, 1_300);
    assert_eq!(interrupt(&machine), 0b10);
    assert_eq!(armed(&machine, [3, 2]), [6_000, 7_000]);
}

#[test]
fn a_period_that_perf_has_changed_begins_anew() {
    for left in [0, -5, 10_001, i64::MIN, i64::MAX] {
        let machine = Machine::new();
        let (one, other) = (event(0xc0, true), event(0xc4, true));
        start_periods(&machine, &[(one, 10_000, left), (other, 7_000, 7_000)]);
        assert_eq!(armed(&machine, [3, 2]), [10_000, 7_000], "{left}");
    }
}

#[test]
fn every_event_that_comes_is_loaded_and_armed_whatever_comes_after_it() {
    let machine = Machine::new();
    left_behind(&machine, &[counter(0, INSTRUCTIONS), counter(1, BRANCHES)]);
    for round in 1..=2 {
        // Only the first of them is not loaded yet, and only the first is armed.
        let new = event(0xc4 | round << 24, true);
        let events = [(new, 9_000, 2_000), (event(0xc0, false), 0, 0), (event(0xc4, false), 0, 0)];
        start_periods(&machine, &events);
        // What the round before has loaded stays, so this one takes the free counter below it.
        assert_eq!(armed(&machine, [4 - round as u32]), [2_000], "round {round}");
        machine.execute(0, 500, 70);
        assert_eq!([0, 1, 2].map(|n| machine.progress(0, n).count), [70, 500, 70], "{round}");
        machine.on(0, |cpu| [0, 1, 2].map(|index| cpu.remove_event(index, 0)));
    }
}

#[test]
fn an_interrupt_that_comes_too_early_arms_again() {
    let machine = Machine::new();
    start_periods(
        &machine,
        &[(event(0xc0, true), 5_000, 4_000), (event(0xc4, true), 6_000, 3_000)],
    );
    machine.execute(0, 2_500, 100);
    assert_eq!(interrupt(&machine), 0, "nobody's");
    assert_eq!(armed(&machine, [3, 2]), [1_500, 2_900]);
    machine.execute(0, 400, 900);
    assert_eq!(interrupt(&machine), 0, "again");
    assert_eq!(armed(&machine, [3, 2]), [1_100, 2_000]);
    machine.execute(0, 1_100, 30);
    assert_eq!(interrupt(&machine), 0b01);
    assert_eq!(armed(&machine, [3, 2]), [5_000, 1_970]);
}

#[test]
fn events_that_share_a_counter_are_told_at_the_shorter_distance() {
    for (first, second) in [(9_000, 4_000), (4_000, 9_000)] {
        let machine = Machine::new();
        let same = event(0xc0, true);
        start_periods(&machine, &[(same, first, first as i64), (same, second, second as i64)]);
        let short = if first < second { 0b01 } else { 0b10 };
        assert_eq!(machine.programmed(0).slots(), 0b1000, "one counter");
        for (distance, overflowed) in
            [(4_000, short), (4_000, short), (1_000, 0b11 & !short), (3_000, short)]
        {
            assert_eq!(armed(&machine, [3]), [distance], "{first} before {second}");
            machine.execute(0, distance, 0);
            assert_eq!(interrupt(&machine), overflowed);
        }
    }
}
