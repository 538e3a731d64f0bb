// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests events on CPUs that count each interrupt as an instruction of user mode.

use super::*;

impl Machine {
    /// Interrupts user mode: the CPU counts that as an instruction, and the kernel traces it three
    /// times. Returns whether it was subtracted each time.
    fn interrupt(&self) -> [bool; 3] {
        self.execute(0, 1, 0);
        [(); 3].map(|()| self.on(0, |cpu| cpu.subtract_interrupt_from_events(true)))
    }
}

#[test]
fn an_interrupt_is_subtracted_from_each_event_of_user_modes_instructions() {
    let machine = Machine::new();
    let both =
        EventConfig::new(&Machine::caps(), TYPE_RAW, 0xc0, USER | EVNTSEL_OS, false).unwrap();
    let wanted = [event(0xc0, false), event(0xc4, false), both, event(0xc0, false)];
    machine.schedule(0, &wanted.map(|event| (event, 0)));
    assert!(!machine.on(0, |cpu| cpu.subtract_interrupt_from_events(true)), "nothing was executed");
    machine.execute(0, 50, 5);
    assert_eq!(machine.interrupt(), [true, false, false]);
    let counts = || [0, 1, 2, 3].map(|index| machine.progress(0, index).count);
    assert_eq!(counts(), [50, 5, 51, 50]);
    // perf has been given what it was given before the interrupt was traced.
    machine.execute(0, 1, 0);
    assert_eq!(counts(), [1, 0, 1, 1]);
    assert!(machine.on(0, |cpu| cpu.subtract_interrupt_from_events(true)));
    assert_eq!(counts(), [u64::MAX, 0, 0, u64::MAX], "it is taken from what perf has");
}

#[test]
fn an_event_that_samples_ends_its_period_in_its_place() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, true), 1_000)]);
    machine.execute(0, 997, 0);
    for _ in 0..3 {
        assert_eq!(machine.interrupt(), [true, false, false]);
    }
    let overflow = || machine.on(0, |cpu| cpu.overflowed_events());
    assert_eq!(overflow(), 0, "its counter holds 0, and three instructions are left");
    machine.on(0, |cpu| cpu.enable_events(None));
    let slot = slots_of(machine.programmed(0).sampling()).next().unwrap();
    assert_eq!(machine.programmed(0).period(slot), 3);
    machine.execute(0, 3, 0);
    assert_eq!(machine.interrupt(), [true, false, false]);
    assert_eq!(overflow(), 1);
    assert_eq!(machine.progress(0, 0).count, 1_000);
}

#[test]
fn a_stopped_event_loses_nothing() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    machine.on(0, |cpu| cpu.stop_event(0));
    machine.on(0, |cpu| cpu.enable_events(None));
    assert_eq!(machine.interrupt(), [false; 3]);
    machine.on(0, |cpu| cpu.disable_events());
    assert_eq!(machine.interrupt(), [false; 3]);
    assert_eq!(machine.progress(0, 0).count, 0);
}

#[test]
fn an_event_that_is_started_again_loses_no_interrupt_that_came_before() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    machine.execute(0, 50, 0);
    machine.on(0, |cpu| cpu.stop_event(0));
    // The interrupt, which an event that is stopped does not count.
    machine.execute(0, 1, 0);
    machine.on(0, |cpu| cpu.start_event(0, 0, 0, 0));
    machine.on(0, |cpu| cpu.enable_events(None));
    assert!(!machine.on(0, |cpu| cpu.subtract_interrupt_from_events(true)));
    assert_eq!(machine.progress(0, 0).count, 50);
}

#[test]
fn an_event_loses_nothing_where_an_instruction_has_led_into_the_kernel() {
    let machine = Machine::new();
    machine.schedule(0, &[(event(0xc0, false), 0)]);
    machine.execute(0, 50, 0);
    assert!(!machine.on(0, |cpu| cpu.subtract_interrupt_from_events(false)));
    assert!(
        !machine.on(0, |cpu| cpu.subtract_interrupt_from_events(true)),
        "it is still in the kernel"
    );
    assert_eq!(machine.interrupt(), [true, false, false]);
    assert_eq!(machine.progress(0, 0).count, 50);
}
