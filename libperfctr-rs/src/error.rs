// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What can go wrong.

use std::fmt::{self, Write};
use std::io;

use shared_abi::ConfigError;
use shared_abi::limits::{READ_ATTEMPTS_MAX, RING_CALLERS_MAX, RING_PAGES_MAX};
use shared_abi::read::ReadError;

use crate::event::Event;
use crate::provider::refusal::Refusal;

/// Why there is no session or no reading.
///
/// `main` and `unwrap` print the `Debug` form.  It is the same text as the `Display` form, which
/// says what to do.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A provider gives no counters.
    #[error("no counters: {0}")]
    Refused(Refusal),
    /// Nobody gives counters.
    #[error("no counters for {event}{}", Listed(.tried))]
    NoCounters {
        /// The first event that was asked for.
        event: Event,
        /// What each provider has answered.
        tried: Vec<Refusal>,
    },
    /// The kernel module speaks another version of the interface.
    #[error("interface version {found} found, {expected} expected")]
    Version {
        /// The kernel module's major.
        found: u32,
        /// The library's major.
        expected: u32,
    },
    /// The calling thread has a session already.
    #[error("the thread has counters already")]
    AlreadyOpen,
    /// More counters were asked for than there are.
    #[error("{asked} counters asked for, {available} available")]
    TooManyCounters {
        /// How many were asked for.
        asked: usize,
        /// How many there are.
        available: usize,
    },
    /// No counter can count this event, or none that is still free.
    #[error("event {event} is not available: {reason}")]
    EventNotAvailable {
        /// The event.
        event: Event,
        /// Why.
        reason: &'static str,
    },
    /// Overflows cannot be recorded.
    #[error("no ring for records: {0}")]
    NoRings(&'static str),
    /// There are no such rings.
    #[error(
        "no room for {room} records of {callers} callers: a ring has at most {RING_PAGES_MAX} \
         pages, a record {RING_CALLERS_MAX} callers"
    )]
    RingTooLarge {
        /// Records that were asked for.
        room: usize,
        /// Callers of each.
        callers: usize,
    },
    /// The configuration breaks a rule of the interface.
    #[error("invalid configuration: {0}")]
    Invalid(String),
    /// The kernel could not load the thread's configuration when the thread was resumed.
    #[error("the counters could not be loaded: {0}")]
    NotLoaded(io::Error),
    /// This process was forked from the one that opened the session.
    #[error("the session belongs to the parent process")]
    Forked,
    /// Every attempt of a read was disturbed.
    #[error("no undisturbed read in {READ_ATTEMPTS_MAX} attempts")]
    Disturbed,
    /// The kernel published something that makes no sense.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// This is no host: neither of these files is here.
    #[error(
        "found neither {xen}, which Xen's domains have, nor {kvm}, which a KVM with the driver \
         inside has: expected one on a host"
    )]
    NoHost {
        /// Of Xen.
        xen: &'static str,
        /// Of KVM.
        kvm: &'static str,
    },
    /// The kernel refused a request.
    #[error("cannot {operation}: {error}{}", remedy(.error))]
    #[non_exhaustive]
    Kernel {
        /// What was asked for.
        operation: &'static str,
        /// What the kernel gave.  It is part of the message, and so not the source of this error.
        error: io::Error,
    },
}

/// What to do about an answer of the kernel, where that is known.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => {
            "; each event of each thread needs a descriptor, whose number `ulimit -n` limits"
        }
        _ => "",
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Answers, each on a line of its own.
struct Listed<'a>(&'a [Refusal]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|refusal| {
            f.write_char('\n')?;
            refusal.fmt(f)
        })
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Invalid(format!("{error:?}"))
    }
}

impl Error {
    /// The error number of the kernel's answer, if the kernel has refused.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Kernel { error, .. } | Self::NotLoaded(error) => error.raw_os_error(),
            Self::Refused(refusal) => Some(refusal.errno),
            _ => None,
        }
    }

    /// What [`EventNotAvailable`](Self::EventNotAvailable) says of this event.
    pub(crate) fn unavailable(event: Event, reason: &'static str) -> Self {
        Self::EventNotAvailable { event, reason }
    }

    /// The kernel refused this operation.
    pub(crate) fn kernel(operation: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::Kernel { operation, error }
    }

    /// The error of a direct read for which asking the kernel is of no use.
    pub(crate) fn from_read(error: ReadError) -> Self {
        match error {
            ReadError::NotLoaded(error) => Self::NotLoaded(io::Error::from_raw_os_error(-error)),
            ReadError::Disturbed => Self::Disturbed,
            ReadError::NotDirect | ReadError::Malformed => Self::Malformed("counter page"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::provider::refusal::Cause;
    use crate::provider::types::Provider;

    #[test]
    fn what_main_prints_is_the_message_with_its_remedies() {
        let tried =
            vec![Refusal { provider: Provider::Native, cause: Cause::NoPmu, errno: libc::ENOENT }];
        let error = Error::NoCounters { event: Event::BRANCHES.user(), tried };
        let said = format!("{error:?}");
        assert_eq!(said, error.to_string());
        assert!(said.contains("the kernel knows no PMU here; in a virtual machine"), "{said}");
    }

    #[test]
    fn an_answer_of_the_kernel_is_said_once() {
        let error = Error::kernel("open a perf event")(io::Error::from_raw_os_error(libc::EMFILE));
        let said = error.to_string();
        assert!(said.starts_with("cannot open a perf event: Too many open files"), "{said}");
        assert!(said.contains("ulimit -n") && error.source().is_none(), "{said}");
        assert_eq!(error.errno(), Some(libc::EMFILE));
        assert_eq!(Error::Disturbed.errno(), None);
    }
}
