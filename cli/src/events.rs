// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Parses the events of a command line.

use std::ffi::OsStr;
use std::str::FromStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};
use perfctr::Event;

/// A list of events, separated by commas. Events between braces are a group: they are counted at
/// the same time or not at all. Other events may take turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventList(Vec<Vec<Event>>);

impl EventList {
    /// Returns the events. Events that are not known to be right on this CPU are refused later,
    /// unless `unverified` allows them.
    pub fn events(&self, unverified: bool) -> Vec<Event> {
        self.groups(unverified).concat()
    }

    /// Returns the groups of events. An event outside of all groups is a group of its own.
    pub fn groups(&self, unverified: bool) -> Vec<Vec<Event>> {
        let event = |event: &Event| if unverified { event.unverified() } else { *event };
        self.0.iter().map(|group| group.iter().map(event).collect()).collect()
    }
}

impl FromStr for EventList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut groups, mut rest) = (Vec::new(), text);
        loop {
            let behind = if let Some(group) = rest.strip_prefix('{') {
                let (group, behind) = group.split_once('}').ok_or("`{` without a `}`")?;
                groups.push(list(group)?);
                behind
            } else {
                let (alone, behind) = rest.split_at(rest.find(",{").unwrap_or(rest.len()));
                groups.extend(list(alone)?.into_iter().map(|event| vec![event]));
                behind
            };
            match behind.strip_prefix(',') {
                Some(next) => rest = next,
                None if behind.is_empty() => return Ok(Self(groups)),
                None => return Err(format!("`{behind}` behind a group, a comma expected")),
            }
        }
    }
}

/// Gives an event this period, unless it has one already (`/period=N/`).
pub fn every(event: Event, period: u64) -> Event {
    if event.period() == 0 { event.every(period) } else { event }
}

fn list(text: &str) -> Result<Vec<Event>, String> {
    Event::list(text).map_err(|error| error.to_string())
}

/// Parses an [`EventList`], and offers the named events when the option is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventParser {
    /// There may be groups.
    Grouped,
    /// There are none.
    Single,
}

impl TypedValueParser for EventParser {
    type Value = EventList;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<EventList, Error> {
        let parser = *self;
        let list = move |text: String| match parser {
            Self::Single if text.contains(['{', '}']) => {
                Err("groups are counted by `perfctr stat` only".to_owned())
            }
            _ => text.parse(),
        };
        StringValueParser::new().try_map(list).parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Event::named().map(|event| PossibleValue::new(event.to_string()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_between_slashes_separate_no_events() {
        let list = "cycles:u,cpu/event=0xc4,umask=1/u,branches".parse();
        let events = vec![Event::CYCLES.user(), Event::raw(0x1c4).user(), Event::BRANCHES];
        assert_eq!(list, Ok(EventList(events.into_iter().map(|event| vec![event]).collect())));
        assert!("cycles,".parse::<EventList>().is_err());
    }

    #[test]
    fn events_between_braces_are_a_group() {
        let [a, b, c] = [Event::CYCLES, Event::raw(0x1c4).user(), Event::BRANCHES];
        for (text, groups) in [
            ("{cycles,cpu/event=0xc4,umask=1/u},branches", vec![vec![a, b], vec![c]]),
            ("branches,{cycles},{branches,cycles}", vec![vec![c], vec![a], vec![c, a]]),
        ] {
            assert_eq!(text.parse(), Ok(EventList(groups)), "{text}");
        }
        for (text, expected) in [
            ("{cycles", "`{` without a `}`"),
            ("{cycles}branches", "`branches` behind a group, a comma expected"),
            ("{cycles},", "unknown event"),
            ("{}", "unknown event"),
            ("cycles}", "unknown event"),
            ("{{cycles}}", "unknown event"),
        ] {
            let error = text.parse::<EventList>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn events_are_verified_unless_asked_otherwise() {
        let list: EventList = "cycles:u,r1234".parse().unwrap();
        let event = Event::raw(0x1234);
        assert_eq!(list.events(false), [Event::CYCLES.user(), event]);
        assert_eq!(list.events(true), [Event::CYCLES.user().unverified(), event.unverified()]);
    }
}
