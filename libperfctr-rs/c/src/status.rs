// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What functions return, and the text about the last failure of each thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::ptr;

use perfctr::{Error, ParseEventError};

/// What a function returns. perfctr_counts_error() has a text about whatever is not
/// PERFCTR_STATUS_OK. Later versions may have further values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Status {
    /// It has done what was asked for.
    Ok = 0,
    /// An argument is a null pointer, a pointer that is not aligned, a text that is not UTF-8, or
    /// an unknown number.
    Argument = 1,
    /// The handle is not one that the calling thread has opened and not closed yet.
    Handle = 2,
    /// A text names no event.
    Event = 3,
    /// The events cannot be counted here, or not all at once.
    Unavailable = 4,
    /// There are no counters here, or the caller may not use them. The text has the answer of each
    /// provider.
    NoCounters = 5,
    /// The thread has counters already: a thread has at most one handle.
    Open = 6,
    /// The handle was opened before fork(), by the parent.
    Forked = 7,
    /// The counters could not be read: something has disturbed every attempt.
    Disturbed = 8,
    /// The domain was restored where it may not count, or where its events cannot be counted.
    Lost = 9,
    /// The body of a measurement has called a function that changes what is counted.
    Busy = 10,
    /// The kernel module speaks another version of the interface.
    Version = 11,
    /// The kernel refused for another reason, which the text says.
    Kernel = 12,
    /// A region was stopped that the thread has not started, or cannot be counted as it was asked
    /// for.
    Region = 13,
}

impl Status {
    /// Returns the value's name in C.
    pub fn name(number: i32) -> Option<&'static CStr> {
        /// The names, by the values.
        const NAMES: [&CStr; 14] = [
            c"PERFCTR_STATUS_OK",
            c"PERFCTR_STATUS_ARGUMENT",
            c"PERFCTR_STATUS_HANDLE",
            c"PERFCTR_STATUS_EVENT",
            c"PERFCTR_STATUS_UNAVAILABLE",
            c"PERFCTR_STATUS_NO_COUNTERS",
            c"PERFCTR_STATUS_OPEN",
            c"PERFCTR_STATUS_FORKED",
            c"PERFCTR_STATUS_DISTURBED",
            c"PERFCTR_STATUS_LOST",
            c"PERFCTR_STATUS_BUSY",
            c"PERFCTR_STATUS_VERSION",
            c"PERFCTR_STATUS_KERNEL",
            c"PERFCTR_STATUS_REGION",
        ];
        NAMES.get(usize::try_from(number).ok()?).copied()
    }
}

/// Why a function does not do what was asked for.
#[derive(Debug)]
pub struct Failure {
    /// What the function returns.
    pub status: Status,
    /// The text for people.
    pub text: String,
}

impl Failure {
    /// Makes a failure with a text of this crate's own.
    pub fn new(status: Status, text: &str) -> Self {
        Self { status, text: text.to_owned() }
    }

    /// Makes the failure of a call with a bad argument.
    pub fn argument(text: &str) -> Self {
        Self::new(Status::Argument, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::Refused(_) | Error::NoCounters { .. } => Status::NoCounters,
            Error::TooManyCounters { .. }
            | Error::EventNotAvailable { .. }
            | Error::Invalid(_)
            | Error::NoRings(_) => Status::Unavailable,
            Error::Version { .. } => Status::Version,
            Error::AlreadyOpen => Status::Open,
            Error::Forked => Status::Forked,
            Error::Region(_) => Status::Region,
            Error::Disturbed => Status::Disturbed,
            Error::NotLoaded(_) | Error::Faulted => Status::Lost,
            _ => Status::Kernel,
        };
        Self { status, text: error.to_string() }
    }
}

impl From<ParseEventError> for Failure {
    fn from(error: ParseEventError) -> Self {
        Self { status: Status::Event, text: error.to_string() }
    }
}

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Returns what the function returns to C, and keeps the text of a failure.
#[inline(always)]
pub fn answer(result: Result<(), Failure>) -> Status {
    match result {
        Ok(()) => Status::Ok,
        Err(failure) => failed(failure),
    }
}

#[cold]
fn failed(Failure { status, text }: Failure) -> Status {
    // A text is cut at a byte that would end it in C.
    let text = text.split('\0').next().unwrap_or_default();
    let text = CString::new(text).ok();
    // A thread that is ending keeps no text.
    let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| *last = text));
    status
}

/// Returns the text about the calling thread's last failure. It stays until the next one.
pub fn last() -> *const c_char {
    let text = |last: &RefCell<Option<CString>>| {
        let last = last.try_borrow().ok()?;
        Some(last.as_ref()?.as_ptr())
    };
    LAST.try_with(text).ok().flatten().unwrap_or(c"".as_ptr())
}

/// Returns a pointer to this text, or null if there is none.
pub fn text(text: Option<&'static CStr>) -> *const c_char {
    text.map_or(ptr::null(), CStr::as_ptr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::values;

    #[test]
    fn errors_keep_their_text_and_get_their_status() {
        let too_many = Error::TooManyCounters { asked: 9, available: 7 };
        for (error, status) in [
            (too_many, Status::Unavailable),
            (Error::AlreadyOpen, Status::Open),
            (Error::Forked, Status::Forked),
            (Error::Disturbed, Status::Disturbed),
            (Error::Faulted, Status::Lost),
            (Error::Version { found: 3, expected: 2 }, Status::Version),
            (Error::Malformed("page"), Status::Kernel),
            (Error::Region("a region".to_owned()), Status::Region),
        ] {
            let text = error.to_string();
            let failure = Failure::from(error);
            assert_eq!((failure.status, failure.text), (status, text));
        }
        let error = "cycels".parse::<perfctr::Event>().unwrap_err();
        let failure = Failure::from(error);
        assert_eq!(failure.status, Status::Event);
        assert!(failure.text.contains("did you mean `cycles`?"), "{}", failure.text);
    }

    #[test]
    fn each_status_has_its_name() {
        let values = values("PERFCTR_STATUS_");
        assert_eq!(values.len(), 14);
        for (name, number) in values {
            assert_eq!(Status::name(number as i32).unwrap().to_str(), Ok(name));
        }
        assert_eq!((Status::name(-1), Status::name(14)), (None, None));
    }
}
