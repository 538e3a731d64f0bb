// SPDX-License-Identifier: MIT OR GPL-2.0-only

extern crate std;

use std::vec::Vec;

use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_OS, EVNTSEL_USR};
use shared_abi::config::MODE_SAMPLING;
use shared_abi::events::Generic;
use shared_abi::hypercall::{HvPlace, OP_LOAD, OP_PLACE, OP_REGISTER, OP_UNREGISTER, PLACE_KERNEL};
use shared_abi::{CounterConfig, Errno, PhysSlot};

use super::event::{TYPE_HARDWARE, TYPE_RAW};
use super::held::EVENTS_MAX;
use super::{EventConfig, Progress, fit};
use crate::testing::{BRANCHES, INSTRUCTIONS, Machine, counter};

mod again;

const USER: u64 = EVNTSEL_USR;

fn event(select: u64, samples: bool) -> EventConfig {
    EventConfig::new(&Machine::caps(), TYPE_RAW, select, USER, samples).unwrap()
}

impl Machine {
    /// perf schedules these in on a vCPU.
    fn schedule(&self, vcpu: usize, wanted: &[(EventConfig, i64)]) -> Vec<Result<u32, Errno>> {
        self.on(vcpu, |cpu| {
            cpu.disable_events();
            let added = wanted.iter().map(|(wanted, left)| {
                let index = cpu.add_event(wanted, None)?;
                cpu.start_event(index, left.unsigned_abs(), *left);
                Ok(index)
            });
            let added = added.collect();
            assert!(!cpu.enable_events(None), "nobody is to be told");
            added
        })
    }

    fn progress(&self, vcpu: usize, index: u32) -> Progress {
        self.on(vcpu, |cpu| cpu.progress_of_event(index))
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
    assert_eq!(new(TYPE_RAW, 0xc0 | EVNTSEL_OS), Err(Errno::INVAL), "rings are perf's to say");
    assert_eq!(new(TYPE_RAW, 0xc0 | 1 << 40), Err(Errno::INVAL));
    assert_eq!(EventConfig::new(&caps, TYPE_RAW, 0x01_b7, 0, false), Err(Errno::PERM));
}

#[test]
fn an_event_in_neither_ring_counts_nothing() {
    let machine = Machine::new();
    for samples in [false, true] {
        let nowhere = EventConfig::new(&Machine::caps(), TYPE_RAW, 0xc0, 0, samples).unwrap();
        let of = [(nowhere, 100), (event(0xc4, false), 0)];
        assert_eq!(machine.schedule(0, &of), [Ok(0), Ok(1)]);
        machine.execute(0, 1_000, 100);
        assert_eq!(machine.progress(0, 0), Progress { count: 0, left: 100 });
        assert_eq!(machine.progress(0, 1).count, 100, "the other one does");
        machine.on(0, |cpu| {
            assert_eq!(cpu.overflowed_events(), 0);
            cpu.disable_events();
            (cpu.remove_event(0), cpu.remove_event(1))
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
    machine.on(0, |cpu| (cpu.disable_events(), cpu.remove_event(0), cpu.remove_event(1)));
    assert_eq!(machine.schedule(0, &of[..1]), [Ok(0)]);
    machine.execute(0, 3, 0);
    assert_eq!(machine.progress(0, 0).count, 3);
    assert_eq!(machine.take_hypercalls(), [], "it was still loaded");
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
        cpu.start_event(same, 0, 0);
        machine.take_hypercalls();
        assert!(!cpu.enable_events(Some((&mut pmu, &thread.page))));
        assert_eq!(machine.take_hypercalls(), [], "the thread's own counter counts it");
        cpu.disable_events();
        let other = cpu.add_event(&event(0xc0 | 1 << 24, false), pmu.needs()).unwrap();
        cpu.start_event(other, 0, 0);
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

/// A thread has left this loaded.
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
        assert!(!cpu.events_are_stalled());
    });
    machine.execute(0, 50, 0);
    assert_eq!(machine.progress(0, 0).count, 1_050);
}

#[test]
fn events_are_stalled_while_the_host_forbids() {
    let machine = Machine::new();
    let stalled = || machine.on(0, |cpu| cpu.events_are_stalled());
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
fn events_are_stalled_where_there_is_no_page() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    machine.execute(0, 1_000, 0);
    machine.on(0, |cpu| {
        cpu.unregister().unwrap();
        cpu.refuse(Errno::STALE);
        assert!(cpu.events_are_stalled());
    });
    assert_eq!(machine.progress(0, 0).count, 1_000);
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

#[test]
fn an_events_place_is_that_of_its_counter() {
    let machine = Machine::new();
    machine.place.set(HvPlace { mode: PLACE_KERNEL, ip: 0x1000, ..HvPlace::default() });
    assert_eq!(machine.schedule(0, &[(event(0xc0, true), 5_000)]), [Ok(0)]);
    machine.take_hypercalls();
    let place = machine.on(0, |cpu| cpu.place_of_event(0));
    let expected = HvPlace { slot: 3, mode: PLACE_KERNEL, ip: 0x1000, ..HvPlace::default() };
    assert_eq!(place, expected);
    assert_eq!(machine.take_hypercalls(), [(0, OP_PLACE)]);
    machine.on(0, |cpu| assert_eq!(cpu.place_of_event(1), HvPlace::default(), "no event"));
    assert_eq!(machine.take_hypercalls(), []);
    machine.refuse(Some(Errno::INVAL));
    machine.on(0, |cpu| assert_eq!(cpu.place_of_event(0), HvPlace::default(), "no such call"));
}

#[test]
fn short_periods_leave_room_between_interrupts() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, true), 30)]);
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
    assert_eq!(machine.progress(0, 0), Progress { count: 3_050, left: 950 });
    // It is told late, and never forgotten.
    machine.execute(0, 950, 0);
    assert_eq!(machine.progress(0, 0).left, 0);
    machine.on(0, |cpu| cpu.load_events());
    assert_eq!(machine.programmed(0).period(slot), 1, "at the next event");
}
