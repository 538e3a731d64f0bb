// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Events whose samples have branches.

use shared_abi::hypercall::{
    BRANCH_MISPREDICTED, BRANCHES_KINDS, BRANCHES_MAX, BRANCHES_RETURNS, BRANCHES_USER,
    FEATURE_BRANCHES, FEATURE_USER_BRANCHES, HvBranch, HvBranches, OP_BRANCHES, OP_RECORD,
};

use super::*;
use crate::perf::BranchStack;

const ALL: u32 = BRANCHES_USER | BRANCHES_KINDS;
const RETURNS: u32 = BRANCHES_USER | BRANCHES_RETURNS;

fn recorded(branches: u32) -> EventConfig {
    EventConfig { branches: branches as u16, ..event(0xc0, true) }
}

#[test]
fn an_event_is_opened_with_branches_where_they_are_recorded() {
    let caps = Machine::caps();
    let wanted = EventAttr {
        kind: TYPE_RAW,
        config: 0xc0,
        period: 5_000,
        flags: flags::EXCLUDE_KERNEL,
        sample_type: SAMPLE_BRANCH_STACK,
        branch_sample_type: 0x1 | 0x8,
        ..EventAttr::default()
    };
    assert_eq!(EventConfig::open(&caps, &wanted, FEATURE_BRANCHES), Ok(recorded(ALL)));
    assert_eq!(EventConfig::open(&caps, &wanted, 0), Err(Errno::OPNOTSUPP));
    for (modes, features, is_refused) in [
        (0x1, FEATURE_USER_BRANCHES, false),
        (0x3, FEATURE_USER_BRANCHES, true),
        (0x2, FEATURE_USER_BRANCHES, true),
        (0x3, FEATURE_BRANCHES, false),
    ] {
        let attr = EventAttr { branch_sample_type: modes | 0x8, ..wanted };
        let outcome = EventConfig::open(&caps, &attr, features);
        assert_eq!(outcome.err(), is_refused.then_some(Errno::OPNOTSUPP), "{modes:#x}");
    }
    for refused in [
        EventAttr { period: 0, ..wanted },
        EventAttr { branch_sample_type: 0x1 | 1 << 11, ..wanted },
    ] {
        assert_eq!(
            EventConfig::open(&caps, &refused, FEATURE_BRANCHES),
            Err(Errno::OPNOTSUPP),
            "{refused:?}"
        );
    }
    let without = EventAttr { sample_type: 0, ..wanted };
    assert_eq!(EventConfig::open(&caps, &without, FEATURE_BRANCHES), Ok(event(0xc0, true)));
}

#[test]
fn what_an_event_wants_is_recorded_while_it_is_there() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, true), 1_000)]);
    assert!(machine.recorded.take().is_empty(), "nobody wants branches");
    machine.schedule(0, &[(recorded(ALL), 1_000)]);
    assert_eq!(machine.recorded.take(), [ALL]);
    machine.schedule(0, &[]);
    assert!(machine.recorded.take().is_empty(), "what is recorded goes on");
    machine.on(0, |cpu| {
        cpu.disable_events();
        cpu.remove_event(1, 0);
        cpu.enable_events(None);
    });
    assert_eq!(machine.recorded.take(), [0]);
}

#[test]
fn no_event_begins_with_what_was_recorded_before() {
    let machine = Machine::new();
    machine.schedule(0, &[(recorded(ALL), 1_000)]);
    machine.recorded.take();
    // perf exchanges one thread's event for another one's.
    machine.on(0, |cpu| {
        cpu.disable_events();
        cpu.remove_event(0, 0);
        cpu.add_event(&recorded(ALL), None).unwrap();
        cpu.enable_events(None);
    });
    assert_eq!(machine.recorded.take(), [ALL]);
    machine.on(0, |cpu| cpu.enable_events(None));
    assert!(machine.recorded.take().is_empty(), "once");
    // The event stays while another thread comes.
    machine.on(0, |cpu| cpu.forget_records());
    assert_eq!(machine.recorded.take(), [ALL]);
}

#[test]
fn a_switch_costs_nothing_where_nothing_is_recorded() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, true), 1_000)]);
    machine.take_hypercalls();
    machine.on(0, |cpu| cpu.forget_records());
    assert!(machine.take_hypercalls().is_empty());
}

#[test]
fn events_that_want_other_branches_take_turns() {
    let machine = Machine::new();
    let added = machine.schedule(0, &[(recorded(ALL), 1_000), (recorded(RETURNS), 1_000)]);
    assert_eq!(added, [Ok(0), Err(Errno::AGAIN)]);
    assert!(!fit(&[recorded(ALL), recorded(RETURNS)]));
    assert!(fit(&[recorded(ALL), event(0xc4, false), recorded(ALL)]));
    let beside = machine.schedule(0, &[(recorded(ALL), 1_000), (event(0xc4, true), 1_000)]);
    assert_eq!(beside, [Ok(1), Ok(2)]);
}

#[test]
fn a_new_page_and_a_new_right_to_count_record_anew() {
    let machine = Machine::new();
    machine.schedule(0, &[(recorded(ALL), 1_000)]);
    machine.recorded.take();
    machine.on(0, |cpu| cpu.register(1, 0)).unwrap();
    machine.on(0, |cpu| cpu.enable_events(None));
    assert_eq!(machine.recorded.take(), [ALL]);
    machine.revoke(0);
    machine.on(0, |cpu| cpu.enable_events(None));
    assert_eq!(machine.recorded.take(), [ALL]);
}

/// Returns how many branches a sample of an event on vCPU 0 has, and the first of them.
fn branches_of_sample(machine: &Machine, index: u32) -> (u64, HvBranch) {
    let mut stack = BranchStack { number: 7, ..BranchStack::default() };
    machine.on(0, |cpu| cpu.branches_of_event(index, &mut stack));
    assert_eq!(stack.hardware_index, u64::MAX, "nobody knows");
    (stack.number, stack.entry[0])
}

#[test]
fn a_sample_gets_its_own_counters_branches() {
    let machine = Machine::new();
    let mut known = HvBranches { slot: 99, count: 2, ..HvBranches::default() };
    let branch = HvBranch { from: 1, to: 2, flags: 0 };
    known.branch[0] = branch;
    machine.branches.set(known);
    machine.schedule(0, &[(event(0xc4, true), 1_000), (recorded(ALL), 1_000)]);
    machine.take_hypercalls();
    assert_eq!(branches_of_sample(&machine, 0).0, 0, "it wants none");
    assert_eq!(branches_of_sample(&machine, 5).0, 0, "no such event");
    assert!(machine.take_hypercalls().is_empty());
    // perf's bits: mispredicted is 1, predicted is 2.
    assert_eq!(branches_of_sample(&machine, 1), (2, HvBranch { flags: 2, ..branch }));
    assert_eq!(machine.take_hypercalls(), [(0, OP_BRANCHES)]);
    let config = machine.programmed(0);
    let own = slots_of(config.slots()).find(|&slot| config.evntsel(slot) & 0xff == 0xc0).unwrap();
    assert_eq!(machine.asked_branches_of.get(), own.index() as u32);
    known.branch[0].flags = BRANCH_MISPREDICTED;
    machine.branches.set(HvBranches { count: u32::MAX, ..known });
    let most = BRANCHES_MAX as u64;
    assert_eq!(
        branches_of_sample(&machine, 1),
        (most, HvBranch { flags: 1, ..branch }),
        "no more than fit"
    );
}

#[test]
fn samples_have_no_branches_where_the_host_records_none_any_more() {
    let machine = Machine::new();
    machine.branches.set(HvBranches { count: 3, ..HvBranches::default() });
    machine.refuses_records.set(true);
    machine.schedule(0, &[(recorded(ALL), 1_000)]);
    assert_eq!(branches_of_sample(&machine, 0).0, 0);
    machine.take_hypercalls();
    machine.refuses_records.set(false);
    machine.on(0, |cpu| cpu.enable_events(None));
    assert_eq!(machine.take_hypercalls(), [(0, OP_RECORD)], "it asks again");
}
