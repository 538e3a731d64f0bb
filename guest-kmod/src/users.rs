// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides how long a user keeps its pages, one of every vCPU.
//!
//! A user's pages exist from its first thread with counters on. After its last one they are kept
//! for a while, because programs often start again soon, unless too many users do so.
//!
//! Anybody can make any number of users in a user namespace, so each user has an owner, such as the
//! user who has made the namespace, and each owner has a bounded number of users with pages.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use shared_abi::Errno;

use crate::shown::ROOT_UID;
use crate::watch::UNWATCH_DELAY_MS;

/// The largest number of users without counters who keep their pages.
const IDLE_USERS_MAX: u32 = 16;

/// The largest number of users with pages that one owner may have.
pub const USERS_OF_OWNER_MAX: usize = 64;

/// Checks whether an owner who has this many users with pages may have one more. Root may have any
/// number: each of its containers has a user of its own.
///
/// # Errors
///
/// `NOSPC` if the owner has too many.
pub const fn may_add(owner: u32, users: usize) -> Result<(), Errno> {
    if users < USERS_OF_OWNER_MAX || owner == ROOT_UID { Ok(()) } else { Err(Errno::NOSPC) }
}

/// Stands for the counters of a user who is being freed.
const FREED: u32 = u32::MAX;

/// How many counters a user has.
#[derive(Debug, Default)]
pub struct UsersCounters(AtomicU32);

impl UsersCounters {
    /// Lets a user who has no counters be freed, and returns whether it has none. From then on it
    /// gets none, until it [stays](Self::stays). The kernel holds its lock of users.
    pub fn may_free(&self) -> bool {
        // ATOMICS: pairs with `counters_returned`, so that everything that was done with the user
        // happens before the user is freed.
        self.0.compare_exchange(0, FREED, Acquire, Relaxed).is_ok()
    }

    /// Notes that the user is not freed after all. The kernel holds its lock of users.
    pub fn stays(&self) {
        self.0.store(0, Relaxed);
    }
}

/// How many users have no counters.
#[derive(Debug, Default)]
pub struct IdleUsers(AtomicU32);

impl IdleUsers {
    /// Starts with no users.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Notes that a user was made, who has no counters yet. The kernel holds its lock of users.
    pub fn user_made(&self) {
        // ATOMICS: the number only chooses a delay, so no other memory depends on its order.
        self.0.fetch_add(1, Relaxed);
    }

    /// Gives counters to a user, and returns whether the user gets them: one who is being freed
    /// does not. The caller needs no lock, so that threads wait for nobody when they get counters.
    pub fn give_counters(&self, counters: &UsersCounters) -> bool {
        let more = |counters: u32| counters.checked_add(1).filter(|&more| more != FREED);
        let given = counters.0.fetch_update(Relaxed, Relaxed, more);
        if given == Ok(0) {
            self.0.fetch_sub(1, Relaxed);
        }
        given.is_ok()
    }

    /// Notes that a user has returned counters. If it has none any more, returns the time after
    /// which its pages have to be taken back unless it has counters again, unit: ms.
    pub fn counters_returned(&self, counters: &UsersCounters) -> Option<u32> {
        // ATOMICS: pairs with `may_free`.
        if counters.0.fetch_sub(1, Release) != 1 {
            return None;
        }
        let idle = self.0.fetch_add(1, Relaxed).wrapping_add(1);
        Some(if idle > IDLE_USERS_MAX { 0 } else { UNWATCH_DELAY_MS })
    }

    /// Notes that a user was freed. The kernel holds its lock of users.
    pub fn user_freed(&self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn only_the_last_counters_of_a_user_end_its_pages() {
        let (idle, counters) = (IdleUsers::new(), UsersCounters::default());
        idle.user_made();
        for _ in 0..2 {
            assert!(idle.give_counters(&counters) && idle.give_counters(&counters));
            assert_eq!(idle.0.load(Relaxed), 0);
            assert_eq!(idle.counters_returned(&counters), None);
            assert!(!counters.may_free());
            assert_eq!(idle.counters_returned(&counters), Some(UNWATCH_DELAY_MS));
        }
        assert!(counters.may_free());
        idle.user_freed();
        assert_eq!(idle.0.load(Relaxed), 0);
    }

    #[test]
    fn a_user_who_is_being_freed_gets_no_counters_until_it_stays() {
        let (idle, counters) = (IdleUsers::new(), UsersCounters::default());
        idle.user_made();
        assert!(counters.may_free());
        assert!(!idle.give_counters(&counters));
        assert!(!counters.may_free(), "it is being freed already");
        counters.stays();
        assert!(idle.give_counters(&counters) && !counters.may_free());
        assert_eq!(idle.counters_returned(&counters), Some(UNWATCH_DELAY_MS));
    }

    #[test]
    fn a_number_of_counters_never_looks_like_a_user_who_is_being_freed() {
        let (idle, counters) = (IdleUsers::new(), UsersCounters(AtomicU32::new(FREED - 1)));
        assert!(!idle.give_counters(&counters));
        assert_eq!(counters.0.load(Relaxed), FREED - 1);
    }

    #[test]
    fn an_owner_has_a_bounded_number_of_users() {
        assert_eq!(may_add(1001, USERS_OF_OWNER_MAX - 1), Ok(()));
        assert_eq!(may_add(1001, USERS_OF_OWNER_MAX), Err(Errno::NOSPC));
        assert_eq!(may_add(ROOT_UID, USERS_OF_OWNER_MAX), Ok(()));
    }

    #[test]
    fn pages_of_many_users_are_given_back_at_once() {
        let idle = IdleUsers::new();
        let users: Vec<_> = (0..IDLE_USERS_MAX + 2).map(|_| UsersCounters::default()).collect();
        for user in &users {
            idle.user_made();
            assert!(idle.give_counters(user));
        }
        let delays: Vec<_> = users.iter().map(|user| idle.counters_returned(user)).collect();
        let (kept, more) = delays.split_at(IDLE_USERS_MAX as usize);
        assert!(kept.iter().all(|&delay| delay == Some(UNWATCH_DELAY_MS)));
        assert_eq!(more, [Some(0), Some(0)]);

        // One of them comes back, and one goes: then there is room again.
        assert!(idle.give_counters(&users[3]));
        idle.user_freed();
        assert_eq!(
            idle.counters_returned(&users[3]),
            Some(0),
            "one more than may keep their pages"
        );
        idle.user_freed();
        assert!(idle.give_counters(&users[4]));
        assert_eq!(idle.counters_returned(&users[4]), Some(UNWATCH_DELAY_MS));
    }
}
