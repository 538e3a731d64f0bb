// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Events whose samples are where the processor has noted.

use shared_abi::hypercall::{FEATURE_PRECISE, PLACE_PRECISE};
use shared_abi::slot::slots_of;

use super::*;

/// The number of perf's bits that say how exact the places of samples have to be.
const PRECISE_IP: u32 = 15;

fn attr(precise_ip: u64) -> EventAttr {
    let flags = precise_ip << PRECISE_IP | flags::EXCLUDE_KERNEL;
    EventAttr { kind: TYPE_RAW, config: 0xc0, period: 5_000, flags, ..EventAttr::default() }
}

fn open(attr: &EventAttr) -> Result<EventConfig, Errno> {
    EventConfig::open(&Machine::caps(), attr, FEATURE_PRECISE)
}

fn precise() -> EventConfig {
    open(&attr(2)).unwrap()
}

#[test]
fn an_event_is_precise_where_the_hypervisor_offers_it() {
    let plain = open(&attr(0)).unwrap();
    assert_eq!(plain, event(0xc0, true));
    for precise_ip in [1, 2] {
        let wanted = attr(precise_ip);
        assert_eq!(open(&wanted), Ok(EventConfig { precise: 1, ..plain }));
        let refused = EventConfig::open(&Machine::caps(), &wanted, !FEATURE_PRECISE);
        assert_eq!(refused, Err(Errno::OPNOTSUPP));
    }
    for (refused, errno) in [
        (attr(3), Errno::OPNOTSUPP),
        (EventAttr { config: 0x3c, ..attr(2) }, Errno::OPNOTSUPP),
        (EventAttr { config: 0xc0 | 1 << 24, ..attr(2) }, Errno::OPNOTSUPP),
        (EventAttr { sample_type: SAMPLE_REGS_INTR, ..attr(2) }, Errno::OPNOTSUPP),
        (EventAttr { period: 0, ..attr(1) }, Errno::INVAL),
    ] {
        assert_eq!(open(&refused), Err(errno), "{refused:?}");
    }
}

#[test]
fn precise_events_get_general_counters_of_their_own() {
    let generic = EventAttr { kind: TYPE_HARDWARE, config: 1, ..attr(2) };
    let by_name = open(&generic).unwrap();
    assert!(slots_of(by_name.slots).all(|slot| slot.fixed_number().is_none()), "{by_name:?}");
    let machine = Machine::new();
    let wanted = [(by_name, 5_000), (precise(), 400), (event(0xc0, true), 300)];
    assert_eq!(machine.schedule(0, &wanted), [Ok(0), Ok(1), Ok(2)]);
    let loaded = machine.programmed(0);
    assert_eq!(loaded.precise().count_ones(), 2, "{loaded:?}");
    assert_eq!(loaded.sampling().count_ones(), 3, "{loaded:?}");
    let periods: Vec<_> = slots_of(loaded.precise()).map(|slot| loaded.period(slot)).collect();
    assert!(periods == [5_000, 400] || periods == [400, 5_000], "{periods:?}");
}

#[test]
fn a_precise_sample_is_where_the_processor_has_noted() {
    let seen = HvPlace { mode: PLACE_USER | PLACE_PRECISE, ..SEEN };
    let machine = Machine::new();
    machine.place.set(seen);
    let registers = |event: EventConfig, interrupted: HvPlace| {
        let [Ok(index)] = machine.schedule(0, &[(event, 5_000)])[..] else { panic!("no counter") };
        machine.on(0, |cpu| {
            let mut place = interrupted;
            let registers = cpu.registers_of_event(index, &mut place);
            cpu.remove_event(index, 0);
            (registers, HvPlace { slot: 0, ..place })
        })
    };
    let late = HvPlace { mode: PLACE_USER, ..INTERRUPTED };
    let noted = HvPlace { mode: PLACE_USER, ..SEEN };
    assert_eq!(registers(precise(), late), (Registers::Precise, noted));
    assert_eq!(registers(precise(), HvPlace::default()), (Registers::Precise, noted));
    // The hypervisor does not know it.
    for mode in [0, PLACE_USER] {
        machine.place.set(HvPlace { mode, ..SEEN });
        assert_eq!(registers(precise(), late), (Registers::Interrupted, late));
    }
    // An event that is not precise and has the same counter.
    let both = EventConfig::new(&Machine::caps(), TYPE_RAW, 0xc0, USER | EVNTSEL_OS, true).unwrap();
    machine.place.set(HvPlace { mode: PLACE_KERNEL | PLACE_PRECISE, ..SEEN });
    assert_eq!(registers(both, INTERRUPTED), (Registers::Place, SEEN));
    machine.place.set(seen);
    assert_eq!(registers(both, INTERRUPTED).0, Registers::User);
}

#[test]
fn a_precise_sample_keeps_its_place_when_the_page_is_taken_back_before() {
    let machine = Machine::new();
    assert_eq!(machine.schedule(0, &[(precise(), 5_000)]), [Ok(0)]);
    machine.execute(0, 6_000, 0);
    machine.place.set(HvPlace { mode: PLACE_USER | PLACE_PRECISE, ..SEEN });
    machine.on(0, |cpu| cpu.unregister()).unwrap();
    machine.place.set(HvPlace::default());
    machine.on(0, |cpu| {
        let mut place = HvPlace::default();
        assert_eq!(cpu.registers_of_event(0, &mut place), Registers::Precise);
        assert_eq!(place.ip, SEEN.ip);
    });
}
