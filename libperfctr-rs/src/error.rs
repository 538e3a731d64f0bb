// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The errors of the library.

use std::fmt::{self, Write};
use std::io;

use shared_abi::ConfigError;
use shared_abi::limits::{READ_ATTEMPTS_MAX, RING_CALLERS_MAX, RING_PAGES_MAX};
use shared_abi::read::ReadError;

use crate::event::Event;
use crate::provider::refusal::Refusal;

/// The reason why the library could not do what it was asked for.
///
/// `main` and `unwrap` print the `Debug` form. It is the same text as the `Display` form, so that
/// the user always reads the remedy.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A provider gives no counters.
    #[error("no counters: {0}")]
    Refused(Refusal),
    /// No provider gives counters.
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
        /// The kernel module's major version.
        found: u32,
        /// The library's major version.
        expected: u32,
    },
    /// The calling thread already has a session.
    #[error("the thread has counters already")]
    AlreadyOpen,
    /// More counters were asked for than there are.
    #[error("{asked} counters asked for, {available} available")]
    TooManyCounters {
        /// The number of counters that were asked for.
        asked: usize,
        /// The number of counters that there are.
        available: usize,
    },
    /// No counter can count this event, or those that can are taken.
    #[error("event {event} is not available: {reason}")]
    EventNotAvailable {
        /// The event.
        event: Event,
        /// The reason, in words for the user.
        reason: &'static str,
    },
    /// Overflows cannot be recorded.
    #[error("no ring for records: {0}")]
    NoRings(&'static str),
    /// A ring of the size that was asked for would be too large.
    #[error(
        "no room for {room} records of {callers} callers: a ring has at most {RING_PAGES_MAX} \
         pages, a record {RING_CALLERS_MAX} callers"
    )]
    RingTooLarge {
        /// The number of records that were asked for.
        room: usize,
        /// The number of callers of each record.
        callers: usize,
    },
    /// A region was stopped that was not started, or cannot be counted as it was asked for.
    #[error("{0}")]
    Region(String),
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
    /// The CPU does not let the program read counters, although the kernel says that it does. The
    /// domain was restored on a host without the driver.
    #[error("the host does not let this domain read counters any more")]
    Faulted,
    /// The kernel has published something that breaks the rules of the interface.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// This machine is not a host: it has neither of these files.
    #[error(
        "found neither {xen}, which Xen's domains have, nor {kvm}, which a KVM with the driver \
         inside has: expected one on a host"
    )]
    NoHost {
        /// The file that a host with Xen has.
        xen: &'static str,
        /// The file that a host with KVM has.
        kvm: &'static str,
    },
    /// The host's physical CPUs cannot be sampled.
    #[error("the host cannot be sampled: {0}")]
    NotSampled(&'static str),
    /// The host does not account events to its virtual CPUs.
    #[error("the host keeps no accounts: {0}")]
    NotAccounted(&'static str),
    /// The kernel refused a request.
    #[error("cannot {operation}: {error}{}", remedy(.error))]
    #[non_exhaustive]
    Kernel {
        /// What was asked for, in words for the user.
        operation: &'static str,
        /// The kernel's error. The message contains it, so it is not the source of this error.
        error: io::Error,
    },
}

/// Returns what the user can do about an error of the kernel, or an empty text if that is unknown.
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

/// Prints each answer on a line of its own.
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
    /// Returns the error number of the kernel's answer, if the kernel has refused.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Kernel { error, .. } | Self::NotLoaded(error) => error.raw_os_error(),
            Self::Refused(refusal) => Some(refusal.errno),
            _ => None,
        }
    }

    /// Makes the error which says that this event is not available.
    pub(crate) fn unavailable(event: Event, reason: &'static str) -> Self {
        Self::EventNotAvailable { event, reason }
    }

    /// Returns a function that makes the error which says that the kernel refused this operation.
    pub(crate) fn kernel(operation: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::Kernel { operation, error }
    }

    /// Makes the error of a direct read that failed in a way in which asking the kernel does not
    /// help.
    pub(crate) fn from_read(error: ReadError) -> Self {
        match error {
            ReadError::NotLoaded(error) => Self::NotLoaded(io::Error::from_raw_os_error(-error)),
            ReadError::Disturbed => Self::Disturbed,
            ReadError::Faulted => Self::Faulted,
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
        let message = format!("{error:?}");
        assert_eq!(message, error.to_string());
        assert!(
            message.contains("the kernel knows no PMU here; in a virtual machine"),
            "{message}"
        );
    }

    #[test]
    fn an_answer_of_the_kernel_is_said_once() {
        let error = Error::kernel("open a perf event")(io::Error::from_raw_os_error(libc::EMFILE));
        let message = error.to_string();
        assert!(message.starts_with("cannot open a perf event: Too many open files"), "{message}");
        assert!(message.contains("ulimit -n") && error.source().is_none(), "{message}");
        assert_eq!(error.errno(), Some(libc::EMFILE));
        assert_eq!(Error::Disturbed.errno(), None);
        let not_loaded = Error::NotLoaded(io::Error::from_raw_os_error(libc::EBUSY));
        assert_eq!(not_loaded.errno(), Some(libc::EBUSY));
        let read = ReadError::NotLoaded(-libc::ENODEV);
        assert_eq!(Error::from_read(read).errno(), Some(libc::ENODEV));
        let (provider, cause) = (Provider::Paravirt, Cause::ModulePolicy);
        let refusal = Refusal { provider, cause, errno: libc::EACCES };
        assert_eq!(Error::Refused(refusal).errno(), Some(libc::EACCES));
    }
}
