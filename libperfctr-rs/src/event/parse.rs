// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Parses events as perf's users write them.

use std::str::FromStr;

#[cfg(feature = "pfm")]
use super::pfm::Missing;
use super::{Event, NAMES};

/// Why a text names no event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseEventError {
    /// There is no event of this name.
    #[error("{}", unknown(.0))]
    Name(String),
    /// What follows the colon is neither `u`, `k` nor both.
    #[error("unknown modifier `{0}`; known are u (user mode), k (kernel mode) and uk")]
    Modifier(String),
    /// A term between the slashes is not valid.
    #[error(
        "unknown term `{0}`; known are event=, umask=, cmask=, inv, edge and config= of cpu, and \
         period="
    )]
    Term(String),
    /// libpfm4 knows the event, but a counter alone cannot count it.
    #[error("event `{name}`: {reason}")]
    Encoding {
        /// The event.
        name: String,
        /// The reason why a counter alone cannot count it.
        reason: String,
    },
}

fn unknown(name: &str) -> String {
    let own = || NAMES.iter().flat_map(|(_, names)| names.iter().map(|&name| name.to_owned()));
    let suggestion = match similar(name, own().chain(of_libpfm())) {
        Some(similar) => format!("; did you mean `{similar}`?"),
        None => String::new(),
    };
    let known: Vec<String> = own().collect();
    format!(
        "unknown event `{name}`{suggestion}; known are {}, {}and r with a select word",
        known.join(", "),
        if cfg!(feature = "pfm") { "this CPU's in libpfm4 if that is installed, " } else { "" }
    )
}

/// Returns the names of this CPU's own events.
fn of_libpfm() -> Vec<String> {
    #[cfg(feature = "pfm")]
    return super::pfm::names();
    #[cfg(not(feature = "pfm"))]
    Vec::new()
}

/// The least similarity at which a known name is suggested for an unknown one; 1 means equal.
const SIMILAR_MIN: f64 = 0.8;

/// Normalises a name: it removes differences in writing that are easily made.
fn plain(name: &str) -> String {
    name.trim().to_lowercase().replace('_', "-")
}

/// Returns the name that is most similar to this one, if any is similar enough.
fn similar(name: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let meant = plain(name);
    let scored = names.map(|other| (strsim::jaro_winkler(&meant, &plain(&other)), other));
    let best = scored.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(score, _)| *score >= SIMILAR_MIN).map(|(_, name)| name)
}

/// Parses an event as perf's users write it: `instructions`, `cycles:u`, `r4f2e:k`,
/// `cpu/event=0xc4,umask=1/u`, `branches/period=100003/u`. With the feature `pfm` this CPU's own
/// events can be named as in libpfm4, too: `INST_RETIRED:ANY_P:u`.
///
/// ```
/// use perfctr::Event;
///
/// assert_eq!("cpu-cycles:u".parse(), Ok(Event::CYCLES.user()));
/// assert_eq!("cpu/event=0xc4,umask=0x1/k".parse(), Ok(Event::raw(0x1c4).kernel()));
/// let error = "cycels".parse::<Event>().unwrap_err();
/// assert!(error.to_string().starts_with("unknown event `cycels`; did you mean `cycles`?"));
/// ```
impl FromStr for Event {
    type Err = ParseEventError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some((name, rest)) = text.split_once('/') {
            let (terms, modifier) =
                rest.rsplit_once('/').ok_or_else(|| ParseEventError::Term(rest.to_owned()))?;
            let modifier = modifier.strip_prefix(':').unwrap_or(modifier);
            return in_modes(
                with_terms(name, terms)?,
                if modifier.is_empty() { "uk" } else { modifier },
            );
        }
        let (name, modifier) = text.split_once(':').unwrap_or((text, "uk"));
        match own(name) {
            Some(event) => in_modes(event, modifier),
            None => other(text),
        }
    }
}

impl Event {
    /// Parses a list of events with commas between. Commas between slashes are an event's own.
    ///
    /// ```
    /// use perfctr::Event;
    ///
    /// let events = Event::list("cycles:u,cpu/event=0xc4,umask=1/u");
    /// assert_eq!(events, Ok(vec![Event::CYCLES.user(), Event::raw(0x1c4).user()]));
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the first text that names no event.
    pub fn list(text: &str) -> Result<Vec<Self>, ParseEventError> {
        let mut inside = false;
        let separates = |c: char| {
            inside ^= c == '/';
            c == ',' && !inside
        };
        text.split(separates).map(str::parse).collect()
    }
}

/// Parses an event that has a name in this library, or is given by its select word.
fn own(name: &str) -> Option<Event> {
    let raw = || u64::from_str_radix(name.strip_prefix('r')?, 16).ok().map(Event::raw);
    let named = NAMES.iter().find(|(_, names)| names.contains(&name));
    named.map(|&(what, _)| Event::new(what)).or_else(raw)
}

/// Parses an event that has no name in this library.
fn other(text: &str) -> Result<Event, ParseEventError> {
    let (name, modifier) = match text.rsplit_once(':') {
        Some((name, modifier @ ("u" | "k" | "uk" | "ku"))) => (name, modifier),
        _ => (text, "uk"),
    };
    in_modes(of_this_cpu(name)?, modifier)
}

/// Parses an event that libpfm4 may know.
#[cfg(feature = "pfm")]
fn of_this_cpu(name: &str) -> Result<Event, ParseEventError> {
    // libpfm4 also knows perf's own event names, in upper and lower case, but gives perf's numbers
    // for them, which are not encodings of the hardware.
    let plain = plain(name);
    let named = NAMES.iter().any(|(_, names)| names.contains(&plain.as_str()));
    super::pfm::find(name).map_err(|error| match error {
        Missing::Encoding(reason) if !named => {
            ParseEventError::Encoding { name: name.to_owned(), reason }
        }
        Missing::Encoding(_) | Missing::Name => ParseEventError::Name(name.to_owned()),
    })
}

#[cfg(not(feature = "pfm"))]
fn of_this_cpu(name: &str) -> Result<Event, ParseEventError> {
    Err(ParseEventError::Name(name.to_owned()))
}

fn in_modes(event: Event, modifier: &str) -> Result<Event, ParseEventError> {
    match modifier {
        "u" => Ok(event.user()),
        "k" => Ok(event.kernel()),
        "uk" | "ku" => Ok(event),
        other => Err(ParseEventError::Modifier(other.to_owned())),
    }
}

/// Parses `cpu` with the terms that select its event, or another event with a period.
fn with_terms(name: &str, terms: &str) -> Result<Event, ParseEventError> {
    let (mut select, mut period) = (0, 0);
    for term in terms.split(',') {
        let (key, value) = term.split_once('=').unwrap_or((term, "1"));
        let value = number(value).ok_or_else(|| ParseEventError::Term(term.to_owned()))?;
        match place_of(key) {
            _ if key == "period" => period = value,
            Some((shift, bits)) if name == "cpu" && value >> bits == 0 => select |= value << shift,
            None if name == "cpu" && key == "config" => select |= value,
            // AMD's event numbers have 12 bits, of which the upper ones are bits 35:32.
            Some((0, _)) if name == "cpu" && value >> 12 == 0 => {
                select |= value & 0xff | (value >> 8) << 32;
            }
            _ => return Err(ParseEventError::Term(term.to_owned())),
        }
    }
    let event = match name {
        "cpu" => Event::raw(select),
        _ => own(name).ok_or_else(|| ParseEventError::Name(name.to_owned()))?,
    };
    Ok(event.every(period))
}

/// Returns a term's lowest bit in an event select and its number of bits (SDM volume 3, figure
/// 20-1).
fn place_of(key: &str) -> Option<(u32, u32)> {
    Some(match key {
        "event" => (0, 8),
        "umask" => (8, 8),
        "edge" => (18, 1),
        "inv" => (23, 1),
        "cmask" => (24, 8),
        _ => return None,
    })
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
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
            ("ref_cycles", "ref-cycles"),
        ] {
            let message = name.parse::<Event>().unwrap_err().to_string();
            assert!(
                message.contains(&format!("; did you mean `{meant}`?; known are")),
                "{message}"
            );
        }
        for name in ["", "r", "wattage", "emulation-faults", "L1-dcache-loads"] {
            let said = name.parse::<Event>().unwrap_err().to_string();
            assert!(!said.contains("did you mean"), "{said}");
        }
    }

    #[test]
    fn what_is_no_event_is_refused_by_name() {
        for name in ["", "r", "rxyz", "Instructions", "instructions ", "nothing"] {
            assert_eq!(name.parse::<Event>(), Err(ParseEventError::Name(name.to_owned())));
        }
        assert_eq!("nothing:u".parse::<Event>(), Err(ParseEventError::Name("nothing".to_owned())));
        for modifier in ["", "p", "uu", "u:k"] {
            let error = format!("cycles:{modifier}").parse::<Event>().unwrap_err();
            assert_eq!(error, ParseEventError::Modifier(modifier.to_owned()));
        }
    }

    #[test]
    fn terms_are_those_of_perf() {
        for (text, event) in [
            ("cpu/event=0xc4,umask=1/u", Event::raw(0x1c4).user()),
            ("cpu/event=0xc4,cmask=2,inv,edge=1/", Event::raw(0x0284_00c4)),
            ("cpu/config=0x4f2e/k", Event::raw(0x4f2e).kernel()),
            ("cpu/event=0x1c0/:u", Event::raw(0x1_0000_00c0).user()),
            ("branches/period=1009/u", Event::BRANCHES.user().every(1_009)),
        ] {
            assert_eq!(text.parse(), Ok(event), "{text}");
        }
        for (text, term) in [
            ("cpu/event=0x1000/", "event=0x1000"),
            ("cpu/umask=256/", "umask=256"),
            ("cpu/pc=1/", "pc=1"),
            ("cycles/umask=1/u", "umask=1"),
            ("cpu/event=0xc0", "event=0xc0"),
        ] {
            let error = text.parse::<Event>();
            assert_eq!(error, Err(ParseEventError::Term(term.to_owned())), "{text}");
        }
        assert!(matches!("cpu/event=1/p".parse::<Event>(), Err(ParseEventError::Modifier(_))));
        assert!(matches!("cycels/period=7/".parse::<Event>(), Err(ParseEventError::Name(_))));
    }
}
