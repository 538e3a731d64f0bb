// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Events that come, start and stop again, where what is left is not the period, and where one of
//! two is loaded already.

use shared_abi::Config;

use super::super::held::Events;
use super::*;

fn programmed(machine: &Machine, index: u32) -> (u32, u64) {
    let slot = machine.on(0, |cpu| cpu.vcpu.events.get(index).unwrap().1);
    let config = machine.programmed(0);
    (config.sampling() & slot.bit(), config.period(slot))
}

#[test]
fn what_is_left_of_an_events_period_is_loaded_and_not_the_period() {
    let machine = Machine::new();
    machine.on(0, |cpu| {
        cpu.disable_events();
        let index = cpu.add_event(&event(0xc0, true), None).unwrap();
        cpu.start_event(index, 5_000, 1_300, 0);
        cpu.enable_events(None);
    });
    assert_eq!(machine.progress(0, 0), Progress { left: 1_300, ..Progress::default() });
    assert_eq!(programmed(&machine, 0).1, 1_300);
    machine.execute(0, 1_300, 0);
    assert_eq!(machine.on(0, |cpu| cpu.overflowed_events()), 1);
    machine.on(0, |cpu| assert_eq!(cpu.next_period_of_event(0), 1));
    assert_eq!(machine.progress(0, 0).left, 5_000);
}

#[test]
fn of_two_events_that_come_at_once_each_may_be_the_one_to_load() {
    for order in [[0xc0, 0xc4], [0xc4, 0xc0]] {
        let machine = Machine::new();
        left_behind(&machine, &[counter(3, BRANCHES)]);
        machine.schedule(0, &order.map(|select| (event(select, false), 0)));
        machine.execute(0, 70, 7);
        let counts = [0, 1].map(|index| machine.progress(0, index).count);
        let expected = order.map(|select| if select == 0xc0 { 70 } else { 7 });
        assert_eq!(counts, expected);
    }
}

#[test]
fn an_interrupt_that_no_count_confirms_arms_again() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, true), 10_000)]);
    for left in [9_400, 8_800] {
        machine.execute(0, 600, 0);
        machine.take_hypercalls();
        machine.on(0, |cpu| {
            assert_eq!(cpu.overflowed_events(), 0);
            cpu.enable_events(None);
        });
        assert_eq!(machine.take_hypercalls(), [(0, OP_LOAD)]);
        assert_eq!(programmed(&machine, 0).1, left);
    }
}

#[test]
fn an_event_that_samples_is_armed_where_its_select_is_loaded_already() {
    let machine = Machine::new();
    left_behind(&machine, &[counter(3, BRANCHES)]);
    machine.schedule(0, &[(event(0xc4, true), 2_000)]);
    assert_eq!(programmed(&machine, 0), (1 << 3, 2_000));
}

#[test]
fn an_event_that_is_not_started_does_not_interrupt() {
    let machine = Machine::new();
    machine.on(0, |cpu| {
        cpu.disable_events();
        cpu.add_event(&event(0xc0, true), None).unwrap();
        let other = cpu.add_event(&event(0xc4, false), None).unwrap();
        cpu.start_event(other, 0, 0, 0);
        cpu.enable_events(None);
    });
    assert_eq!(machine.programmed(0).sampling(), 0);
}

#[test]
fn an_event_that_is_stopped_has_not_overflowed() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, true), 1_000)]);
    machine.execute(0, 1_500, 0);
    machine.on(0, |cpu| {
        cpu.disable_events();
        cpu.stop_event(0);
        assert_eq!(cpu.overflowed_events(), 0);
    });
}

#[test]
fn starting_and_stopping_one_event_loses_nothing_of_either() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0), (event(0xc4, false), 0)]);
    machine.execute(0, 50, 5);
    // With perf's PMU enabled, as where an overflow stops its event.
    machine.on(0, |cpu| cpu.stop_event(1));
    assert_eq!([0, 1].map(|index| machine.progress(0, index).count), [50, 5]);
    machine.on(0, |cpu| cpu.enable_events(None));
    machine.execute(0, 30, 3);
    machine.on(0, |cpu| cpu.start_event(1, 0, 0, 0));
    assert_eq!([0, 1].map(|index| machine.progress(0, index).count), [30, 0]);
}

#[test]
fn events_are_stalled_from_when_it_is_found_until_they_count() {
    let machine = Machine::new();
    let stalled = || is_stalled(&machine, 0);
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    for _ in 0..2 {
        assert!(!stalled());
        machine.revoke(0);
        machine.progress(0, 0);
        assert!(stalled(), "the host has stopped them");
        // A thread's load brings them back.
        let thread = machine.thread();
        thread.start(&[counter(1, BRANCHES)]);
        thread.stop();
    }
    assert!(!stalled());
}

#[test]
fn events_of_a_restored_vcpu_whose_page_is_refused_stand_still() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    machine.execute(0, 50, 5);
    // The hypervisor that is there now has no page, so the page stays as the last one left it.
    machine.refuse(Some(Errno::NXIO));
    machine.on(0, |cpu| {
        cpu.forget_page();
        cpu.refuse(Errno::PERM);
        cpu.enable_events(None);
    });
    machine.refuse(None);
    assert!(is_stalled(&machine, 0));
    assert_eq!(machine.progress(0, 0).count, 50);
}

#[test]
fn events_that_perf_has_disabled_are_not_stalled() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    machine.on(0, |cpu| {
        cpu.disable_events();
        cpu.refuse(Errno::NODEV);
    });
    assert!(!is_stalled(&machine, 0));
}

#[test]
fn an_event_whose_only_counter_is_missing_is_not_there() {
    let caps = shared_abi::PmuCaps { fixed: 0, ..Machine::caps() };
    let reference = Generic::ReferenceCycles.perf();
    let refused = EventConfig::new(&caps, TYPE_HARDWARE, reference, USER, false);
    assert_eq!(refused, Err(Errno::NOENT));
}

#[test]
fn a_second_event_of_a_kind_shares_the_counter_of_the_first_where_nothing_is_loaded() {
    let machine = Machine::new();
    let kept = [counter(0, BRANCHES), counter(1, BRANCHES)];
    let kept = Config::new(&Machine::caps(), &kept).unwrap();
    let add = |select| {
        machine.on(0, |cpu| {
            cpu.disable_events();
            let added = cpu.add_event(&event(select, false), Some(&kept));
            let index = added.expect("two kinds of events need two counters");
            cpu.start_event(index, 0, 0, 0);
            cpu.enable_events(None);
            cpu.vcpu.events.get(index).unwrap().1.index()
        })
    };
    for round in 1..=2 {
        let other = 0xc4 | round << 24;
        left_behind(&machine, &[counter(3, BRANCHES)]);
        assert_eq!(add(0xc0), 2, "the other one is in use, round {round}");
        // Nothing is loaded in a page that is registered anew.
        machine.on(0, |cpu| cpu.unregister().and_then(|()| cpu.register(0x40, 9))).unwrap();
        machine.on(0, |cpu| cpu.forget_loaded());
        assert_eq!([add(0xc0), add(other)], [2, 3], "round {round}");
        machine.execute(0, 50, 4);
        assert_eq!([0, 1, 2].map(|n| machine.progress(0, n).count), [50, 50, 4], "round {round}");
        machine.on(0, |cpu| [0, 1, 2].map(|index| cpu.remove_event(index, 0)));
    }
}

#[test]
fn events_of_a_kind_that_a_thread_has_parted_share_a_counter_again() {
    let machine = Machine::new();
    let kept = Config::new(&Machine::caps(), &[counter(3, BRANCHES)]).unwrap();
    let add = |select, kept: Option<&Config>| {
        machine.on(0, |cpu| {
            cpu.disable_events();
            let index = cpu.add_event(&event(select, false), kept)?;
            cpu.start_event(index, 0, 0, 0);
            cpu.enable_events(None);
            Ok(index)
        })
    };
    for round in 1..=2 {
        let others = [1, 2, 3].map(|number| 0xc4 | number << 24);
        assert_eq!(add(0xc0, None), Ok(0), "round {round}");
        let taken = machine.on(0, |cpu| cpu.vcpu.events.get(0).unwrap().1.index());
        assert_eq!(taken, 3, "round {round}");
        // The thread needs that counter for something else where the second one comes.
        assert_eq!(add(0xc0, Some(&kept)), Ok(1), "round {round}");
        machine.execute(0, 50, 4);
        assert_eq!(others.map(|select| add(select, None)), [Ok(2), Ok(3), Ok(4)], "round {round}");
        machine.execute(0, 30, 5);
        let counts = [0, 1, 2, 3, 4].map(|n| machine.progress(0, n).count);
        assert_eq!(counts, [80, 80, 5, 5, 5], "round {round}");
        assert_eq!(add(0xc4, None), Err(Errno::AGAIN), "five kinds, round {round}");
        machine.on(0, |cpu| [0, 1, 2, 3, 4].map(|index| cpu.remove_event(index, 0)));
    }
}

#[test]
fn an_event_that_shares_a_counter_again_is_armed_there_though_another_one_does_not_fit() {
    let machine = Machine::new();
    let keeps = |slot| Config::new(&Machine::caps(), &[counter(slot, BRANCHES)]).unwrap();
    let add = |event: EventConfig, left: i64, kept: Option<&Config>| {
        machine.on(0, |cpu| {
            cpu.disable_events();
            let added = cpu.add_event(&event, kept);
            if let Ok(index) = added {
                cpu.start_event(index, left.unsigned_abs(), left, 0);
            }
            cpu.enable_events(None);
            added
        })
    };
    assert_eq!(add(event(0xc0, false), 0, None), Ok(0), "on counter 3");
    assert_eq!(add(event(0xc0, true), 5_000, Some(&keeps(3))), Ok(1), "on counter 2");
    assert_eq!(programmed(&machine, 1), (1 << 2, 5_000));
    let [one, two, three] = [1, 2, 3].map(|number| event(0xc4 | number << 24, false));
    assert_eq!([add(one, 0, None), add(two, 0, None)], [Ok(2), Ok(3)], "on counters 1 and 0");
    // The thread needs counter 2 for something else.
    assert_eq!(add(three, 0, Some(&keeps(2))), Err(Errno::AGAIN));
    assert_eq!(programmed(&machine, 1), (1 << 3, 5_000), "it is beside the first one now");
    machine.execute(0, 50, 4);
    let counts = [0, 1, 2, 3].map(|n| machine.progress(0, n).count);
    assert_eq!(counts, [50, 50, 4, 4]);
}

#[test]
fn only_events_that_a_counter_can_count_share_it() {
    let (mut events, nothing) = (Events::default(), Config::default());
    let instructions = Generic::Instructions.perf();
    let fixed = EventConfig::generic(&Machine::caps(), instructions).unwrap();
    // A fixed counter's select word only says in which mode it counts, so it is the same for these.
    let others = [0, 1, 2, 3].map(|number| event(0xc4 | number << 24, false));
    assert_eq!(others.map(|other| other.fixed), [fixed.fixed; 4]);
    for (event, slot) in
        [fixed, others[0], others[1], others[2], others[3]].iter().zip([16, 3, 2, 1, 0])
    {
        let index = events.add(event, &nothing, &nothing).unwrap();
        assert_eq!(events.get(index).unwrap().1.index(), slot, "event {index}");
    }
    let more = events.add(&event(0xc4 | 4 << 24, false), &nothing, &nothing);
    assert_eq!(more, Err(Errno::AGAIN), "there are 4 general counters");
    let slots = [0, 1, 2, 3, 4].map(|index| events.get(index).unwrap().1.index());
    assert_eq!(slots, [16, 3, 2, 1, 0]);
}
