// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The calling thread's counters, and the numbers by which C names them.
//!
//! A thread has at most one session, so it is kept with the thread, and what C gets for a handle is
//! a number that is never used as an address. A number that the calling thread has not opened, or
//! has closed, is told from one that it has. Numbers are odd, so that no pointer to an object is
//! taken for one.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use perfctr::{Event, Provider, Session};
use shared_abi::limits::MAX_COUNTERS;

use crate::status::{Failure, Status};

/// The number of a handle. 0 is none.
pub type Number = usize;

/// A reading with room for as many counts as a thread can have.
pub type FullReading = perfctr::Reading<MAX_COUNTERS>;

/// A thread's counters.
#[derive(Debug)]
pub struct Open {
    number: Number,
    pub session: Session,
    events: Vec<Event>,
    names: Vec<CString>,
}

thread_local! {
    static OPEN: RefCell<Option<Open>> = const { RefCell::new(None) };
}

fn unknown() -> Failure {
    Failure::new(
        Status::Handle,
        "the calling thread has not opened this handle, or has closed it: a handle counts the \
         thread that has opened it, and only that thread can use it",
    )
}

fn busy() -> Failure {
    Failure::new(Status::Busy, "the body of a measurement may read, and change nothing")
}

/// Opens the calling thread's counters, and counts these events from 0.
pub fn open(list: &str, provider: Option<Provider>, unverified: bool) -> Result<Number, Failure> {
    let mut events = if list.is_empty() { Vec::new() } else { Event::list(list)? };
    if unverified {
        events = events.into_iter().map(Event::unverified).collect();
    }
    let names = events.iter().map(|event| CString::new(event.to_string()).unwrap_or_default());
    let names = names.collect();
    let mut session = match provider {
        Some(provider) => Session::open_with(provider)?,
        None => Session::open()?,
    };
    session.start(&events)?;
    let number = next();
    // In a forked child this drops the parent's session, which leaves the parent's counters alone.
    with_slot(|slot| *slot = Some(Open { number, session, events, names }))?;
    Ok(number)
}

/// Returns a number that no handle of this process has had.
fn next() -> Number {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(2, Ordering::Relaxed)
}

/// Closes these counters.
pub fn close(number: Number) -> Result<(), Failure> {
    with_slot(|slot| match slot.take_if(|open| open.number == number) {
        Some(_) => Ok(()),
        None => Err(unknown()),
    })?
}

/// Calls `f` with these counters.
#[inline(always)]
pub fn with<T>(number: Number, f: impl FnOnce(&Open) -> Result<T, Failure>) -> Result<T, Failure> {
    let found = OPEN.try_with(|slot| {
        let slot = slot.try_borrow().map_err(|_| busy())?;
        match &*slot {
            Some(open) if open.number == number => f(open),
            _ => Err(unknown()),
        }
    });
    // A thread that is ending has closed its counters.
    found.unwrap_or_else(|_| Err(unknown()))
}

/// Calls `f` with these counters, which it may change.
pub fn change(
    number: Number,
    f: impl FnOnce(&mut Session, &[Event]) -> Result<(), perfctr::Error>,
) -> Result<(), Failure> {
    with_slot(|slot| match slot {
        Some(open) if open.number == number => Ok(f(&mut open.session, &open.events)?),
        _ => Err(unknown()),
    })?
}

fn with_slot<T>(f: impl FnOnce(&mut Option<Open>) -> T) -> Result<T, Failure> {
    let found = OPEN.try_with(|slot| match slot.try_borrow_mut() {
        Ok(mut slot) => Ok(f(&mut slot)),
        Err(_) => Err(busy()),
    });
    found.unwrap_or_else(|_| Err(unknown()))
}

impl Open {
    /// Reads all counters.
    #[inline(always)]
    pub fn read(&self) -> Result<FullReading, Failure> {
        let mut reading = FullReading::default();
        let perfctr::Reading { tsc, retries, direct, .. } = self.read_into(&mut reading.counts)?;
        (reading.tsc, reading.retries, reading.direct) = (tsc, retries, direct);
        Ok(reading)
    }

    /// Reads all counters into the first elements of `counts`. The result says how, and its own
    /// list of counts is empty.
    #[inline(always)]
    pub fn read_into(
        &self,
        counts: &mut [u64; MAX_COUNTERS],
    ) -> Result<perfctr::Reading<0>, Failure> {
        Ok(self.session.read_into(self.used(counts))?)
    }

    /// Counts what the first closure does, without what is counted of the second, which does
    /// nothing. The result's clock is 0.
    pub fn measure(&self, body_and_nothing: [&mut dyn FnMut(); 2]) -> Result<FullReading, Failure> {
        let mut reading = FullReading::default();
        let perfctr::Counts { retries, direct, .. } =
            self.session.measure(body_and_nothing, self.used(&mut reading.counts))?;
        (reading.retries, reading.direct) = (retries, direct);
        Ok(reading)
    }

    #[inline(always)]
    fn used<'a>(&self, counts: &'a mut [u64; MAX_COUNTERS]) -> &'a mut [u64] {
        counts.get_mut(..self.events.len()).unwrap_or_default()
    }

    /// Returns the number of events.
    #[inline(always)]
    pub fn events(&self) -> u32 {
        self.events.len() as u32
    }

    /// Returns the name of an event, or null if there is none.
    pub fn name(&self, event: u32) -> *const c_char {
        self.names.get(event as usize).map_or(ptr::null(), |name| name.as_ptr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> Result<Number, Failure> {
        open("", Some(Provider::Tsc), false)
    }

    fn status<T>(result: Result<T, Failure>) -> Option<Status> {
        result.err().map(|failure| failure.status)
    }

    #[test]
    fn only_the_thread_that_has_opened_a_number_can_use_it() {
        let own = clock().unwrap();
        assert_eq!(status(clock()), Some(Status::Open));
        let elsewhere = std::thread::spawn(move || {
            let other = clock().unwrap();
            assert_ne!(own, other);
            (status(with(own, Open::read)), status(close(own)), status(with(other, Open::read)))
        });
        let foreign = Some(Status::Handle);
        assert_eq!(elsewhere.join().unwrap(), (foreign, foreign, None));
        assert_eq!(status(with(own, Open::read)), None);
        close(own).unwrap();
        for number in [own, 0, 2, usize::MAX] {
            assert_eq!(status(close(number)), foreign);
            assert_eq!(status(with(number, Open::read)), foreign);
            assert_eq!(status(change(number, |session, _| session.stop())), foreign);
        }
        let later = clock().unwrap();
        assert!(later != own && later % 2 == 1);
        close(later).unwrap();
    }

    #[test]
    fn a_body_may_read_and_change_nothing() {
        let own = clock().unwrap();
        let mut seen = Vec::new();
        let mut body = || {
            seen.push(status(with(own, Open::read)));
            seen.push(status(with(own, |open| open.measure([&mut || (), &mut || ()]))));
            seen.push(status(close(own)));
            seen.push(status(change(own, |session, events| session.start(events))));
        };
        with(own, |open| open.measure([&mut body, &mut || ()])).unwrap();
        let busy = Some(Status::Busy);
        assert_eq!(seen, [None, None, busy, busy]);
        close(own).unwrap();
    }

    #[test]
    fn events_that_nobody_counts_open_nothing() {
        let refused = open("instructions:u", Some(Provider::Tsc), false).unwrap_err();
        assert_eq!(refused.status, Status::NoCounters);
        assert_eq!(status(open("instructions:u,", None, false)), Some(Status::Event));
        close(clock().unwrap()).unwrap();
    }
}
