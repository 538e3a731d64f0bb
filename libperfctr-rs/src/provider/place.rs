// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The assignment of events to counters.

use shared_abi::arch::EVNTSEL_EN;
use shared_abi::config::{MODE_COUNTING, MODE_SAMPLING};
use shared_abi::{CounterConfig, PhysSlot, PmuCaps};

use super::known;
use crate::error::Error;
use crate::event::Event;

/// Finds a counter for every event. The result is in the events' order.
///
/// Events that name their counter come first, then events that have a fixed counter, then the
/// others. General counters are alike, so no other order could place more events.
pub(crate) fn place(caps: &PmuCaps, events: &[Event]) -> Result<Vec<CounterConfig>, Error> {
    known::check_counters(events)?;
    let available = caps.slots().count_ones() as usize;
    if events.len() > available {
        return Err(Error::TooManyCounters { asked: events.len(), available });
    }
    let mut free = caps.slots();
    let mut slots = vec![None; events.len()];
    let mut take = |slot: Option<PhysSlot>| {
        let slot = slot.filter(|slot| free & slot.bit() != 0)?;
        free &= !slot.bit();
        Some(slot)
    };
    for (slot, event) in slots.iter_mut().zip(events) {
        if event.slot.is_some() {
            let taken =
                take(event.slot).ok_or(Error::unavailable(*event, "its counter is not free"))?;
            *slot = Some(taken);
        }
    }
    for (slot, event) in slots.iter_mut().zip(events) {
        *slot = slot.or_else(|| take(event.fixed()));
    }
    for slot in &mut slots {
        *slot = slot.or_else(|| (0..caps.general).find_map(|n| take(PhysSlot::general(n))));
    }
    let place = |(slot, event): (Option<PhysSlot>, &Event)| {
        config(*event, caps, slot.ok_or(Error::unavailable(*event, "no counter is free"))?)
    };
    slots.into_iter().zip(events).map(place).collect()
}

/// Makes the configuration that counts `event` on `slot`.
fn config(event: Event, caps: &PmuCaps, slot: PhysSlot) -> Result<CounterConfig, Error> {
    let select = if slot.fixed_number().is_some() {
        (event.fixed() == Some(slot)).then_some(0)
    } else {
        event.select(caps.vendor)
    };
    let select = select.ok_or(Error::unavailable(event, "this counter cannot count it"))?;
    Ok(CounterConfig {
        slot: slot.index() as u32,
        mode: if event.samples() { MODE_SAMPLING } else { MODE_COUNTING },
        evntsel: select | event.rings | EVNTSEL_EN,
        period: event.period,
        ..CounterConfig::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_abi::CounterWidth;
    use shared_abi::arch::{EVNTSEL_OS, EVNTSEL_USR};
    use shared_abi::caps::{VENDOR_AMD, VENDOR_INTEL};

    fn caps() -> PmuCaps {
        use shared_abi::caps::{CAPS_GLOBAL_INTEL, CAPS_SAMPLING};

        let width = CounterWidth::new(48).unwrap();
        PmuCaps {
            vendor: VENDOR_INTEL,
            features: CAPS_GLOBAL_INTEL | CAPS_SAMPLING,
            version: 2,
            general: 2,
            fixed: 3,
            general_width: width,
            fixed_width: width,
        }
    }

    fn slots(events: &[Event]) -> Vec<u32> {
        place(&caps(), events).unwrap().iter().map(|counter| counter.slot).collect()
    }

    #[test]
    fn fixed_counters_are_preferred_and_general_ones_fill_up() {
        let events = [Event::BRANCHES, Event::INSTRUCTIONS.user(), Event::INSTRUCTIONS.kernel()];
        assert_eq!(slots(&events), [0, 16, 1], "the second instruction event falls back");
        assert_eq!(slots(&[Event::raw(0xc5), Event::CYCLES]), [0, 17]);
    }

    #[test]
    fn wishes_come_first() {
        let general = PhysSlot::general(0).unwrap();
        let events = [Event::BRANCHES, Event::INSTRUCTIONS.on(general)];
        assert_eq!(slots(&events), [1, 0]);
    }

    #[test]
    fn select_words_carry_rings_and_enable() {
        let counters = place(&caps(), &[Event::BRANCHES.user(), Event::CYCLES.kernel()]).unwrap();
        assert_eq!(counters[0].evntsel, 0xc4 | EVNTSEL_USR | EVNTSEL_EN);
        assert_eq!(counters[1].evntsel, EVNTSEL_OS | EVNTSEL_EN);
        let amd = PmuCaps { vendor: VENDOR_AMD, fixed: 0, ..caps() };
        let counters = place(&amd, &[Event::CYCLES.user()]).unwrap();
        assert_eq!(counters[0].evntsel, 0x76 | EVNTSEL_USR | EVNTSEL_EN);
    }

    #[test]
    fn a_period_makes_an_event_sample() {
        let events = [Event::BRANCHES.user().every(5_000), Event::INSTRUCTIONS];
        let counters = place(&caps(), &events).unwrap();
        assert_eq!((counters[0].mode, counters[0].period), (MODE_SAMPLING, 5_000));
        assert_eq!((counters[1].mode, counters[1].period), (MODE_COUNTING, 0));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let too_many = place(&caps(), &[Event::BRANCHES; 6]).unwrap_err();
        assert_eq!(too_many.to_string(), "6 counters asked for, 5 available");
        let full = place(&caps(), &[Event::BRANCHES.user(); 3]).unwrap_err();
        assert_eq!(full.to_string(), "event branches:u is not available: no counter is free");
        let fixed = PhysSlot::fixed(1).unwrap();
        let software = place(&caps(), &[Event::CYCLES, Event::PAGE_FAULTS]).unwrap_err();
        assert!(software.to_string().contains("the kernel counts it"), "{software}");
        let wrong = place(&caps(), &[Event::INSTRUCTIONS.on(fixed)]).unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "event instructions is not available: this counter cannot count it"
        );
        let twice = place(&caps(), &[Event::CYCLES.on(fixed), Event::CYCLES.on(fixed)]);
        assert!(matches!(twice, Err(Error::EventNotAvailable { .. })));
    }
}
