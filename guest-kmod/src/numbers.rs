// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gives observers the numbers by which the hypervisor distinguishes them.
//!
//! One half of all numbers is for users, and the other half for the subjects for whom perf's page
//! is registered. After two billion numbers a half begins anew, and skips those that somebody has.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The kinds of observers that get numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A user with counters.
    Users,
    /// Subjects whose events perf counts in its own page.
    Perfs,
}

/// The bit that is set in perf's numbers.
const PERFS: u32 = 1 << 31;

/// Returns a number that nobody has. `given` says how many numbers of this half were given so far.
/// `has` returns whether somebody has a number; it is only called for numbers that may have been
/// given before.
pub fn new_number(given: &AtomicU64, whose: Whose, has: impl Fn(u32) -> bool) -> u32 {
    let half = match whose {
        Whose::Users => 0,
        Whose::Perfs => PERFS,
    };
    loop {
        let before = given.fetch_add(1, Relaxed);
        let number = (before as u32).wrapping_add(1) & !PERFS | half;
        // For the hypervisor 0 is a number like any other; here no observer has it.
        let is_free = before < PERFS.into() || !has(number);
        if number != 0 && is_free {
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(given: u64, whose: Whose, has: &[u32]) -> u32 {
        new_number(&AtomicU64::new(given), whose, |number| has.contains(&number))
    }

    #[test]
    fn each_half_has_numbers_of_its_own() {
        for (whose, first) in [(Whose::Users, 0), (Whose::Perfs, 1 << 31)] {
            let given = AtomicU64::new(0);
            let numbers = [(); 3].map(|()| new_number(&given, whose, |_| true));
            assert_eq!(numbers, [1, 2, 3].map(|number| first | number), "nobody can have them");
        }
    }

    #[test]
    fn numbers_that_repeat_are_those_that_nobody_has() {
        let round = 1 << 31;
        for whole in [round, 2 * round, 7 * round] {
            assert_eq!(after(whole, Whose::Users, &[]), 1);
            assert_eq!(after(whole, Whose::Users, &[1, 2, 4]), 3);
            assert_eq!(after(whole, Whose::Perfs, &[1, 0x8000_0001]), 0x8000_0002);
            // The last one of a half, and what follows.
            assert_eq!(after(whole - 2, Whose::Users, &[]), u32::MAX >> 1);
            assert_eq!(after(whole - 1, Whose::Users, &[]), 1, "0 is nobody's");
            assert_eq!(after(whole - 1, Whose::Perfs, &[]), 0x8000_0000);
        }
    }
}
