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

use crate::refcount::increment_unless_zero;
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

/// How many counters a user has.
#[derive(Debug, Default)]
pub struct UsersCounters(AtomicU32);

impl UsersCounters {
    /// Returns whether the user has no counters. The kernel holds its lock of users, without which
    /// nobody gives a user the first ones.
    pub fn is_idle(&self) -> bool {
        // ATOMICS: pairs with `counters_returned`, so that everything that was done with the user
        // happens before the user is freed.
        self.0.load(Acquire) == 0
    }

    /// Gives further counters to a user who already has some, without the kernel's lock of users.
    /// Returns whether the user had any: a user without counters may be about to be freed.
    pub fn give_more(&self) -> bool {
        increment_unless_zero(&self.0)
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

    /// Notes that a user was given counters. The kernel holds its lock of users.
    pub fn counters_given(&self, counters: &UsersCounters) {
        if counters.0.fetch_add(1, Relaxed) == 0 {
            self.0.fetch_sub(1, Relaxed);
        }
    }

    /// Notes that a user has returned counters. If it has none any more, returns the time after
    /// which its pages have to be taken back unless it has counters again, unit: ms.
    pub fn counters_returned(&self, counters: &UsersCounters) -> Option<u32> {
        // ATOMICS: pairs with `is_idle`.
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
            assert!(counters.is_idle());
            idle.counters_given(&counters);
            idle.counters_given(&counters);
            assert_eq!(idle.counters_returned(&counters), None);
            assert!(!counters.is_idle());
            assert_eq!(idle.counters_returned(&counters), Some(UNWATCH_DELAY_MS));
        }
        assert!(counters.is_idle());
        idle.user_freed();
        assert_eq!(idle.0.load(Relaxed), 0);
    }

    #[test]
    fn a_user_without_counters_gets_none_without_the_lock() {
        let (idle, counters) = (IdleUsers::new(), UsersCounters::default());
        idle.user_made();
        assert!(!counters.give_more());
        assert!(counters.is_idle());
        idle.counters_given(&counters);
        assert!(counters.give_more());
        assert_eq!(idle.counters_returned(&counters), None);
        assert!(idle.counters_returned(&counters).is_some() && counters.is_idle());
        assert!(!counters.give_more());
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
            idle.counters_given(user);
        }
        let delays: Vec<_> = users.iter().map(|user| idle.counters_returned(user)).collect();
        let (kept, more) = delays.split_at(IDLE_USERS_MAX as usize);
        assert!(kept.iter().all(|&delay| delay == Some(UNWATCH_DELAY_MS)));
        assert_eq!(more, [Some(0), Some(0)]);

        // One of them comes back, and one goes: then there is room again.
        idle.counters_given(&users[3]);
        idle.user_freed();
        assert_eq!(
            idle.counters_returned(&users[3]),
            Some(0),
            "one more than may keep their pages"
        );
        idle.user_freed();
        idle.counters_given(&users[4]);
        assert_eq!(idle.counters_returned(&users[4]), Some(UNWATCH_DELAY_MS));
    }
}
