// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Events.

use std::fmt;

use shared_abi::PhysSlot;
use shared_abi::caps::{VENDOR_AMD, VENDOR_INTEL};
use shared_abi::config::{EVNTSEL_EN, EVNTSEL_OS, EVNTSEL_RINGS, EVNTSEL_USR};

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
    /// Whether it is counted only where it is known to be right.
    pub(crate) verified: bool,
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
    /// The word's ring and enable bits are the library's to set.  A session refuses an event that
    /// is not known to be right on its CPU, unless it is [`unverified`](Self::unverified).
    pub const fn raw(select: u64) -> Self {
        Self::new(What::Raw(select & !(EVNTSEL_RINGS | EVNTSEL_EN)))
    }

    const fn new(what: What) -> Self {
        Self { what, rings: EVNTSEL_RINGS, slot: None, period: 0, verified: true }
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
    /// Unit: events, up to [`PERIOD_EVENTS_MAX`]; longer ones are refused when the counters are
    /// started, and 0 asks for none.  Of periods below 1,000 several pass between two signals, so
    /// that the thread gets on, and more where the host allows fewer signals; counts stay exact.
    ///
    /// [`PERIOD_EVENTS_MAX`]: shared_abi::limits::PERIOD_EVENTS_MAX
    pub const fn every(self, period: u64) -> Self {
        Self { period, ..self }
    }

    /// Counts whatever the PMU takes the event for: nobody here knows whether this CPU has it.
    ///
    /// Known are Intel's architectural events that CPUID announces, and those of AMD's that every
    /// family since 0FH counts.  An event that the CPU does not have usually counts nothing,
    /// without a word; take the CPU's own manual, and compare with something known.
    pub const fn unverified(self) -> Self {
        Self { verified: false, ..self }
    }

    /// Whether it overflows.
    pub(crate) const fn samples(self) -> bool {
        self.period != 0
    }

    /// The fixed counter that counts this event (SDM volume 3, table 20-2).
    pub(crate) fn fixed(self) -> Option<PhysSlot> {
        match self.what {
            What::Instructions => PhysSlot::fixed(0),
            What::Cycles => PhysSlot::fixed(1),
            What::Branches | What::Raw(_) => None,
        }
    }

    /// The event's number and unit mask for a general counter (SDM volume 3, table 20-1; AMD's
    /// Processor Programming References, "core performance monitor counters").
    pub(crate) fn select(self, vendor: u32) -> Option<u64> {
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
            EVNTSEL_USR => f.write_str(":u")?,
            EVNTSEL_OS => f.write_str(":k")?,
            _ => {}
        }
        if self.verified { Ok(()) } else { f.write_str(" (unverified)") }
    }
}
