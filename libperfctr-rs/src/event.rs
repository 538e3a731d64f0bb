// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Events, and which counter counts which.

use std::fmt;

use shared_abi::caps::{VENDOR_AMD, VENDOR_INTEL};
use shared_abi::config::{
    EVNTSEL_EN, EVNTSEL_OS, EVNTSEL_RINGS, EVNTSEL_USR, MODE_COUNTING, MODE_SAMPLING,
};
use shared_abi::{CounterConfig, PhysSlot, PmuCaps};

use crate::error::Error;

/// What a counter counts, in which rings, and on which physical counter.
///
/// Events count in user and in kernel mode unless [`user`](Self::user) or
/// [`kernel`](Self::kernel) says otherwise.  The library finds a free counter, a fixed one if it
/// can, unless [`on`](Self::on) names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub(crate) what: What,
    /// `EVNTSEL_*` bits.
    pub(crate) rings: u64,
    pub(crate) slot: Option<PhysSlot>,
    /// 0 unless the event samples.
    pub(crate) period: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Instructions,
    Cycles,
    Branches,
    Raw(u64),
}

impl Event {
    /// Instructions retired.
    pub const INSTRUCTIONS: Self = Self::new(What::Instructions);
    /// Core clock cycles while not halted.
    pub const CYCLES: Self = Self::new(What::Cycles);
    /// Branch instructions retired, taken or not.
    pub const BRANCHES: Self = Self::new(What::Branches);

    /// An event by its select word (SDM volume 3, 20.2.1.1; APM volume 2, 13.2.1): event number,
    /// unit mask, edge, inversion and counter mask.
    ///
    /// The word's ring and enable bits are the library's to set.
    pub const fn raw(select: u64) -> Self {
        Self::new(What::Raw(select & !(EVNTSEL_RINGS | EVNTSEL_EN)))
    }

    const fn new(what: What) -> Self {
        Self { what, rings: EVNTSEL_RINGS, slot: None, period: 0 }
    }

    /// Counts in user mode only.
    pub const fn user(self) -> Self {
        Self { rings: EVNTSEL_USR, ..self }
    }

    /// Counts in kernel mode only.
    pub const fn kernel(self) -> Self {
        Self { rings: EVNTSEL_OS, ..self }
    }

    /// Counts on this physical counter and on no other.
    pub const fn on(self, slot: PhysSlot) -> Self {
        Self { slot: Some(slot), ..self }
    }

    /// Samples as well: whenever the count reaches a multiple of `period` the counter overflows and
    /// the thread gets a signal, see [`overflow`](crate::overflow).
    ///
    /// Unit: events, from [`PERIOD_EVENTS_MIN`] to [`PERIOD_EVENTS_MAX`]; others are refused when
    /// the counters are started, and 0 asks for none.
    ///
    /// [`PERIOD_EVENTS_MIN`]: shared_abi::limits::PERIOD_EVENTS_MIN
    /// [`PERIOD_EVENTS_MAX`]: shared_abi::limits::PERIOD_EVENTS_MAX
    pub const fn every(self, period: u64) -> Self {
        Self { period, ..self }
    }

    /// Whether it overflows.
    pub(crate) const fn samples(self) -> bool {
        self.period != 0
    }

    /// The fixed counter that counts this event (SDM volume 3, table 20-2).
    fn fixed(self) -> Option<PhysSlot> {
        match self.what {
            What::Instructions => PhysSlot::fixed(0),
            What::Cycles => PhysSlot::fixed(1),
            What::Branches | What::Raw(_) => None,
        }
    }

    /// The event's number and unit mask for a general counter (SDM volume 3, table 20-1; AMD's
    /// Processor Programming References, "core performance monitor counters").
    fn select(self, vendor: u32) -> Option<u64> {
        match (self.what, vendor) {
            (What::Raw(select), _) => Some(select),
            (What::Instructions, VENDOR_INTEL | VENDOR_AMD) => Some(0xc0),
            (What::Cycles, VENDOR_INTEL) => Some(0x3c),
            (What::Cycles, VENDOR_AMD) => Some(0x76),
            (What::Branches, VENDOR_INTEL) => Some(0xc4),
            (What::Branches, VENDOR_AMD) => Some(0xc2),
            _ => None,
        }
    }

    /// The configuration for counting this event on `slot`.
    fn config(self, caps: &PmuCaps, slot: PhysSlot) -> Result<CounterConfig, Error> {
        let select = if slot.fixed_number().is_some() {
            (self.fixed() == Some(slot)).then_some(0)
        } else {
            self.select(caps.vendor)
        };
        let select = select.ok_or(self.unavailable("this counter cannot count it"))?;
        Ok(CounterConfig {
            slot: slot.index() as u32,
            mode: if self.samples() { MODE_SAMPLING } else { MODE_COUNTING },
            evntsel: select | self.rings | EVNTSEL_EN,
            period: self.period,
            ..CounterConfig::default()
        })
    }

    pub(crate) fn unavailable(self, reason: &'static str) -> Error {
        Error::EventNotAvailable { event: self, reason }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Instructions => f.write_str("instructions")?,
            What::Cycles => f.write_str("cycles")?,
            What::Branches => f.write_str("branches")?,
            What::Raw(select) => write!(f, "{select:#x}")?,
        }
        match self.rings {
            EVNTSEL_USR => f.write_str(":u"),
            EVNTSEL_OS => f.write_str(":k"),
            _ => Ok(()),
        }
    }
}

/// Finds a counter for every event; the result is in the events' order.
///
/// Explicit wishes come first, then events that have a fixed counter of their own, then the rest.
/// General counters are alike, so no other order could place more.
pub(crate) fn place(caps: &PmuCaps, events: &[Event]) -> Result<Vec<CounterConfig>, Error> {
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
            let taken = take(event.slot).ok_or(event.unavailable("its counter is not free"))?;
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
        event.config(caps, slot.ok_or(event.unavailable("no counter is free"))?)
    };
    slots.into_iter().zip(events).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_abi::CounterWidth;

    fn caps() -> PmuCaps {
        let width = CounterWidth::new(48).unwrap();
        PmuCaps {
            vendor: VENDOR_INTEL,
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
        let wrong = place(&caps(), &[Event::INSTRUCTIONS.on(fixed)]).unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "event instructions is not available: this counter cannot count it"
        );
        let twice = place(&caps(), &[Event::CYCLES.on(fixed), Event::CYCLES.on(fixed)]);
        assert!(matches!(twice, Err(Error::EventNotAvailable { .. })));
    }
}
