// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Shares one session of a thread among several users that count the same events, such as a library
//! and its caller.

use std::any::Any;
use std::cell::RefCell;
use std::rc::{Rc, Weak};

use crate::counting::{Counting, start};
use crate::error::Error;
use crate::event::Event;

thread_local! {
    /// The counting that this thread shares.
    static SHARED: RefCell<Option<Shared>> = const { RefCell::new(None) };
}

/// A [`Counting`] that continues while anybody uses it.
struct Shared {
    events: Vec<Event>,
    counting: Weak<dyn Any>,
}

impl Shared {
    fn new<const N: usize>(events: [Event; N], counting: &Rc<Counting<N>>) -> Self {
        let counting: Rc<dyn Any> = counting.clone();
        Self { events: events.to_vec(), counting: Rc::downgrade(&counting) }
    }

    /// Returns the counting of these events, in this order, if anybody in this process still uses
    /// it.
    fn of<const N: usize>(&self, events: [Event; N]) -> Option<Rc<Counting<N>>> {
        let counting = self.counting.upgrade().filter(|_| self.events == events)?;
        let counting: Rc<Counting<N>> = counting.downcast().ok()?;
        (!counting.session().forked()).then_some(counting)
    }
}

/// Starts to count these events of the calling thread. If the thread already shares a counting of
/// the same events, returns that one in place of a new one.
///
/// A thread can have only one session. A library that counts and its caller, which counts too, can
/// both use that session if both get it from this function, with the same events in the same order.
/// Counting stops when the last of them has dropped its [`Rc`].
///
/// The counts do not begin at 0 for each of them, so each subtracts an earlier reading from a later
/// one, or uses [`Counting::measure`]. If the body that one of them measures makes the other one
/// read counters, the count includes the instructions of this read.
///
/// ```no_run
/// use perfctr::{Event, shared};
///
/// # fn main() -> Result<(), perfctr::Error> {
/// let events = [Event::INSTRUCTIONS.user()];
/// let (library, caller) = (shared(events)?, shared(events)?);
/// let before = library.counts()?;
/// println!("{:?} of {:?}", (library.counts()? - before).counts, caller.counts()?.counts);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The errors of [`start`]. [`Error::AlreadyOpen`] says that the thread has a session that is not
/// shared, or one that counts other events.
pub fn shared<const N: usize>(events: [Event; N]) -> Result<Rc<Counting<N>>, Error> {
    SHARED.with_borrow_mut(|shared| {
        if let Some(counting) = shared.as_ref().and_then(|shared| shared.of(events)) {
            return Ok(counting);
        }
        let counting = Rc::new(start(events)?);
        *shared = Some(Shared::new(events, &counting));
        Ok(counting)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session;

    #[test]
    fn users_that_count_the_same_share_a_session_until_the_last_is_done() {
        let (library, caller) = (shared([]).unwrap(), shared([]).unwrap());
        assert!(Rc::ptr_eq(&library, &caller));
        assert!(caller.measure(|| assert!(library.read().unwrap().tsc > 0)).is_ok());
        drop(library);
        assert!(matches!(start([]), Err(Error::AlreadyOpen)), "the caller counts");
        assert!(matches!(shared([Event::CYCLES]), Err(Error::AlreadyOpen)), "it counts another");
        drop(caller);
        let own = start([]).unwrap();
        assert!(matches!(shared([]), Err(Error::AlreadyOpen)), "this one is not shared");
        drop(own);
        shared([]).unwrap();
    }

    #[test]
    fn other_events_or_another_order_are_not_the_same() {
        let [a, b] = [Event::CYCLES.user(), Event::BRANCHES.user()];
        // The session does not start to count, because this machine may have no counters.
        let counting = Rc::new(Counting::<2>::from_session(Session::open().unwrap()));
        let shared = Shared::new([a, b], &counting);
        assert!(shared.of([a, b]).is_some_and(|found| Rc::ptr_eq(&found, &counting)));
        assert!(shared.of([b, a]).is_none() && shared.of([a, Event::CYCLES]).is_none());
        assert!(shared.of([a]).is_none());
        drop(counting);
        assert!(shared.of([a, b]).is_none(), "nobody uses it any more");
    }

    #[test]
    fn a_forked_child_does_not_share_what_its_parent_has() {
        let mut session = Session::open().unwrap();
        session.give_away();
        let counting = Rc::new(Counting::<0>::from_session(session));
        assert!(Shared::new([], &counting).of([]).is_none());
        SHARED.set(Some(Shared::new([], &counting)));
        assert!(!Rc::ptr_eq(&shared([]).unwrap(), &counting));
    }
}
