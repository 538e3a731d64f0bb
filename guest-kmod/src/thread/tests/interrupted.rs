// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests threads on CPUs that count each interrupt as an instruction of user mode.

use std::vec::Vec;

use shared_abi::arch::EVNTSEL_OS;
use shared_abi::seq::Stamp;

use super::*;

impl TestThread<'_> {
    /// Makes the kernel trace an interrupt. Returns whether it was subtracted.
    fn traced(&self, machine: &Machine, vcpu: usize) -> bool {
        machine.on(vcpu, |cpu| self.pmu.borrow_mut().subtract_interrupt(&self.page, cpu, true))
    }

    /// Interrupts the thread in user mode: the CPU counts that as an instruction, and the kernel
    /// traces it so many times.
    fn interrupt(&self, machine: &Machine, vcpu: usize, times: usize) {
        machine.execute(vcpu, 1, 0);
        let subtracted: Vec<bool> = (0..times).map(|_| self.traced(machine, vcpu)).collect();
        let first = (0..times).map(|time| time == 0).collect::<Vec<_>>();
        assert_eq!(subtracted, first, "it is subtracted once");
    }

    fn interrupts(&self) -> u64 {
        self.page.interrupts.load(Relaxed)
    }

    fn stamp(&self) -> Stamp {
        self.page.seq.stamp()
    }
}

#[test]
fn an_interrupt_is_subtracted_once_however_often_it_is_traced() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(1, BRANCHES), counter(0, INSTRUCTIONS), counter(16, FIXED)]);
    assert!(!thread.traced(&machine, 0), "nothing was executed since the start");
    let mut executed = 0;
    for (instructions, times) in [(50, 1), (0, 3), (70, 2), (0, 1)] {
        thread.execute(instructions);
        executed += instructions;
        let stamp = thread.stamp();
        thread.interrupt(&machine, 0, times);
        assert!(!thread.page.seq.is_valid(stamp), "a read that it has interrupted begins anew");
        assert_eq!(counts(&thread), [executed / 10, executed, executed]);
    }
    thread.switch_out();
    assert_eq!(counts(&thread), [12, 120, 120]);
    assert_eq!(published(&thread.page), thread.read().map(Some));
    assert_eq!(thread.interrupts(), 4);
    thread.execute(9);
    assert!(!thread.traced(&machine, 0), "it does not count");
}

#[test]
fn others_who_read_while_the_thread_runs_read_no_less_than_it_had() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(0, INSTRUCTIONS)]);
    for _ in 0..3 {
        thread.interrupt(&machine, 0, 1);
        assert_eq!(published(&thread.page).unwrap().unwrap().counter[0], 0);
    }
    assert_eq!(counts(&thread), [0]);
}

#[test]
fn an_interrupt_stays_noted_when_its_thread_is_moved() {
    let machine = Machine::new();
    let (thread, other) = (machine.thread(), machine.thread());
    thread.start(&[counter(0, INSTRUCTIONS)]);
    for round in 0..6 {
        let (here, there) = (round % 2, (round + 1) % 2);
        thread.execute(50);
        thread.interrupt(&machine, here, 1);
        thread.switch_out();
        other.switch_in(here);
        other.start(&[counter(0, INSTRUCTIONS)]);
        other.execute(20);
        other.switch_out();
        machine.execute(there, 999, 0);
        thread.switch_in(there);
        machine.preempt_vcpu(there);
        assert!(!thread.traced(&machine, there), "it has not been in user mode since then");
    }
    assert_eq!(counts(&thread), [300]);
    assert_eq!(thread.interrupts(), 6);
}

#[test]
fn only_counters_of_user_modes_instructions_lose_interrupts() {
    let machine = Machine::new();
    let thread = machine.thread();
    let both = INSTRUCTIONS | EVNTSEL_OS;
    thread.start(&[counter(0, both), counter(1, INSTRUCTIONS), counter(2, BRANCHES)]);
    thread.execute(50);
    thread.interrupt(&machine, 0, 1);
    assert_eq!(counts(&thread), [51, 50, 5]);
    thread.start(&[counter(0, both), counter(2, BRANCHES)]);
    thread.execute(50);
    assert!(!thread.traced(&machine, 0), "nothing counts user mode alone");
    assert_eq!(counts(&thread), [50, 5]);
}

#[test]
fn what_was_subtracted_is_kept_as_long_as_a_count_is() {
    let machine = Machine::new();
    let thread = machine.thread();
    let counters = [counter(0, INSTRUCTIONS), counter(1, INSTRUCTIONS)];
    thread.start(&counters);
    thread.execute(50);
    thread.interrupt(&machine, 0, 1);
    thread.control(&Control { preserve: 0b01, ..control(&counters) }).unwrap();
    assert!(!thread.traced(&machine, 0), "the kernel has set the counters since then");
    thread.interrupt(&machine, 0, 1);
    assert_eq!((thread.interrupts(), counts(&thread)), (2, [50, 0]));
    thread.start(&counters);
    assert_eq!(thread.interrupts(), 0);
    assert!(!thread.traced(&machine, 0));
    thread.stop();
    assert!(!thread.traced(&machine, 0));
}

#[test]
fn a_period_has_as_many_instructions_as_without_interrupts() {
    let machine = Machine::new();
    let thread = machine.thread();
    let sampling =
        |period| CounterConfig { mode: MODE_SAMPLING, period, ..counter(0, INSTRUCTIONS) };
    let recorded = Control { flags: CONTROL_TSC | CONTROL_RING, ..control(&[sampling(1_000)]) };
    thread.begin_ring().unwrap();
    thread.control(&recorded).unwrap();
    let distance = || machine.programmed(0).period(PhysSlot::general(0).unwrap());
    assert_eq!(distance(), 1_000);
    let overflow = || machine.on(0, |cpu| thread.pmu.borrow_mut().interrupt(&thread.page, cpu));
    for _ in 0..3 {
        thread.execute(400);
        thread.interrupt(&machine, 0, 1);
    }
    thread.execute(0);
    assert_eq!(overflow().map(|signal| signal.counters), Some(1), "1200 instructions");
    assert_eq!(distance(), 800);
    thread.execute(797);
    (0..3).for_each(|_| thread.interrupt(&machine, 0, 1));
    // The counter holds 0 now, so that it interrupts three instructions before the period's end.
    assert_eq!(overflow(), None);
    assert_eq!(distance(), 3, "what is left of the period");
    thread.execute(3);
    thread.interrupt(&machine, 0, 1);
    assert_eq!(overflow().map(|signal| signal.counters), Some(1));
    assert_eq!(counts(&thread), [2_000]);
}

#[test]
fn paused_counters_lose_nothing() {
    let machine = Machine::new();
    let thread = machine.thread();
    let sampling = CounterConfig { mode: MODE_SAMPLING, period: 1_000, ..counter(0, INSTRUCTIONS) };
    thread.control(&Control { signal: 27, ..control(&[sampling]) }).unwrap();
    thread.execute(1_000);
    thread.interrupt(&machine, 0, 1);
    let overflow = machine.on(0, |cpu| thread.pmu.borrow_mut().interrupt(&thread.page, cpu));
    assert!(overflow.is_some());
    thread.execute(50);
    assert!(!thread.traced(&machine, 0), "no counter runs");
    assert_eq!(thread.read().unwrap().counter[0], 1_000);
}

#[test]
fn where_nothing_can_be_read_nothing_is_subtracted() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(0, INSTRUCTIONS)]);
    thread.execute(50);
    machine.revoke(0);
    assert!(!thread.traced(&machine, 0));
    assert_eq!(thread.interrupts(), 0);
}

#[test]
fn who_was_brought_into_the_kernel_by_an_instruction_loses_nothing_there() {
    let machine = Machine::new();
    let thread = machine.thread();
    thread.start(&[counter(0, INSTRUCTIONS)]);
    thread.execute(50);
    let int3 =
        machine.on(0, |cpu| thread.pmu.borrow_mut().subtract_interrupt(&thread.page, cpu, false));
    assert!(!int3 && !thread.traced(&machine, 0));
    assert_eq!((counts(&thread), thread.interrupts()), ([50], 0));
    thread.interrupt(&machine, 0, 2);
    assert_eq!((counts(&thread), thread.interrupts()), ([50], 1));
}
