// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Parses the events of a command line.

use std::ffi::OsStr;
use std::str::FromStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};
use perfctr::{Event, ParseEventError};

/// A list of events, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventList(Vec<Event>);

impl EventList {
    /// Returns the events. Those that are not known to be right on this CPU are refused later,
    /// unless they are to be counted `unverified`.
    pub fn events(&self, unverified: bool) -> Vec<Event> {
        let event = |event: &Event| if unverified { event.unverified() } else { *event };
        self.0.iter().map(event).collect()
    }
}

impl FromStr for EventList {
    type Err = ParseEventError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Event::list(text).map(Self)
    }
}

/// Parses an [`EventList`], and offers the events that have a name when the option is completed.
#[derive(Clone, Copy, Debug)]
pub struct EventParser;

impl TypedValueParser for EventParser {
    type Value = EventList;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<EventList, Error> {
        let parser = StringValueParser::new().try_map(|text| text.parse::<EventList>());
        parser.parse_ref(command, argument, value)
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
        assert_eq!(list, Ok(EventList(events)));
        assert!("cycles,".parse::<EventList>().is_err());
    }

    #[test]
    fn events_are_verified_unless_asked_otherwise() {
        let list: EventList = "cycles:u,r1234".parse().unwrap();
        let event = Event::raw(0x1234);
        assert_eq!(list.events(false), [Event::CYCLES.user(), event]);
        assert_eq!(list.events(true), [Event::CYCLES.user().unverified(), event.unverified()]);
    }
}
