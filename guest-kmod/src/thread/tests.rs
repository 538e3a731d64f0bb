// SPDX-License-Identifier: MIT OR GPL-2.0-only

extern crate std;

use std::vec;

use shared_abi::CounterConfig;
use shared_abi::config::MODE_SAMPLING;
use shared_abi::hypercall::{OP_LOAD, OP_STOP};
use shared_abi::ioctl::{CONTROL_KEEP_PERIOD, CONTROL_KEEP_TSC, CONTROL_RING, CONTROL_TSC};
use shared_abi::limits::READ_ATTEMPTS_MAX;
use shared_abi::read::ReadError;
use shared_abi::sync::Ordering::Relaxed;
use shared_abi::thread_page::THREAD_PAUSED;

use super::*;
use crate::publish::published;
use crate::testing::{BRANCHES, FIXED, INSTRUCTIONS, Machine, TestThread, control, counter};

mod interrupted;
mod stale;

/// Returns the counts, by two ways to read that must agree.
fn counts<const N: usize>(thread: &TestThread<'_>) -> [u64; N] {
    let sums = thread.read().unwrap();
    let direct = thread.read_direct::<N>().unwrap();
    assert_eq!(direct, (sums.tsc, *sums.counter.first_chunk().unwrap()));
    direct.1
}

#[test]
fn threads_that_share_a_vcpu_count_only_themselves() {
    let machine = Machine::new();
    let (one, two) = (machine.thread(), machine.thread());
    one.start(&[counter(0, INSTRUCTIONS)]);
    one.execute(100);
    one.switch_out();
    two.start(&[counter(0, INSTRUCTIONS)]);
    two.execute(7);
    machine.preempt_vcpu(0);
    two.execute(3);
    two.switch_out();
    machine.execute(0, 5_000, 0);
    one.switch_in(0);
    one.execute(20);
    assert_eq!(counts(&one), [120]);
    one.switch_out();
    assert_eq!(counts(&two), [10]);
    assert_eq!(published(&one.page), one.read().map(Some));
    assert_eq!(published(&one.page).unwrap().unwrap().tsc, 120);
}

#[test]
fn a_thread_migrates() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(1, INSTRUCTIONS)]);
    for round in 0..6 {
        thread.execute(50);
        thread.switch_out();
        machine.execute(round % 2, 999, 0);
        thread.switch_in((round + 1) % 2);
    }
    assert_eq!(counts(&thread), [300]);
    assert_eq!(thread.page.switches.load(Relaxed), 6);
    assert_eq!(thread.page.migrations.load(Relaxed), 6);
    assert_eq!(machine.stats(1).migrations.get(), 3);
    assert_eq!(machine.stats(0).switches_out.get(), 3);
}

#[test]
fn counters_wrap() {
    // The machine's counters start 100 events before they wrap, each at its own width.
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(0, INSTRUCTIONS), counter(16, FIXED)]);
    thread.execute(99);
    assert_eq!(counts(&thread), [99, 99]);
    thread.execute(2);
    assert_eq!(counts(&thread), [101, 101]);
    thread.switch_out();
    assert_eq!(counts(&thread), [101, 101]);
}

#[test]
fn an_included_configuration_needs_no_hypercall() {
    let machine = Machine::new();
    let (one, two) = (machine.thread(), machine.thread());
    one.start(&[counter(0, INSTRUCTIONS), counter(1, BRANCHES)]);
    one.switch_out();
    assert_eq!(machine.take_hypercalls(), [(0, OP_LOAD)]);
    two.start(&[counter(1, BRANCHES)]);
    for _ in 0..10 {
        two.execute(10);
        two.switch_out();
        one.switch_in(0);
        one.execute(20);
        one.switch_out();
        two.switch_in(0);
    }
    assert_eq!(machine.take_hypercalls(), []);
    assert_eq!(counts(&one), [200, 20]);
    assert_eq!(counts(&two), [10]);
}

#[test]
fn configurations_that_fit_beside_each_other_are_loaded_once() {
    let machine = Machine::new();
    let (one, two) = (machine.thread(), machine.thread());
    one.start(&[counter(0, INSTRUCTIONS)]);
    one.switch_out();
    two.start(&[counter(1, BRANCHES)]);
    two.execute(10);
    two.switch_out();
    one.switch_in(0);
    assert_eq!(machine.take_hypercalls(), vec![(0, OP_LOAD); 3]);
    for _ in 0..10 {
        one.execute(20);
        one.switch_out();
        two.switch_in(0);
        two.execute(10);
        two.switch_out();
        one.switch_in(0);
    }
    assert_eq!(machine.take_hypercalls(), []);
    assert_eq!((counts(&one), counts(&two)), ([200], [11]));
    one.switch_out();
    two.switch_in(0);
    // What is asked for by its thread is loaded alone, and what clashes takes the place of all.
    two.start(&[counter(0, BRANCHES)]);
    two.switch_out();
    one.switch_in(0);
    assert_eq!(machine.take_hypercalls(), vec![(0, OP_LOAD); 2]);
}

#[test]
fn the_order_of_counters_is_the_threads_own() {
    let machine = Machine::new();
    let (one, two) = (machine.thread(), machine.thread());
    one.start(&[counter(0, INSTRUCTIONS), counter(1, BRANCHES)]);
    one.execute(100);
    one.switch_out();
    machine.take_hypercalls();
    two.start(&[counter(1, BRANCHES), counter(0, INSTRUCTIONS)]);
    two.execute(200);
    machine.preempt_vcpu(0);
    assert_eq!(counts(&two), [20, 200]);
    assert_eq!(counts(&one), [100, 10]);
    assert_eq!(machine.take_hypercalls(), []);
}

#[test]
fn another_configuration_is_loaded_at_every_switch() {
    let machine = Machine::new();
    let (one, two) = (machine.thread(), machine.thread());
    one.start(&[counter(0, INSTRUCTIONS)]);
    one.switch_out();
    two.start(&[counter(0, BRANCHES)]);
    machine.take_hypercalls();
    for _ in 0..3 {
        two.execute(100);
        two.switch_out();
        one.switch_in(0);
        one.execute(40);
        one.switch_out();
        two.switch_in(0);
    }
    assert_eq!(machine.take_hypercalls(), vec![(0, OP_LOAD); 6]);
    assert_eq!((counts(&one), counts(&two)), ([120], [30]));
}

#[test]
fn control_preserves_what_it_is_asked_to() {
    let machine = Machine::new();
    let thread = machine.thread();
    let mut both = control(&[counter(0, INSTRUCTIONS), counter(1, BRANCHES)]);
    thread.control(&both).unwrap();
    thread.execute(100);
    both.preserve = 0b10;
    thread.control(&both).unwrap();
    // The time-stamp counter was and stays counted.
    assert_eq!(thread.read_direct(), Ok((100, [0, 10])));
    thread.execute(100);
    assert_eq!(thread.read_direct(), Ok((200, [100, 20])));

    thread.control(&Control::default()).unwrap();
    thread.execute(100);
    assert_eq!(thread.read_direct(), Ok((200, [100, 20])), "a stop keeps all sums");
    both.preserve = 0b01;
    thread.control(&both).unwrap();
    assert_eq!(thread.read_direct(), Ok((0, [100, 0])));

    thread.execute(100);
    thread.control(&Control::default()).unwrap();
    both.flags |= CONTROL_KEEP_TSC;
    thread.control(&both).unwrap();
    assert_eq!(thread.read_direct(), Ok((100, [200, 0])));
}

#[test]
fn a_refused_control_changes_nothing() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(0, INSTRUCTIONS)]);
    thread.execute(30);
    let good = control(&[counter(1, BRANCHES)]);
    let refused = [
        (Errno::INVAL, Control { flags: 1 << 4, ..good }),
        (Errno::INVAL, Control { signal: 1, ..good }),
        (Errno::INVAL, Control { preserve: 0b10, ..good }),
        (Errno::INVAL, Control { counters: 19, ..good }),
        (Errno::INVAL, Control { counters: u32::MAX, ..good }),
        (Errno::INVAL, control(&[counter(0, INSTRUCTIONS), counter(0, BRANCHES)])),
        (Errno::INVAL, control(&[counter(4, INSTRUCTIONS)])),
        (Errno::PERM, control(&[counter(0, INSTRUCTIONS | 1 << 20)])),
    ];
    machine.take_hypercalls();
    for (errno, argument) in &refused {
        assert_eq!(thread.control(argument), Err(*errno));
    }
    assert_eq!(machine.take_hypercalls(), []);
    machine.refuse(Some(Errno::PERM));
    assert_eq!(thread.control(&good), Err(Errno::PERM));
    machine.refuse(None);
    thread.execute(12);
    assert_eq!(counts(&thread), [42]);
}

#[test]
fn a_failed_load_gives_an_error_until_a_new_start() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(0, INSTRUCTIONS)]);
    thread.execute(10);
    thread.switch_out();
    machine.refuse(Some(Errno::PERM));
    thread.switch_in(1);
    machine.refuse(None);
    let not_loaded = Err(ReadError::NotLoaded(Errno::PERM.to_return()));
    assert_eq!(thread.read(), Err(Errno::PERM));
    assert_eq!(thread.read_direct::<1>(), not_loaded);
    assert_eq!(published(&thread.page), Err(Errno::PERM));
    // What was missed then cannot be made up for.
    thread.switch_out();
    thread.switch_in(0);
    assert_eq!(thread.read_direct::<1>(), not_loaded);
    let mut again = control(&[counter(0, INSTRUCTIONS)]);
    again.preserve = 1;
    assert_eq!(thread.control(&again), Err(Errno::PERM));
    let keep = Control { flags: CONTROL_TSC | CONTROL_KEEP_TSC, preserve: 0, ..again };
    assert_eq!(thread.control(&keep), Err(Errno::PERM));
    thread.stop();
    assert_eq!(thread.read_direct::<1>(), not_loaded);
    thread.start(&[counter(0, INSTRUCTIONS)]);
    thread.execute(5);
    assert_eq!(counts(&thread), [5]);
}

#[test]
fn what_the_host_has_taken_away_is_loaded_again() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(0, INSTRUCTIONS)]);
    thread.execute(10);
    thread.switch_out();
    machine.revoke(0);
    machine.take_hypercalls();
    thread.switch_in(0);
    thread.execute(5);
    assert_eq!(machine.take_hypercalls(), [(0, OP_LOAD)]);
    assert_eq!(counts(&thread), [15]);
}

#[test]
fn a_vcpu_without_a_page_counts_nothing_and_loses_nothing() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(0, INSTRUCTIONS)]);
    thread.execute(10);
    thread.switch_out();
    machine.on(1, |cpu| cpu.unregister()).unwrap();
    machine.take_hypercalls();
    thread.switch_in(1);
    assert_eq!(thread.read_direct::<1>(), Err(ReadError::NotLoaded(Errno::NXIO.to_return())));
    thread.switch_out();
    assert_eq!(machine.take_hypercalls(), []);
    thread.switch_in(0);
    thread.execute(1);
    assert_eq!(counts(&thread), [11]);
}

#[test]
fn a_page_that_the_hypervisor_has_not_got_is_taken_back() {
    let machine = Machine::new();
    machine.refuse(Some(Errno::NODEV));
    assert_eq!(machine.on(0, |cpu| cpu.unregister()), Err(Errno::NODEV), "it may have it");
    machine.refuse(Some(Errno::NXIO));
    assert_eq!(machine.on(0, |cpu| cpu.unregister()), Ok(()));
    machine.take_hypercalls();
    assert_eq!(machine.on(0, |cpu| cpu.unregister()), Ok(()));
    assert_eq!(machine.take_hypercalls(), []);
}

#[test]
fn a_vcpu_whose_registration_was_refused_fails_its_threads() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(0, INSTRUCTIONS)]);
    thread.switch_out();
    machine.on(1, |cpu| cpu.unregister()).unwrap();
    machine.refuse(Some(Errno::NOMEM));
    machine.on(1, |cpu| cpu.register(1, 0)).unwrap_err();
    machine.refuse(None);
    thread.switch_in(1);
    thread.switch_out();
    thread.switch_in(0);
    assert_eq!(thread.read(), Err(Errno::NOMEM));
}

#[test]
fn a_disturbed_sample_is_taken_again() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(0, INSTRUCTIONS)]);
    thread.execute(10);
    machine.disturbances.set(3);
    thread.switch_out();
    assert_eq!(machine.stats(0).read_retries.get(), 3);
    assert_eq!(counts(&thread), [10]);
    thread.switch_in(0);
    // One more, by which it is told that there is more to do than usual.
    machine.disturbances.set(1 + READ_ATTEMPTS_MAX);
    thread.switch_out();
    assert_eq!(thread.read(), Err(Errno::NODEV));
}

/// Switches of a thread with `N` counters, three and one after something has changed.
fn switches<const N: usize>(machine: &Machine) {
    let thread = machine.thread();
    thread.start(&std::array::from_fn::<_, N, _>(|n| counter(n as u32, INSTRUCTIONS)));
    machine.take_hypercalls();
    for n in 1..=3 {
        thread.execute(10);
        thread.switch_out();
        machine.execute(0, 1_000, 0);
        thread.switch_in(0);
        assert_eq!(counts::<N>(&thread), [10 * n; N]);
    }
    assert_eq!(machine.take_hypercalls(), [], "{N} counters");
    thread.switch_out();
    machine.on(0, |cpu| cpu.forget_loaded());
    thread.switch_in(0);
    assert_eq!(machine.take_hypercalls().len(), 1, "{N} counters");
    assert_eq!(machine.stats(0).switches_in.get(), machine.stats(0).switches_out.get());
    thread.stop();
}

#[test]
fn a_configuration_is_loaded_only_if_it_is_not_loaded_already() {
    switches::<1>(&Machine::new());
    switches::<2>(&Machine::new());
    switches::<3>(&Machine::new());
    switches::<4>(&Machine::new());
}

#[test]
fn counters_stop_when_the_last_thread_does() {
    let machine = Machine::new();
    let (one, two) = (machine.thread(), machine.thread());
    one.start(&[counter(0, INSTRUCTIONS)]);
    one.switch_out();
    two.start(&[counter(0, INSTRUCTIONS)]);
    machine.take_hypercalls();
    let stop_vcpus = || {
        for vcpu in 0..2 {
            machine.on(vcpu, |cpu| cpu.stop_if_idle(&machine.counting));
        }
    };
    two.stop();
    two.stop();
    stop_vcpus();
    assert_eq!(machine.take_hypercalls(), []);
    one.stop();
    stop_vcpus();
    stop_vcpus();
    assert_eq!(machine.take_hypercalls(), [(0, OP_STOP)]);
    one.start(&[counter(0, INSTRUCTIONS)]);
    one.execute(4);
    assert_eq!(counts(&one), [4]);
}

#[test]
fn the_time_stamp_counter_is_counted_only_if_asked_for() {
    let machine = Machine::new();
    let thread = machine.thread();
    let mut argument = control(&[counter(0, INSTRUCTIONS)]);
    argument.flags = 0;
    thread.control(&argument).unwrap();
    thread.execute(10);
    thread.switch_out();
    assert_eq!(thread.read().unwrap().tsc, 0);
    thread.switch_in(0);
    // Alone it needs no configuration.
    machine.take_hypercalls();
    thread.control(&Control { flags: CONTROL_TSC, ..Control::default() }).unwrap();
    assert_eq!(machine.take_hypercalls(), []);
    thread.execute(25);
    assert_eq!(thread.read_direct(), Ok((25, [])));
}

/// Returns a control with a sampling counter of instructions.
fn sampling(period: u64) -> Control {
    let mut control = control(&[
        CounterConfig { mode: MODE_SAMPLING, period, ..counter(0, INSTRUCTIONS) },
        counter(1, BRANCHES),
    ]);
    control.signal = 27;
    control
}

fn interrupt(machine: &Machine, thread: &TestThread<'_>, vcpu: usize) -> Option<Signal> {
    machine.on(vcpu, |cpu| thread.pmu.borrow_mut().interrupt(&thread.page, cpu))
}

fn go_on(machine: &Machine, thread: &TestThread<'_>, vcpu: usize) -> Result<(), Errno> {
    machine.on(vcpu, |cpu| thread.pmu.borrow_mut().go_on(&thread.page, cpu))
}

const TOLD: Option<Signal> = Some(Signal { number: 27, counters: 0b01 });

#[test]
fn an_overflow_pauses_its_thread_until_it_goes_on() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.control(&sampling(1_000)).unwrap();
    thread.execute(990);
    assert_eq!(interrupt(&machine, &thread, 0), None, "somebody else's");
    thread.execute(10);
    assert_eq!(interrupt(&machine, &thread, 0), TOLD);
    thread.execute(500);
    assert_eq!(interrupt(&machine, &thread, 0), None, "told already");
    let sums = thread.read().unwrap();
    assert_eq!((sums.counter[0], sums.counter[1], sums.tsc), (1_000, 100, 1_500));
    assert_eq!(thread.read_direct::<2>(), Err(ReadError::NotDirect));
    assert_eq!(go_on(&machine, &thread, 0), Ok(()));
    assert_eq!(go_on(&machine, &thread, 0), Err(Errno::PERM));
    thread.execute(1_000);
    assert_eq!(counts(&thread), [2_000, 200]);
    assert_eq!(interrupt(&machine, &thread, 0), TOLD);
}

#[test]
fn an_overflow_before_its_interrupt_is_told_at_the_next_resumption() {
    let machine = Machine::new();
    let (one, two) = (machine.thread(), machine.thread());
    one.control(&sampling(1_000)).unwrap();
    one.execute(1_003);
    one.switch_out();
    two.control(&sampling(5_000)).unwrap();
    assert_eq!(interrupt(&machine, &two, 0), None, "not the thread that executes");
    two.execute(10);
    two.switch_out();
    assert_eq!(one.switch_in(1), TOLD);
    assert_ne!(one.page.state.load(Relaxed) & THREAD_PAUSED, 0, "while its handler executes");
    assert_eq!(one.read_direct::<2>(), Err(ReadError::NotDirect));
    assert_eq!(machine.stats(1).overflows_pending.get(), 1);
    one.switch_out();
    assert_eq!(one.switch_in(1), None, "once");
    go_on(&machine, &one, 1).unwrap();
    one.execute(996);
    assert_eq!(interrupt(&machine, &one, 1), None);
    one.execute(1);
    assert_eq!(interrupt(&machine, &one, 1), TOLD, "periods are multiples, whatever the skid");
    assert_eq!(two.switch_in(0), None);
    two.execute(4_990);
    assert_eq!(interrupt(&machine, &two, 0), TOLD);
}

#[test]
fn a_lost_signal_ends_nothing() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.control(&sampling(1_000)).unwrap();
    for round in 1..=3 {
        thread.execute(1_000);
        assert!(interrupt(&machine, &thread, 0).is_some());
        machine.on(0, |cpu| thread.pmu.borrow_mut().signal_lost(&thread.page, cpu));
        assert_eq!(thread.read().unwrap().counter[0], 1_000 * round);
    }
    assert_eq!(machine.stats(0).signals_lost.get(), 3);
    assert_eq!(go_on(&machine, &thread, 0), Err(Errno::PERM));
}

#[test]
fn a_tracer_operates_a_thread_that_is_asleep() {
    let machine = Machine::new();
    let thread = machine.thread();
    let (caps, counting) = (Machine::caps(), &machine.counting);
    let ask = |control: &Control| {
        let mut pmu = thread.pmu.borrow_mut();
        pmu.control_asleep(&thread.page, counting, &caps, control)
    };
    thread.switch_out();
    ask(&control(&[counter(0, INSTRUCTIONS)])).unwrap();
    assert!(machine.take_hypercalls().is_empty() && !counting.is_idle());
    machine.execute(0, 99, 0);
    thread.switch_in(0);
    thread.execute(30);
    assert_eq!(counts(&thread), [30]);
    thread.switch_out();
    let kept = Control { preserve: 1, ..control(&[counter(1, INSTRUCTIONS)]) };
    ask(&kept).unwrap();
    assert_eq!(ask(&control(&[counter(99, INSTRUCTIONS)])), Err(Errno::INVAL));
    thread.switch_in(1);
    thread.execute(5);
    assert_eq!(counts(&thread), [35]);
    thread.switch_out();
    thread.pmu.borrow_mut().stop_asleep(&thread.page, counting);
    thread.switch_in(0);
    thread.execute(7);
    assert_eq!((counts(&thread), counting.is_idle()), ([35], true));
}

#[test]
fn what_the_hypervisor_refuses_a_tracer_is_told_in_place_of_numbers() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.switch_out();
    let control = control(&[counter(0, INSTRUCTIONS)]);
    let (caps, counting) = (Machine::caps(), &machine.counting);
    thread.pmu.borrow_mut().control_asleep(&thread.page, counting, &caps, &control).unwrap();
    machine.refuse(Some(Errno::PERM));
    thread.switch_in(0);
    assert_eq!(thread.read(), Err(Errno::PERM));
    assert_eq!(thread.read_direct::<1>(), Err(ReadError::NotLoaded(-1)));
}

#[test]
fn a_host_that_lets_nobody_read_any_more_is_noticed_at_the_next_sample() {
    let machine = Machine::new();
    for wanted in [
        control(&[counter(0, INSTRUCTIONS)]),
        control(&[counter(0, INSTRUCTIONS), counter(1, BRANCHES)]),
        sampling(1_000),
    ] {
        let thread = machine.thread();
        // The second round begins where the first has failed.
        for _ in 0..2 {
            thread.control(&wanted).unwrap();
            thread.execute(50);
            thread.switch_out();
            thread.switch_in(0);
            thread.execute(20);
            machine.refuses_reads.set(true);
            assert_eq!(thread.read(), Err(Errno::NODEV));
            thread.switch_out();
            machine.refuses_reads.set(false);
            for _ in 0..2 {
                thread.switch_in(0);
                thread.execute(20);
                assert_eq!(thread.read(), Err(Errno::NODEV), "what was counted is not known");
                let direct = thread.read_direct::<1>();
                assert_eq!(direct, Err(ReadError::NotLoaded(Errno::NODEV.to_return())));
                thread.switch_out();
            }
            thread.switch_in(0);
        }
        // The same when it is switched in.
        thread.control(&wanted).unwrap();
        thread.switch_out();
        machine.refuses_reads.set(true);
        thread.switch_in(0);
        machine.refuses_reads.set(false);
        assert_eq!(thread.read(), Err(Errno::NODEV));
        thread.control(&wanted).unwrap();
        thread.execute(30);
        assert_eq!(thread.read().map(|sums| sums.counter[0]), Ok(30), "a control starts anew");
        thread.switch_out();
    }
}

#[test]
fn a_tracer_lets_paused_counters_go_on() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.control(&sampling(1_000)).unwrap();
    thread.execute(1_000);
    assert!(interrupt(&machine, &thread, 0).is_some());
    thread.switch_out();
    assert_eq!(thread.pmu.borrow_mut().go_on_asleep(), Ok(()));
    assert_eq!(thread.pmu.borrow_mut().go_on_asleep(), Err(Errno::PERM));
    thread.switch_in(0);
    thread.execute(10);
    assert_eq!(counts(&thread), [1_010]);
}

#[test]
fn an_interrupt_that_comes_early_arms_anew() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.control(&sampling(1_000)).unwrap();
    thread.execute(990);
    machine.take_hypercalls();
    assert_eq!(interrupt(&machine, &thread, 0), None);
    assert_eq!(machine.take_hypercalls(), [(0, OP_LOAD)]);
    thread.execute(10);
    assert_eq!(interrupt(&machine, &thread, 0), TOLD);
    assert_eq!(machine.take_hypercalls(), [], "paused counters need not be stopped");
}

#[test]
fn a_new_control_forgets_a_pause_and_a_stop_keeps_the_sums() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.control(&sampling(1_000)).unwrap();
    thread.execute(1_000);
    assert_eq!(interrupt(&machine, &thread, 0), TOLD);
    thread.control(&sampling(2_000)).unwrap();
    assert_eq!(go_on(&machine, &thread, 0), Err(Errno::PERM));
    thread.execute(1_999);
    assert_eq!(interrupt(&machine, &thread, 0), None);
    thread.stop();
    assert_eq!(thread.read().unwrap().counter[0], 1_999);
}

#[test]
fn sampling_needs_a_signal_and_a_period() {
    let machine = Machine::new();
    let thread = machine.thread();
    for signal in [0, 65] {
        let control = Control { signal, ..sampling(1_000) };
        assert_eq!(thread.control(&control), Err(Errno::INVAL));
    }
    assert_eq!(thread.control(&sampling(0)), Err(Errno::INVAL));
    assert_eq!(thread.control(&sampling(1)), Ok(()));
}

/// Samples into the thread's ring.
fn recording(period: u64) -> Control {
    let control = sampling(period);
    Control { flags: control.flags | CONTROL_RING, signal: 0, ..control }
}

#[test]
fn recorded_overflows_pause_nothing() {
    const RECORD: Option<Signal> = Some(Signal { number: 0, counters: 1 });
    let machine = Machine::new();
    let thread = machine.thread();
    thread.begin_ring().unwrap();
    thread.control(&recording(1_000)).unwrap();
    machine.take_hypercalls();
    for n in 1..=50 {
        thread.execute(1_000);
        assert_eq!(interrupt(&machine, &thread, 0), RECORD);
        assert_eq!(thread.pmu.borrow().counted(0), (n * 1_000, n * 1_000));
        assert_eq!(interrupt(&machine, &thread, 0), None, "once");
        assert_eq!(thread.page.state.load(Relaxed) & THREAD_PAUSED, 0);
    }
    assert_eq!(counts(&thread), [50_000, 5_000]);
    // Both interrupts of each arm anew.
    assert_eq!(machine.take_hypercalls(), vec![(0, OP_LOAD); 100]);
    // In the middle of a switch, and of a stop.
    thread.execute(1_000);
    thread.switch_out();
    assert_eq!(thread.switch_in(1), RECORD);
    thread.execute(1_000);
    thread.control(&Control::default()).unwrap();
    let signal = machine.on(1, |cpu| thread.pmu.borrow_mut().report(&thread.page, cpu));
    assert_eq!(signal, RECORD);
    assert_eq!(thread.pmu.borrow().counted(0), (52_000, 52_000));
}

#[test]
fn records_need_a_ring_that_was_given_before() {
    let machine = Machine::new();
    let thread = machine.thread();
    assert_eq!(thread.control(&recording(1_000)), Err(Errno::NXIO));
    thread.control(&sampling(1_000)).unwrap();
    assert_eq!(thread.begin_ring(), Err(Errno::BUSY));
    thread.stop();
    thread.begin_ring().unwrap();
    assert_eq!(thread.begin_ring(), Err(Errno::EXIST));
    thread.control(&recording(1_000)).unwrap();
    assert_eq!(thread.begin_ring(), Err(Errno::BUSY));
}

#[test]
fn a_ring_that_was_refused_is_none() {
    let machine = Machine::new();
    let thread = machine.thread();
    let impossible = RingRequest { pages: 3, watermark: 1, ..RingRequest::default() };
    let refused = thread.pmu.borrow_mut().begin_ring(&Ring::default(), &impossible);
    assert_eq!(refused, Err(Errno::INVAL));
    assert_eq!(thread.control(&recording(1_000)), Err(Errno::NXIO));
    thread.begin_ring().unwrap();
    thread.control(&recording(1_000)).unwrap();
}

#[test]
fn short_periods_that_pass_untold_are_merged() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.control(&sampling(25)).unwrap();
    thread.execute(1_010);
    assert_eq!(interrupt(&machine, &thread, 0), TOLD);
    go_on(&machine, &thread, 0).unwrap();
    assert_eq!(machine.stats(0).overflows_merged.get(), 39);
    assert_eq!(thread.read().unwrap().counter[0], 1_010);
    // The last ones, too, after which the thread does not go on.
    thread.execute(1_000);
    thread.control(&Control::default()).unwrap();
    assert_eq!(machine.stats(0).overflows_merged.get(), 39 + 39);
}

#[test]
fn a_vcpu_that_may_not_count_any_more_says_so() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(0, INSTRUCTIONS)]);
    machine.revoke(0);
    assert_eq!(thread.read(), Err(Errno::PERM));
    assert_eq!(thread.read_direct::<1>(), Err(ReadError::NotDirect));
}

#[test]
fn what_is_left_of_a_period_can_be_kept_across_a_stop() {
    let machine = Machine::new();
    let thread = machine.thread();
    let keep = |period| Control { flags: CONTROL_KEEP_PERIOD, ..sampling(period) };
    // Short stretches that add up to a period, whatever the sums start from.
    for _ in 0..3 {
        thread.control(&keep(1_000)).unwrap();
        thread.execute(300);
        assert_eq!(interrupt(&machine, &thread, 0), None);
        thread.stop();
        thread.execute(5_000);
    }
    thread.control(&keep(1_000)).unwrap();
    thread.execute(100);
    assert_eq!(thread.read().unwrap().counter[0], 100);
    assert_eq!(interrupt(&machine, &thread, 0), TOLD);
    // A stop while the counters are paused is the end of that overflow, not of the next period.
    thread.stop();
    thread.control(&keep(1_000)).unwrap();
    thread.execute(999);
    assert_eq!(interrupt(&machine, &thread, 0), None);
    thread.execute(1);
    assert_eq!(interrupt(&machine, &thread, 0), TOLD);
}

#[test]
fn other_controls_begin_whole_periods() {
    let machine = Machine::new();
    let thread = machine.thread();
    let keep = |period| Control { flags: CONTROL_KEEP_PERIOD, ..sampling(period) };
    for next in [sampling(1_000), keep(1_001)] {
        thread.control(&keep(1_000)).unwrap();
        thread.execute(600);
        thread.stop();
        thread.control(&next).unwrap();
        thread.execute(999);
        assert_eq!(interrupt(&machine, &thread, 0), None);
        thread.stop();
    }
}

#[test]
fn a_stop_forgets_a_pause() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.control(&sampling(1_000)).unwrap();
    thread.execute(1_000);
    assert_eq!(interrupt(&machine, &thread, 0), TOLD);
    thread.stop();
    assert_eq!(go_on(&machine, &thread, 0), Err(Errno::PERM));
    assert_eq!(thread.read().unwrap().counter[0], 1_000);
}

fn report(machine: &Machine, thread: &TestThread<'_>) -> Option<Signal> {
    machine.on(0, |cpu| thread.pmu.borrow_mut().report(&thread.page, cpu))
}

#[test]
fn an_overflow_that_a_control_finds_is_told_after_it() {
    let machine = Machine::new();
    let thread = machine.thread();
    let keep = Control { flags: CONTROL_KEEP_PERIOD, ..sampling(1_000) };
    thread.control(&keep).unwrap();
    assert_eq!(report(&machine, &thread), None);
    thread.execute(1_100);
    thread.stop();
    assert_eq!(report(&machine, &thread), None, "it does not count");
    thread.control(&keep).unwrap();
    assert_eq!(report(&machine, &thread), TOLD);
    assert_eq!(report(&machine, &thread), None, "once");
    // What it has been told of is not told again by a start without a stop.
    thread.control(&keep).unwrap();
    assert_eq!(report(&machine, &thread), None);
    thread.execute(900);
    assert_eq!(interrupt(&machine, &thread, 0), TOLD);
}

#[test]
fn a_tracer_cannot_let_go_on_what_is_not_paused_yet() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.control(&sampling(1_000)).unwrap();
    thread.execute(1_100);
    thread.switch_out();
    assert_eq!(thread.pmu.borrow_mut().go_on_asleep(), Err(Errno::PERM));
    let signal = machine.on(0, |cpu| thread.pmu.borrow_mut().switch_in(&thread.page, cpu));
    assert_eq!(signal, TOLD, "the overflow is still to be told");
}

#[test]
fn a_page_says_what_it_is_and_whose() {
    let page = ThreadPage::default();
    ThreadPmu::new(&page, 4_711);
    // Words of the interface's header, in the order of the page.
    let head = [&page.magic, &page.abi, &page.size_bytes, &page.state].map(|w| w.load(Relaxed));
    assert_eq!(head, [u32::from_le_bytes(*b"PcTh"), 0xd_0002, 704, 0]);
    assert_eq!(page.tid.load(Relaxed), 4_711);
}

#[test]
fn only_threads_that_want_something_counted_are_switched() {
    let machine = Machine::new();
    let thread = machine.thread();
    assert!(!thread.pmu.borrow().counts());
    thread.start(&[counter(0, INSTRUCTIONS)]);
    assert!(thread.pmu.borrow().counts());
    thread.stop();
    assert!(!thread.pmu.borrow().counts());
}

#[test]
fn a_measured_switch_is_a_switch_that_says_what_it_cost() {
    let machine = Machine::new();
    let thread = machine.thread();
    let switch_out = || {
        machine.on(0, |cpu| thread.pmu.borrow_mut().switch_out_measured(&thread.page, cpu));
    };
    let switch_in =
        || machine.on(0, |cpu| thread.pmu.borrow_mut().switch_in_measured(&thread.page, cpu));
    let costs = || {
        let stats = machine.stats(0);
        let (out, back) = (&stats.switch_out_instructions, &stats.switch_in_instructions);
        [&stats.switch_out_calls, out, &stats.switch_in_calls, back].map(|count| count.get())
    };
    switch_out();
    assert_eq!((switch_in(), costs()), (None, [0; 4]), "nothing counts");
    thread.control(&sampling_beside(2, INSTRUCTIONS)).unwrap();
    thread.execute(1_003);
    machine.instructions_per_sample.set(40);
    switch_out();
    machine.execute(0, 5_000, 0);
    assert_eq!(switch_in(), TOLD);
    assert_eq!(costs(), [1, 40, 1, 40]);
    switch_out();
    assert_eq!(switch_in(), None);
    assert_eq!(costs(), [2, 80, 2, 80]);
    assert_eq!(machine.stats(0).switches_in.get(), 2);
    assert_eq!(machine.stats(0).switches_out.get(), 2);
}

/// Returns a control with a sampling counter, and another that counts `event` in slot `slot`.
fn sampling_beside(slot: u32, event: u64) -> Control {
    let mut control = sampling(1_000);
    control.counter[1] = counter(slot, event);
    control
}

#[test]
fn what_is_left_of_a_period_is_loaded_wherever_the_thread_goes_on() {
    let machine = Machine::new();
    let thread = machine.thread();
    let slot = PhysSlot::general(0).unwrap();
    thread.control(&sampling(1_000)).unwrap();
    assert_eq!(machine.programmed(0).period(slot), 1_000);
    for (vcpu, left) in [(1, 600), (0, 200)] {
        thread.execute(400);
        thread.switch_out();
        thread.switch_in(vcpu);
        assert_eq!(machine.programmed(vcpu).period(slot), left);
    }
}

#[test]
fn an_interrupt_that_is_nobodys_leaves_a_thread_alone() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(0, INSTRUCTIONS)]);
    let untouched = |machine: &Machine| {
        let stamp = thread.page.seq.stamp();
        assert_eq!(interrupt(machine, &thread, 0), None);
        thread.page.seq.is_valid(stamp)
    };
    assert!(untouched(&machine), "nothing samples");
    thread.control(&sampling(1_000)).unwrap();
    assert!(!untouched(&machine), "it arms anew");
    thread.execute(1_000);
    assert_eq!(interrupt(&machine, &thread, 0), TOLD);
    assert!(untouched(&machine), "paused");
}

#[test]
fn periods_are_not_kept_across_another_event_or_another_order() {
    let machine = Machine::new();
    let thread = machine.thread();
    let both = |events: [u64; 2]| {
        let mut control = Control { flags: CONTROL_KEEP_PERIOD, ..sampling(1_000) };
        for (slot, event) in events.into_iter().enumerate() {
            control.counter[slot] =
                CounterConfig { evntsel: event, slot: slot as u32, ..control.counter[0] };
        }
        control
    };
    let before = both([INSTRUCTIONS, BRANCHES]);
    let mut swapped = before;
    swapped.counter.swap(0, 1);
    let fewer = Control { counters: 1, ..before };
    for next in [both([INSTRUCTIONS, INSTRUCTIONS]), swapped, fewer] {
        thread.control(&before).unwrap();
        thread.execute(600);
        thread.stop();
        thread.control(&next).unwrap();
        thread.execute(999);
        assert_eq!(interrupt(&machine, &thread, 0), None);
        thread.execute(1);
        assert!(interrupt(&machine, &thread, 0).is_some());
        thread.stop();
    }
}

#[test]
fn nothing_that_the_host_has_taken_away_is_asked_for_beside_others() {
    let machine = Machine::new();
    let (one, two) = (machine.thread(), machine.thread());
    one.start(&[counter(0, INSTRUCTIONS)]);
    one.switch_out();
    two.start(&[counter(1, BRANCHES)]);
    two.switch_out();
    one.switch_in(0);
    one.switch_out();
    machine.revoke(0);
    two.switch_in(0);
    assert_eq!(machine.programmed(0).slots(), 0b10);
}

#[test]
fn a_vcpu_that_is_refused_counts_for_nobody() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(0, INSTRUCTIONS)]);
    thread.switch_out();
    machine.on(1, |cpu| cpu.refuse(Errno::OPNOTSUPP));
    thread.switch_in(1);
    assert_eq!(thread.read(), Err(Errno::OPNOTSUPP));
}

#[test]
fn interrupts_are_counted_by_whom_they_were_for() {
    let machine = Machine::new();
    machine.on(0, |cpu| [true, false, true].map(|reported| cpu.count_interrupt(reported)));
    let stats = machine.stats(0);
    assert_eq!((stats.interrupts.get(), stats.interrupts_stray.get()), (3, 1));
}
