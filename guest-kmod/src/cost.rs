// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Measures the cost of a switch or a sample in instructions, with the thread's own counter.
//!
//! In a 64-bit PV guest the kernel and user mode execute in the same ring. So the raw value of a
//! counter of user-mode instructions also counts the kernel there. A load in the middle does not
//! disturb the measurement if the counter counts the same event before and after.

use core::sync::atomic::Ordering::Relaxed;

use shared_abi::arch::{EVNTSEL_USR, events};
use shared_abi::slot::slots_of;
use shared_abi::vcpu_page::VCPU_DIRECT;
use shared_abi::{Config, PhysSlot};

use crate::hal::Kernel;
use crate::vcpu::ThisVcpu;

/// Returns a counter of `config` that counts every instruction in user mode and is never preset.
pub(crate) fn instruction_counter(config: &Config) -> Option<PhysSlot> {
    let accumulating = config.slots_in_ring(EVNTSEL_USR) & !config.sampling();
    slots_of(accumulating).find(|slot| events::counts_instructions(*slot, config.evntsel(*slot)))
}

/// A measurement under way.
#[derive(Debug)]
pub(crate) struct Probe(Option<Started>);

#[derive(Debug)]
struct Started {
    slot: PhysSlot,
    /// The event select of the slot; 0 if it counts nothing.
    evntsel: u64,
    /// How often the vCPU had been switched in.
    switches: u64,
    raw: u64,
}

impl Probe {
    #[inline(always)]
    pub(crate) fn start<K: Kernel>(slot: Option<PhysSlot>, cpu: &ThisVcpu<'_, K>) -> Self {
        let direct = cpu.page.flags.load(Relaxed) & VCPU_DIRECT != 0;
        Self(slot.filter(|_| direct).map(|slot| Started {
            slot,
            evntsel: cpu.vcpu.counted_by(slot),
            switches: cpu.page.switches.load(Relaxed),
            raw: cpu.kernel.counter(slot.counter_index()),
        }))
    }

    /// Instructions since the start; `None` if the vCPU was switched, or the counter did not count
    /// them all the time.
    #[inline(always)]
    pub(crate) fn finish<K: Kernel>(self, cpu: &ThisVcpu<'_, K>) -> Option<u64> {
        let started = self.0?;
        let raw = cpu.kernel.counter(started.slot.counter_index());
        // Counters are at least 32 bits wide and a switch is shorter than 2^32 instructions.
        let instructions = u64::from((raw as u32).wrapping_sub(started.raw as u32));
        let undisturbed = started.switches == cpu.page.switches.load(Relaxed)
            && started.evntsel != 0
            && started.evntsel == cpu.vcpu.counted_by(started.slot);
        undisturbed.then_some(instructions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BRANCHES, INSTRUCTIONS, Machine, counter};
    use shared_abi::arch::{EVNTSEL_EDGE, EVNTSEL_EN, EVNTSEL_INV, EVNTSEL_OS};
    use shared_abi::caps::{CAPS_ALL_EVENTS, CAPS_EVENT_12BIT, VENDOR_AMD};
    use shared_abi::config::MODE_SAMPLING;
    use shared_abi::read::Counters as _;
    use shared_abi::{CounterConfig, PmuCaps};

    fn slot_in(counters: &[shared_abi::CounterConfig]) -> Option<usize> {
        let config = Config::new(&Machine::caps(), counters).unwrap();
        instruction_counter(&config).map(PhysSlot::index)
    }

    #[test]
    fn the_instruction_counter_is_recognised() {
        assert_eq!(slot_in(&[counter(0, BRANCHES), counter(2, INSTRUCTIONS)]), Some(2));
        assert_eq!(slot_in(&[counter(16, EVNTSEL_USR | EVNTSEL_EN)]), Some(16));
        assert_eq!(slot_in(&[counter(16, EVNTSEL_OS | EVNTSEL_EN)]), None);
        assert_eq!(slot_in(&[counter(17, EVNTSEL_USR | EVNTSEL_EN)]), None);
        for qualifier in [EVNTSEL_EDGE, EVNTSEL_INV, 1 << 24, 1 << 31] {
            assert_eq!(slot_in(&[counter(0, INSTRUCTIONS | qualifier)]), None, "{qualifier:#x}");
        }
        let sampling =
            CounterConfig { mode: MODE_SAMPLING, period: 1_000, ..counter(0, INSTRUCTIONS) };
        assert_eq!(slot_in(&[sampling]), None);
        assert_eq!(slot_in(&[sampling, counter(1, INSTRUCTIONS)]), Some(1));
    }

    #[test]
    fn on_amd_the_whole_event_number_is_that_of_instructions() {
        let amd = VENDOR_AMD;
        let features = CAPS_EVENT_12BIT | CAPS_ALL_EVENTS;
        let caps = PmuCaps { vendor: amd, features, fixed: 0, ..Machine::caps() };
        for (event_high, expected) in [(1, None), (8, None), (0, Some(2))] {
            let select = INSTRUCTIONS | event_high << 32;
            let config = Config::new(&caps, &[counter(2, select)]).unwrap();
            let found = instruction_counter(&config).map(PhysSlot::index);
            assert_eq!(found, expected, "event {:#x}", event_high << 8 | 0xc0);
        }
    }

    #[test]
    fn a_disturbed_measurement_is_thrown_away() {
        let machine = Machine::new();
        let thread = machine.thread();
        thread.start(&[counter(0, INSTRUCTIONS)]);
        let slot = PhysSlot::general(0);
        let measure = |disturb: fn(&Machine)| {
            machine.on(0, |cpu| {
                let probe = Probe::start(slot, cpu);
                machine.execute(0, 25, 0);
                disturb(&machine);
                probe.finish(cpu)
            })
        };
        assert_eq!(measure(|_| ()), Some(25));
        assert_eq!(measure(|machine| machine.preempt_vcpu(0)), None);
    }

    #[test]
    fn a_counter_that_wraps_meanwhile_measures_what_it_has_counted() {
        let machine = Machine::new();
        let thread = machine.thread();
        thread.start(&[counter(0, INSTRUCTIONS)]);
        // Counters of this machine wrap after 100 events.
        machine.execute(0, 90, 0);
        machine.on(0, |cpu| {
            let probe = Probe::start(PhysSlot::general(0), cpu);
            let before = cpu.kernel.counter(0);
            machine.execute(0, 25, 0);
            let after = cpu.kernel.counter(0);
            assert!(after < before, "{before:#x} and {after:#x}: it has not wrapped");
            assert_eq!(probe.finish(cpu), Some(25));
        });
    }

    #[test]
    fn what_counts_something_else_meanwhile_measures_nothing() {
        let machine = Machine::new();
        let slot = PhysSlot::general(0);
        let load = |event| Config::new(&Machine::caps(), &[counter(0, event)]).unwrap();
        machine.on(0, |cpu| {
            cpu.load(&load(INSTRUCTIONS)).unwrap();
            let probe = Probe::start(slot, cpu);
            cpu.load(&load(BRANCHES)).unwrap();
            assert_eq!(probe.finish(cpu), None);
        });
    }

    #[test]
    fn where_nothing_may_be_read_nothing_is_measured() {
        let machine = Machine::new();
        let thread = machine.thread();
        thread.start(&[counter(0, INSTRUCTIONS)]);
        let measure = || machine.on(0, |cpu| Probe::start(PhysSlot::general(0), cpu).finish(cpu));
        assert_eq!(measure(), Some(0));
        machine.revoke(0);
        assert_eq!(measure(), None);
        machine.on(0, |cpu| cpu.unregister()).unwrap();
        assert_eq!(measure(), None);
    }
}
