// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Keeps perf's notes of an event's state.

/// `PERF_HES_STOPPED` of `linux/perf_event.h`: the event does not count.
const STOPPED: u32 = 1;
/// `PERF_HES_UPTODATE` of `linux/perf_event.h`: perf's books have all that the event has counted.
const UP_TO_DATE: u32 = 2;

/// Returns whether perf's books lack something that an event in this state (`hw.state`) has
/// counted.
pub fn is_unread(state: u32) -> bool {
    state & UP_TO_DATE == 0
}

/// Returns the state of an event that is stopped, and whose books were brought up to date if
/// `was_read`.
pub fn stopped(state: u32, was_read: bool) -> u32 {
    state | STOPPED | if was_read { UP_TO_DATE } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_books_of_a_stopped_event_are_brought_up_to_date_once() {
        assert!(is_unread(0) && is_unread(STOPPED));
        assert_eq!(stopped(0, false), STOPPED);
        let read = stopped(STOPPED, true);
        assert_eq!(read, STOPPED | UP_TO_DATE);
        assert!(!is_unread(read));
        assert_eq!(stopped(read, false), read, "they stay up to date");
    }
}
