// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The events that the library counts.

mod parse;
#[cfg(feature = "pfm")]
mod pfm;

use std::fmt;
use std::hash::{Hash, Hasher};

pub use self::parse::ParseEventError;
#[cfg(feature = "pfm")]
pub use self::pfm::{Described, catalogue};
use perf_event_open_sys::bindings as perf;
use shared_abi::PhysSlot;
use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_OS, EVNTSEL_RINGS, EVNTSEL_USR};
use shared_abi::events::Generic;

/// An event to count, with the modes in which it counts, and its physical counter if that matters.
///
/// It counts in user mode and in kernel mode unless [`user`](Self::user) or
/// [`kernel`](Self::kernel) selects one of them. The library finds a free counter, a fixed one if
/// it can, unless [`on`](Self::on) names the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub(crate) what: What,
    /// The bits `EVNTSEL_USR` and `EVNTSEL_OS` of the modes in which the event counts.
    pub(crate) rings: u64,
    pub(crate) slot: Option<PhysSlot>,
    /// Number of events between two samples, or 0 if the event does not sample.
    pub(crate) period: u64,
    /// Whether a session refuses the event on a CPU if the library does not know that the CPU has
    /// it.
    pub(crate) verified: bool,
    /// libpfm4's name for the event on this CPU, if the event was given by such a name.
    pub(crate) name: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Generic(Generic),
    Raw(u64),
    /// An event that the kernel counts, by its number in Linux.
    Software(u32),
}

/// The names of [`Event`]s. An event is printed with the first of its names.
const NAMES: [(What, &[&str]); 12] = [
    (What::Generic(Generic::Instructions), &["instructions"]),
    (What::Generic(Generic::Cycles), &["cycles", "cpu-cycles"]),
    (What::Generic(Generic::Branches), &["branches", "branch-instructions"]),
    (What::Generic(Generic::BranchMisses), &["branch-misses"]),
    (What::Generic(Generic::CacheReferences), &["cache-references"]),
    (What::Generic(Generic::CacheMisses), &["cache-misses"]),
    (What::Generic(Generic::BusCycles), &["bus-cycles"]),
    (What::Generic(Generic::ReferenceCycles), &["ref-cycles"]),
    (What::Software(perf::PERF_COUNT_SW_TASK_CLOCK), &["task-clock"]),
    (What::Software(perf::PERF_COUNT_SW_PAGE_FAULTS), &["page-faults", "faults"]),
    (What::Software(perf::PERF_COUNT_SW_CONTEXT_SWITCHES), &["context-switches", "cs"]),
    (What::Software(perf::PERF_COUNT_SW_CPU_MIGRATIONS), &["cpu-migrations", "migrations"]),
];

impl Event {
    /// Instructions retired.
    pub const INSTRUCTIONS: Self = Self::new(What::Generic(Generic::Instructions));
    /// Core clock cycles while not halted.
    pub const CYCLES: Self = Self::new(What::Generic(Generic::Cycles));
    /// Branch instructions retired, taken or not.
    pub const BRANCHES: Self = Self::new(What::Generic(Generic::Branches));
    /// Branch instructions retired that were mispredicted.
    pub const BRANCH_MISSES: Self = Self::new(What::Generic(Generic::BranchMisses));
    /// References to the last-level cache (Intel's architectural event).
    pub const CACHE_REFERENCES: Self = Self::new(What::Generic(Generic::CacheReferences));
    /// Misses of the last-level cache (Intel's architectural event).
    pub const CACHE_MISSES: Self = Self::new(What::Generic(Generic::CacheMisses));

    /// Cycles of the bus while not halted (Intel's architectural event).
    pub const BUS_CYCLES: Self = Self::new(What::Generic(Generic::BusCycles));
    /// Cycles while not halted of a clock with the frequency of the TSC (Intel's third fixed
    /// counter).
    pub const REF_CYCLES: Self = Self::new(What::Generic(Generic::ReferenceCycles));

    /// The time for which threads execute, unit: ns. The kernel counts this event, so a
    /// [`Watch`](crate::watch::Watch) can have it, and a session cannot.
    pub const TASK_CLOCK: Self = Self::new(What::Software(perf::PERF_COUNT_SW_TASK_CLOCK));
    /// Page faults, which the kernel counts like [`TASK_CLOCK`](Self::TASK_CLOCK).
    pub const PAGE_FAULTS: Self = Self::new(What::Software(perf::PERF_COUNT_SW_PAGE_FAULTS));
    /// Switches from a thread to another one, which the kernel counts, in kernel mode only.
    pub const CONTEXT_SWITCHES: Self =
        Self::new(What::Software(perf::PERF_COUNT_SW_CONTEXT_SWITCHES));
    /// Moves of threads to another CPU, which the kernel counts, in kernel mode only.
    pub const CPU_MIGRATIONS: Self = Self::new(What::Software(perf::PERF_COUNT_SW_CPU_MIGRATIONS));

    /// Iterates over the events that have names. Each counts in both modes.
    pub fn named() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|&(what, _)| Self::new(what))
    }

    /// Makes an event of its select word (SDM volume 3, 20.2.1.1; APM volume 2, 13.2.1), which has
    /// the event number, unit mask, edge, inversion and counter mask.
    ///
    /// The library sets the word's mode and enable bits. A session refuses an event if the library
    /// does not know that the CPU has it, unless the event is [`unverified`](Self::unverified).
    pub const fn raw(select: u64) -> Self {
        Self::new(What::Raw(select & !(EVNTSEL_RINGS | EVNTSEL_EN)))
    }

    const fn new(what: What) -> Self {
        Self { what, rings: EVNTSEL_RINGS, slot: None, period: 0, verified: true, name: None }
    }

    /// Makes the event count in user mode only.
    pub const fn user(self) -> Self {
        Self { rings: EVNTSEL_USR, ..self }
    }

    /// Makes the event count in kernel mode only.
    pub const fn kernel(self) -> Self {
        Self { rings: EVNTSEL_OS, ..self }
    }

    /// Makes the event count on this physical counter and on no other.
    pub const fn on(self, slot: PhysSlot) -> Self {
        Self { slot: Some(slot), ..self }
    }

    /// Makes the event sample. Whenever the count reaches a multiple of `period`, the counter
    /// overflows and the thread gets a signal or a record, see [`overflow`](crate::overflow).
    ///
    /// The period's unit is events. A session refuses a period above [`PERIOD_EVENTS_MAX`] when it
    /// starts; a period of 0 means that the event does not sample. If the period is below 1,000,
    /// several periods pass between two overflows, so that the thread makes progress. The host may
    /// allow even fewer overflows. Counts stay exact.
    ///
    /// [`PERIOD_EVENTS_MAX`]: shared_abi::limits::PERIOD_EVENTS_MAX
    pub const fn every(self, period: u64) -> Self {
        Self { period, ..self }
    }

    /// Makes a session accept the event even if the library does not know that this CPU has it.
    ///
    /// The library knows Intel's architectural events, which CPUID announces, and the events of
    /// AMD's that every family since 0FH counts. An event that the CPU does not have usually
    /// counts nothing, without an error. Find the event in the manual of the CPU, and check its
    /// counts with a program whose counts are known.
    pub const fn unverified(self) -> Self {
        Self { verified: false, ..self }
    }

    /// Returns the number of events between two samples, or 0 if the event does not sample.
    pub const fn period(self) -> u64 {
        self.period
    }

    /// Returns the select word of an event that was given by a select word or by libpfm4's name, or
    /// `None` for events whose word depends on the CPU.
    pub const fn word(self) -> Option<u64> {
        match self.what {
            What::Generic(_) | What::Software(_) => None,
            What::Raw(select) => Some(select),
        }
    }

    /// Returns whether the kernel counts the event, and no counter of the processor.
    pub const fn is_software(self) -> bool {
        matches!(self.what, What::Software(_))
    }

    /// Returns whether the event samples.
    pub(crate) const fn samples(self) -> bool {
        self.period != 0
    }

    /// Returns the fixed counter that counts this event, if there is one.
    pub(crate) fn fixed(self) -> Option<PhysSlot> {
        match self.what {
            What::Generic(generic) => generic.fixed(),
            What::Raw(_) | What::Software(_) => None,
        }
    }

    /// Returns the event number and unit mask for a general counter, if a general counter can count
    /// the event.
    pub(crate) fn select(self, vendor: u32) -> Option<u64> {
        match self.what {
            What::Generic(generic) => generic.select(vendor),
            What::Raw(select) => Some(select),
            What::Software(_) => None,
        }
    }
}

impl Hash for Event {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let what = match self.what {
            What::Generic(generic) => (0, generic.perf()),
            What::Raw(select) => (1, select),
            What::Software(number) => (2, number.into()),
        };
        let slot = self.slot.map(PhysSlot::index);
        (what, self.rings, slot, self.period, self.verified, self.name).hash(state);
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.what, NAMES.iter().find(|(what, _)| *what == self.what)) {
            (What::Raw(select), _) => match self.name {
                Some(name) => f.write_str(name)?,
                None => write!(f, "r{select:x}")?,
            },
            (_, Some((_, names))) => f.write_str(names[0])?,
            (_, None) => f.write_str("event without a name")?,
        }
        match self.rings {
            EVNTSEL_USR => f.write_str(":u"),
            EVNTSEL_OS => f.write_str(":k"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_raw_events_modes_are_those_that_were_asked_for() {
        // The edge, inversion and counter mask belong to the event; the modes, enable and interrupt
        // do not.
        let event = Event::raw(0x0184_01c0 | EVNTSEL_RINGS | EVNTSEL_EN);
        assert_eq!(event.word(), Some(0x0184_01c0));
        assert_eq!(
            [event, event.user(), event.kernel()].map(|event| event.rings),
            [EVNTSEL_RINGS, EVNTSEL_USR, EVNTSEL_OS]
        );
    }

    #[test]
    fn events_are_keys() {
        let slot = PhysSlot::general(0).unwrap();
        let event = Event::INSTRUCTIONS;
        let all = [
            event,
            event.user(),
            event.kernel(),
            event.on(slot),
            event.every(1_000),
            event.unverified(),
            // This select word equals the number of the generic event in Linux.
            Event::raw(1),
            Event::TASK_CLOCK,
            Event::PAGE_FAULTS,
        ];
        let set: HashSet<Event> = all.into_iter().chain(all).collect();
        assert_eq!(set.len(), all.len());
        assert!(set.contains(&event.user()) && !set.contains(&Event::CYCLES));
    }
}
