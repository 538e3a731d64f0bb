// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Users, each of whom has a page of every vCPU, and for how long they keep these pages.
//!
//! A user's pages exist from its first thread with counters on.  After its last one they are kept
//! for a while, because programs often start again soon, unless too many users do so.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::watch::UNWATCH_DELAY_MS;

/// More users than this without counters do not keep their pages.
const IDLE_USERS_MAX: u32 = 16;

/// How many counters a user has.
#[derive(Debug, Default)]
pub struct UsersCounters(AtomicU32);

impl UsersCounters {
    /// Whether the user has none.
    pub fn is_idle(&self) -> bool {
        // ATOMICS: who gives the user counters holds the kernel's lock of users, as this caller.
        self.0.load(Relaxed) == 0
    }
}

/// How many users have no counters.
#[derive(Debug, Default)]
pub struct IdleUsers(AtomicU32);

impl IdleUsers {
    /// None.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// A user comes, who gets counters next.  The kernel holds its lock of users.
    pub fn user_comes(&self) {
        // ATOMICS: as the counts of users are, the number is only looked at to choose a delay.
        self.0.fetch_add(1, Relaxed);
    }

    /// A user gets counters.  The kernel holds its lock of users.
    pub fn counters_begin(&self, counters: &UsersCounters) {
        if counters.0.fetch_add(1, Relaxed) == 0 {
            self.0.fetch_sub(1, Relaxed);
        }
    }

    /// A user has given counters up.  If these were its last ones, gives after how long its pages
    /// are to be taken back unless it has counters again.  Unit: ms.
    pub fn counters_end(&self, counters: &UsersCounters) -> Option<u32> {
        if counters.0.fetch_sub(1, Relaxed) != 1 {
            return None;
        }
        let idle = self.0.fetch_add(1, Relaxed).wrapping_add(1);
        Some(if idle > IDLE_USERS_MAX { 0 } else { UNWATCH_DELAY_MS })
    }

    /// A user's pages have been taken back, and it goes.  The kernel holds its lock of users.
    pub fn user_goes(&self) {
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
        idle.user_comes();
        for _ in 0..2 {
            assert!(counters.is_idle());
            idle.counters_begin(&counters);
            idle.counters_begin(&counters);
            assert_eq!(idle.counters_end(&counters), None);
            assert!(!counters.is_idle());
            assert_eq!(idle.counters_end(&counters), Some(UNWATCH_DELAY_MS));
        }
        assert!(counters.is_idle());
        idle.user_goes();
        assert_eq!(idle.0.load(Relaxed), 0);
    }

    #[test]
    fn pages_of_many_users_are_given_back_at_once() {
        let idle = IdleUsers::new();
        let users: Vec<_> = (0..IDLE_USERS_MAX + 2).map(|_| UsersCounters::default()).collect();
        for user in &users {
            idle.user_comes();
            idle.counters_begin(user);
        }
        let delays: Vec<_> = users.iter().map(|user| idle.counters_end(user)).collect();
        let (kept, more) = delays.split_at(IDLE_USERS_MAX as usize);
        assert!(kept.iter().all(|&delay| delay == Some(UNWATCH_DELAY_MS)));
        assert_eq!(more, [Some(0), Some(0)]);

        // One of them comes back, and one goes: then there is room again.
        idle.counters_begin(&users[3]);
        idle.user_goes();
        assert_eq!(idle.counters_end(&users[3]), Some(0), "one more than may keep their pages");
        idle.user_goes();
        idle.counters_begin(&users[4]);
        assert_eq!(idle.counters_end(&users[4]), Some(UNWATCH_DELAY_MS));
    }
}
