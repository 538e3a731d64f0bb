// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Keeps the account of one virtual CPU, for the host's administrator: the events that the vCPU has
//! executed itself, and those of the hypervisor meanwhile.

use core::hint::spin_loop;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use shared_abi::seq::Seq;

use crate::guest::Rings;
use crate::lease::Lease;

/// Two sums of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// What the vCPU has executed.
    pub executed: u64,
    /// What the hypervisor has executed while the vCPU was current.
    pub hypervisor: u64,
}

/// The account of one virtual CPU.
///
/// Only the physical CPU on which the vCPU is current writes to it, with interrupts disabled.
/// Anybody may read it. It is in memory of the hypervisor, which no guest can read. Memory that is
/// all zeros is an account without events.
#[derive(Debug, Default)]
pub struct Account {
    /// The sequence word, which is odd while the account is being written, so that a reader never
    /// sees half a change.
    seq: Seq,
    /// The number of the session to which the events belong, so that nobody has to clear accounts
    /// when a session begins.
    session: AtomicU64,
    executed: AtomicU64,
    hypervisor: AtomicU64,
}

impl Account {
    /// Adds events of a session. The events of an earlier session are discarded.
    pub(crate) fn add(&self, session: u64, events: Events) {
        let before = match self.session.load(Relaxed) == session {
            true => self.load(),
            false => Events::default(),
        };
        let mut writes = self.seq.writes();
        let _writing = self.seq.write(&mut writes);
        self.session.store(session, Relaxed);
        self.executed.store(before.executed.wrapping_add(events.executed), Relaxed);
        self.hypervisor.store(before.hypervisor.wrapping_add(events.hypervisor), Relaxed);
    }

    /// Returns the events of a session.
    pub(crate) fn events_of(&self, session: u64) -> Events {
        loop {
            let stamp = self.seq.stamp();
            let (of, events) = (self.session.load(Relaxed), self.load());
            if self.seq.is_valid(stamp) {
                return if of == session { events } else { Events::default() };
            }
            // The writer cannot be interrupted, and finishes after a few instructions.
            spin_loop();
        }
    }

    fn load(&self) -> Events {
        Events { executed: self.executed.load(Relaxed), hypervisor: self.hypervisor.load(Relaxed) }
    }
}

/// The state of accounting that all physical CPUs share.
#[derive(Debug, Default)]
pub(crate) struct Session {
    pub(crate) lease: Lease,
    /// The session's number, which is 0 before the first one.
    number: AtomicU64,
    evntsel: AtomicU64,
}

impl Session {
    /// Begins another session with this event.
    pub(crate) fn begin(&self, evntsel: u64) {
        self.evntsel.store(evntsel, Relaxed);
        // ATOMICS: a reader that sees this number also sees the event above.
        self.number.store(self.number().wrapping_add(1), Release);
    }

    pub(crate) fn number(&self) -> u64 {
        // ATOMICS: pairs with `begin`.
        self.number.load(Acquire)
    }

    pub(crate) fn evntsel(&self) -> u64 {
        self.evntsel.load(Relaxed)
    }
}

/// The state of accounting on one physical CPU.
#[derive(Debug)]
pub(crate) struct Accounting {
    /// The number of the session in which its counters count, or 0 while they do not.
    pub(crate) session: u64,
    /// What the hypervisor's counter held when it was last read.
    pub(crate) hypervisor: u64,
    /// The kind of guest that the guests' counter is programmed for.
    pub(crate) rings: Rings,
    /// Whether the counters are limited to guests and to their host.
    pub(crate) limited: bool,
}

impl Accounting {
    pub(crate) const NONE: Self =
        Self { session: 0, hypervisor: 0, rings: Rings::Folded, limited: false };
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn events_of_one_session_are_added_up() {
        let account = Account::default();
        assert_eq!(account.events_of(0), Events::default());
        for session in [1, 2] {
            account.add(session, Events { executed: 5, hypervisor: 1 << 40 });
            account.add(session, Events { executed: 7, hypervisor: 2 });
            let events = Events { executed: 12, hypervisor: (1 << 40) + 2 };
            assert_eq!(account.events_of(session), events);
            assert_eq!(account.events_of(session + 1), Events::default(), "one without events");
        }
    }

    #[test]
    fn a_reader_never_sees_half_a_change() {
        let (account, done) = (Account::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                (0..200_000).for_each(|_| account.add(3, Events { executed: 1, hypervisor: 1 }));
                done.store(true, Relaxed);
            });
            while !done.load(Relaxed) {
                let Events { executed, hypervisor } = account.events_of(3);
                assert_eq!(executed, hypervisor);
            }
        });
        assert_eq!(account.events_of(3), Events { executed: 200_000, hypervisor: 200_000 });
    }
}
