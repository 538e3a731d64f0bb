// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What a thread must not take over from before: on the same vCPU, with nothing changed in between,
//! and for the second time.

use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_USR};
use shared_abi::ioctl::{CONTROL_CLOEXEC, Create};
use shared_abi::thread_page::THREAD_TSC;
use shared_abi::version::ABI_MAJOR;

use super::*;
use crate::ioctl::{check_control, check_create};
use crate::perf::EventConfig;

/// Starts CPU-wide counting of `counters` on this vCPU.
fn start_cpu_wide(machine: &Machine, cpu_wide: &TestThread<'_>, counters: &[CounterConfig]) {
    let caps = Machine::caps();
    let control = control(counters);
    machine
        .on(0, |cpu| {
            let pmu = &mut cpu_wide.pmu.borrow_mut();
            cpu.start_cpu_wide((pmu, &cpu_wide.page), None, &machine.counting, &caps, &control)
        })
        .unwrap();
}

#[test]
fn a_thread_that_slept_while_cpu_wide_counting_began_gets_busy() {
    let machine = Machine::new();
    let (cpu_wide, thread) = (machine.thread(), machine.thread());
    let same = [counter(0, INSTRUCTIONS)];
    thread.start(&same);
    thread.execute(5);
    thread.switch_out();
    // What the thread needs stays loaded.
    start_cpu_wide(&machine, &cpu_wide, &same);
    thread.switch_in(0);
    thread.execute(7);
    assert_eq!(thread.read(), Err(Errno::BUSY));
    assert_eq!(cpu_wide.read().unwrap().counter[0], 7);
}

#[test]
fn a_tracee_that_goes_on_where_it_was_counts_its_tracers_events() {
    let machine = Machine::new();
    let (caps, thread) = (Machine::caps(), machine.thread());
    thread.start(&[counter(0, INSTRUCTIONS)]);
    for (event, count) in [(BRANCHES, 10), (INSTRUCTIONS, 100), (BRANCHES, 10)] {
        thread.switch_out();
        let wanted = control(&[counter(0, event)]);
        let (counting, page) = (&machine.counting, &thread.page);
        thread.pmu.borrow_mut().control_asleep(page, counting, &caps, &wanted).unwrap();
        thread.switch_in(0);
        thread.execute(100);
        assert_eq!(counts(&thread), [count]);
    }
}

#[test]
fn a_switch_that_comes_back_is_no_migration() {
    let machine = Machine::new();
    // One that samples, and one that is switched plainly.
    for wanted in [sampling(1_000_000), control(&[counter(0, INSTRUCTIONS)])] {
        let thread = machine.thread();
        thread.control(&wanted).unwrap();
        for round in 1..=3 {
            thread.switch_out();
            thread.switch_in(0);
            let page = &thread.page;
            let published = [&page.switches, &page.migrations].map(|count| count.load(Relaxed));
            assert_eq!(published, [round, 0]);
        }
        thread.stop();
    }
}

#[test]
fn who_counts_nothing_now_needs_no_counters() {
    let machine = Machine::new();
    let thread = machine.thread();
    let needs = || thread.pmu.borrow().needs().map(Config::slots);
    assert_eq!(needs(), None, "it has asked for none");
    thread.control(&sampling(1_000)).unwrap();
    assert_eq!(needs(), Some(0b11));
    thread.execute(1_000);
    assert_eq!(interrupt(&machine, &thread, 0), TOLD);
    assert_eq!(needs(), None, "it is paused");
    go_on(&machine, &thread, 0).unwrap();
    assert_eq!(needs(), Some(0b11));
    thread.switch_out();
    assert_eq!(needs(), Some(0b11), "perf leaves room before it is switched in");
    fail(&machine, &thread);
    assert_eq!(needs(), None, "it has no numbers");
}

/// Has some of a thread's time not counted.
fn fail(machine: &Machine, thread: &TestThread<'_>) {
    machine.refuse(Some(Errno::PERM));
    thread.switch_out();
    thread.switch_in(1);
    machine.refuse(None);
    assert_eq!(thread.read(), Err(Errno::PERM));
}

#[test]
fn an_overflow_that_is_found_when_perfs_events_change_is_told_at_once() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.control(&sampling(1_000)).unwrap();
    for overflow in 1..=2 {
        thread.execute(1_003);
        let other = 0xc4 | overflow << 24;
        let event = EventConfig::new(&Machine::caps(), 4, other, EVNTSEL_USR, false).unwrap();
        machine.on(0, |cpu| {
            let mut pmu = thread.pmu.borrow_mut();
            cpu.disable_events();
            let index = cpu.add_event(&event, pmu.needs()).unwrap();
            cpu.start_event(index, 0, 0, 0);
            assert!(cpu.enable_events(Some((&mut pmu, &thread.page))), "overflow {overflow}");
        });
        assert_eq!(report(&machine, &thread), TOLD);
        go_on(&machine, &thread, 0).unwrap();
    }
}

#[test]
fn perfs_events_count_on_when_no_thread_does() {
    let machine = Machine::new();
    let event = EventConfig::new(&Machine::caps(), 4, 0xc4, EVNTSEL_USR, false).unwrap();
    machine.on(0, |cpu| {
        cpu.disable_events();
        let index = cpu.add_event(&event, None).unwrap();
        cpu.start_event(index, 0, 0, 0);
        cpu.enable_events(None);
        cpu.stop_if_idle(&machine.counting);
    });
    machine.execute(0, 90, 9);
    assert_eq!(machine.on(0, |cpu| cpu.progress_of_event(0, 0)).count, 9);
}

#[test]
fn after_a_failure_periods_and_time_begin_anew() {
    let machine = Machine::new();
    let thread = machine.thread();
    let flags = CONTROL_TSC | CONTROL_KEEP_PERIOD;
    let keep = Control { flags, ..sampling(1_000) };
    thread.control(&keep).unwrap();
    thread.execute(600);
    fail(&machine, &thread);
    thread.control(&keep).unwrap();
    thread.execute(999);
    assert_eq!(interrupt(&machine, &thread, 1), None, "a whole period");
    let sums = thread.read().unwrap();
    assert_eq!((sums.tsc, sums.counter[0]), (999, 999));
    thread.execute(1);
    assert_eq!(interrupt(&machine, &thread, 1), TOLD);
}

#[test]
fn a_period_and_the_sums_can_be_kept_together() {
    let machine = Machine::new();
    let thread = machine.thread();
    let keep = Control { flags: CONTROL_KEEP_PERIOD, preserve: 0b11, ..sampling(1_000) };
    for round in 0..3 {
        thread.control(&keep).unwrap();
        thread.execute(300);
        assert_eq!(interrupt(&machine, &thread, 0), None, "{round}");
    }
    thread.control(&keep).unwrap();
    thread.execute(99);
    assert_eq!(interrupt(&machine, &thread, 0), None);
    assert_eq!(thread.read().unwrap().counter[0], 999);
    thread.execute(1);
    assert_eq!(interrupt(&machine, &thread, 0), TOLD);
}

#[test]
fn the_time_of_a_thread_that_samples_is_counted_only_if_asked_for() {
    let machine = Machine::new();
    let thread = machine.thread();
    for (flags, time) in [(0, 0), (CONTROL_TSC, 40), (0, 0)] {
        thread.control(&Control { flags, ..sampling(1_000) }).unwrap();
        let published = thread.page.state.load(Relaxed) & THREAD_TSC;
        assert_eq!(published != 0, flags != 0, "the page says whether time is counted");
        thread.execute(40);
        thread.switch_out();
        assert_eq!(thread.read().unwrap().tsc, time);
        thread.switch_in(0);
    }
}

#[test]
fn what_switches_cost_is_not_read_from_another_event() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(0, INSTRUCTIONS)]);
    thread.start(&[counter(0, BRANCHES)]);
    machine.on(0, |cpu| {
        let mut pmu = thread.pmu.borrow_mut();
        pmu.switch_out_measured(&thread.page, cpu);
        pmu.switch_in_measured(&thread.page, cpu);
    });
    let stats = machine.stats(0);
    assert_eq!((stats.switch_out_calls.get(), stats.switch_in_calls.get()), (0, 0));
}

#[test]
fn what_nothing_counts_has_no_cost() {
    let machine = Machine::new();
    let cost = machine.on(0, |cpu| cost::Probe::start(PhysSlot::general(2), cpu).finish(cpu));
    assert_eq!(cost, None);
}

#[test]
fn counters_beyond_those_in_use_do_not_sample() {
    let machine = Machine::new();
    let thread = machine.thread();
    let mut wanted = control(&[counter(0, INSTRUCTIONS)]);
    wanted.counter[1] = CounterConfig { mode: MODE_SAMPLING, period: 5, ..wanted.counter[0] };
    thread.control(&wanted).unwrap();
    assert!(!thread.pmu.borrow().overflows.any());
}

#[test]
fn a_page_says_by_which_index_each_counter_is_read() {
    let machine = Machine::new();
    let thread = machine.thread();
    let wanted = control(&[counter(17, EVNTSEL_USR | EVNTSEL_EN), counter(2, BRANCHES)]);
    let (page, counting, caps) = (&thread.page, &machine.counting, Machine::caps());
    thread.pmu.borrow_mut().control_asleep(page, counting, &caps, &wanted).unwrap();
    let published = [0, 1].map(|place| {
        let published = &thread.page.slots[place];
        (published.slot.load(Relaxed), published.counter_index.load(Relaxed))
    });
    // Bit 30 selects the fixed counters (SDM volume 3, 20.2.2).
    assert_eq!(published, [(17, 0x4000_0001), (2, 2)]);
}

#[test]
fn what_later_versions_may_ask_for_is_refused() {
    let create = Create { abi_major: u32::from(ABI_MAJOR) + 1, ..Create::default() };
    assert_eq!(check_create(&create), Err(Errno::PROTO));
    let good = control(&[counter(0, INSTRUCTIONS)]);
    for flag in (0..32).map(|bit| 1 << bit) {
        let known = CONTROL_TSC | CONTROL_CLOEXEC | CONTROL_KEEP_TSC | CONTROL_KEEP_PERIOD;
        let asked = check_control(&Machine::caps(), &Control { flags: flag, ..good });
        // A ring needs something that samples.
        assert_eq!(asked.is_ok(), flag & known != 0, "{flag:#x}");
    }
}
