// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Events.

use std::fmt;
use std::str::FromStr;

use shared_abi::PhysSlot;
use shared_abi::config::{EVNTSEL_EN, EVNTSEL_OS, EVNTSEL_RINGS, EVNTSEL_USR};
use shared_abi::events::Generic;

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
    Generic(Generic),
    Raw(u64),
}

/// What [`Event`]s are called, the name that they are printed with first.
const NAMES: [(What, &[&str]); 6] = [
    (What::Generic(Generic::Instructions), &["instructions"]),
    (What::Generic(Generic::Cycles), &["cycles", "cpu-cycles"]),
    (What::Generic(Generic::Branches), &["branches", "branch-instructions"]),
    (What::Generic(Generic::BranchMisses), &["branch-misses"]),
    (What::Generic(Generic::CacheReferences), &["cache-references"]),
    (What::Generic(Generic::CacheMisses), &["cache-misses"]),
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

    /// Every event that has a name, in both modes.
    pub fn named() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|&(what, _)| Self::new(what))
    }

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

    /// The fixed counter that counts this event.
    pub(crate) fn fixed(self) -> Option<PhysSlot> {
        match self.what {
            What::Generic(generic) => generic.fixed(),
            What::Raw(_) => None,
        }
    }

    /// The event's number and unit mask for a general counter.
    pub(crate) fn select(self, vendor: u32) -> Option<u64> {
        match self.what {
            What::Generic(generic) => generic.select(vendor),
            What::Raw(select) => Some(select),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.what, NAMES.iter().find(|(what, _)| *what == self.what)) {
            (What::Raw(select), _) => write!(f, "r{select:x}")?,
            (_, Some((_, names))) => f.write_str(names[0])?,
            (_, None) => f.write_str("event without a name")?,
        }
        match self.rings {
            EVNTSEL_USR => f.write_str(":u")?,
            EVNTSEL_OS => f.write_str(":k")?,
            _ => {}
        }
        if self.verified { Ok(()) } else { f.write_str(" (unverified)") }
    }
}

/// Why a text names no event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseEventError {
    /// There is no event of this name.
    #[error("{}", unknown(.0))]
    Name(String),
    /// What follows the colon is neither `u`, `k` nor both.
    #[error("unknown modifier `{0}`; known are u (user mode), k (kernel mode) and uk")]
    Modifier(String),
}

fn unknown(name: &str) -> String {
    let names = || NAMES.iter().flat_map(|(_, names)| names.iter().copied());
    let suggestion = match similar(name, names()) {
        Some(similar) => format!("; did you mean `{similar}`?"),
        None => String::new(),
    };
    let known: Vec<&str> = names().collect();
    format!(
        "unknown event `{name}`{suggestion}; known are {}, and r with a select word",
        known.join(", ")
    )
}

/// How alike two names are at least of which one is taken for the other; 1 means equal.
const SIMILAR_MIN: f64 = 0.8;

/// The name that is most like this one, if any is.
fn similar<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (name, plain) = (name.to_lowercase(), |c| if c == '_' { '-' } else { c });
    let name: String = name.trim().chars().map(plain).collect();
    let scored = names.map(|other| (strsim::jaro_winkler(&name, other), other));
    let best = scored.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(score, _)| *score >= SIMILAR_MIN).map(|(_, name)| name)
}

/// As perf's users write events: `instructions`, `cycles:u`, `r4f2e:k`.
///
/// ```
/// use perfctr::Event;
///
/// assert_eq!("cpu-cycles:u".parse(), Ok(Event::CYCLES.user()));
/// let error = "cycels".parse::<Event>().unwrap_err();
/// assert!(error.to_string().starts_with("unknown event `cycels`; did you mean `cycles`?"));
/// ```
impl FromStr for Event {
    type Err = ParseEventError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, modifier) = text.split_once(':').unwrap_or((text, "uk"));
        let raw = || u64::from_str_radix(name.strip_prefix('r')?, 16).ok().map(Self::raw);
        let named = NAMES.iter().find(|(_, names)| names.contains(&name));
        let event = named.map(|&(what, _)| Self::new(what)).or_else(raw);
        let event = event.ok_or_else(|| ParseEventError::Name(name.to_owned()))?;
        match modifier {
            "u" => Ok(event.user()),
            "k" => Ok(event.kernel()),
            "uk" | "ku" => Ok(event),
            other => Err(ParseEventError::Modifier(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_read() {
        let raw = Event::raw(0x0151);
        for event in Event::named().chain([raw]) {
            for event in [event, event.user(), event.kernel()] {
                assert_eq!(event.to_string().parse(), Ok(event));
            }
        }
        assert_eq!("branch-instructions:ku".parse(), Ok(Event::BRANCHES));
    }

    #[test]
    fn the_name_that_was_meant_is_suggested() {
        for (name, meant) in [
            ("instrutions", "instructions"),
            ("Instructions", "instructions"),
            ("instruction", "instructions"),
            ("cpu_cycles", "cpu-cycles"),
            ("branch-miss", "branch-misses"),
            ("brnaches", "branches"),
            ("cache-mises", "cache-misses"),
            ("cache-refs", "cache-references"),
        ] {
            let said = name.parse::<Event>().unwrap_err().to_string();
            assert!(said.contains(&format!("; did you mean `{meant}`?; known are")), "{said}");
        }
        for name in ["", "r", "tlb", "page-faults", "L1-dcache-loads"] {
            let said = name.parse::<Event>().unwrap_err().to_string();
            assert!(!said.contains("did you mean"), "{said}");
        }
    }

    #[test]
    fn what_is_no_event_is_refused_by_name() {
        for name in ["", "r", "rxyz", "Instructions", "instructions "] {
            assert_eq!(name.parse::<Event>(), Err(ParseEventError::Name(name.to_owned())));
        }
        for modifier in ["", "p", "uu", "u:k"] {
            let error = format!("cycles:{modifier}").parse::<Event>().unwrap_err();
            assert_eq!(error, ParseEventError::Modifier(modifier.to_owned()));
        }
    }
}
