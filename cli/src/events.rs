// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Events of a command line.

use std::str::FromStr;

use perfctr::{Event, ParseEventError};

/// Some, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventList(pub Vec<Event>);

impl FromStr for EventList {
    type Err = ParseEventError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut inside = false;
        // Commas between slashes are an event's own.
        let separates = |c: char| {
            inside ^= c == '/';
            c == ',' && !inside
        };
        text.split(separates).map(str::parse).collect::<Result<_, _>>().map(Self)
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
}
