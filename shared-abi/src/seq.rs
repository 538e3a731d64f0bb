// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The sequence protocol of both pages.
//!
//! A page has one writer at a time and any number of readers, which may only map it read-only. The
//! sequence word is odd while the page is being written. A reader takes a [`stamp`], reads its
//! values with relaxed loads, and asks whether the stamp [is valid]. If it is not, the values may
//! be of different moments, and the reader must discard them.
//!
//! Readers use relaxed loads and `fence(Acquire)` because any stronger load is not guaranteed to
//! work on read-only memory (documentation of `core::sync::atomic`).
//!
//! [`stamp`]: Seq::stamp
//! [is valid]: Seq::is_valid

use crate::sync::{AtomicU64, Ordering, fence, sealed};

/// The sequence word of a page.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Seq(AtomicU64);

impl sealed::Shared for Seq {}

/// The value of a sequence word when a read began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u64);

impl Stamp {
    /// The stamp of a read in which a counter could not be read. No page's sequence word ever
    /// becomes this number, which would take 2^62 writes.
    const NOT_READ: u64 = 1 << 63;

    /// Notes that a counter could not be read: the stamp is never valid from now on.
    #[inline(always)]
    pub fn not_read(&mut self) {
        self.0 = Self::NOT_READ;
    }

    /// Returns the stamp for an instruction that may fault. If it faults, the code that handles the
    /// fault sets all bits of the stamp, as [`not_read`](Self::not_read) does.
    #[inline(always)]
    pub fn word(&mut self) -> &mut u64 {
        &mut self.0
    }

    /// Returns whether a [change](Seq::change) comes from a read in which a counter could not be
    /// read.
    #[inline(always)]
    pub const fn was_not_read(change: u64) -> bool {
        change & Self::NOT_READ != 0
    }
}

impl Seq {
    /// Starts a read, and returns the stamp to check at its end.
    #[inline(always)]
    pub fn stamp(&self) -> Stamp {
        let stamp = Stamp(self.0.load(Ordering::Relaxed));
        // ATOMICS: pairs with the release fence of `write`, so that data loaded below is not older
        // than the stamp.
        fence(Ordering::Acquire);
        stamp
    }

    /// Returns whether no write was under way at the [`stamp`](Self::stamp) and none has begun
    /// since then. Then all values that were loaded in between are of one moment.
    ///
    /// The check is one comparison at the end, not an early exit at an odd stamp, so that a failed
    /// attempt always costs the same number of instructions.
    #[inline(always)]
    pub fn is_valid(&self, stamp: Stamp) -> bool {
        self.change(stamp, |word| word.load(Ordering::Relaxed)) == 0
    }

    /// Returns 0 if the stamp [is valid](Self::is_valid), and another number if it is not. The
    /// function `load` loads the word.
    #[inline(always)]
    pub fn change(&self, stamp: Stamp, load: impl FnOnce(&AtomicU64) -> u64) -> u64 {
        // ATOMICS: data above is loaded before the sequence word is loaded again.
        fence(Ordering::Acquire);
        load(&self.0) ^ (stamp.0 & !1)
    }

    /// Returns how many writes have been made to the page.
    ///
    /// A writer keeps this number itself. It reads the number here only if it takes over the page
    /// of a writer that is gone.
    pub fn writes(&self) -> u64 {
        self.0.load(Ordering::Relaxed).div_ceil(2)
    }

    /// Starts a write, which ends when the guard is dropped. The caller must be the only writer.
    ///
    /// `writes` is the writer's own count of writes to this page: a writer never reads back a page
    /// that somebody else can write.
    #[inline(always)]
    pub fn write(&self, writes: &mut u64) -> WriteGuard<'_> {
        *writes = writes.wrapping_add(1);
        let next = writes.wrapping_mul(2);
        let odd = next.wrapping_sub(1);
        self.0.store(odd, Ordering::Relaxed);
        // ATOMICS: pairs with the acquire fences of the reader: a reader that sees data stored
        // below sees the odd word when it loads the word again.
        fence(Ordering::Release);
        WriteGuard { seq: self, next }
    }
}

/// A write that has begun. Dropping it ends the write.
#[derive(Debug)]
pub struct WriteGuard<'a> {
    seq: &'a Seq,
    next: u64,
}

impl Drop for WriteGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // ATOMICS: a reader that sees the even word also sees the data stored above.
        self.seq.0.store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_page_is_consistent() {
        let seq = Seq::default();
        assert!(seq.is_valid(seq.stamp()));
    }

    #[test]
    fn a_read_without_a_counter_is_never_valid_and_told_apart() {
        let seq = Seq::default();
        let writes = &mut 0;
        for _ in 0..2 {
            let mut stamps = [seq.stamp(); 3];
            stamps[0].not_read();
            *stamps[1].word() = u64::MAX;
            drop(seq.write(writes));
            let changes =
                stamps.map(|stamp| seq.change(stamp, |word| word.load(Ordering::Relaxed)));
            assert!(changes.iter().all(|change| *change != 0));
            assert_eq!(changes.map(Stamp::was_not_read), [true, true, false]);
        }
    }

    #[test]
    fn another_writer_continues_the_count_of_writes() {
        let seq = Seq::default();
        drop(seq.write(&mut 0));
        drop(seq.write(&mut 1));
        let before = seq.stamp();
        let mut writes = seq.writes();
        assert_eq!(writes, 2);
        drop(seq.write(&mut writes));
        assert!(!seq.is_valid(before));
        assert_eq!(seq.writes(), 3);
    }

    #[test]
    fn a_write_invalidates_stamps_before_and_during_it() {
        let seq = Seq::default();
        let before = seq.stamp();
        let guard = seq.write(&mut 0);
        let during = seq.stamp();
        assert!(!seq.is_valid(before));
        assert!(!seq.is_valid(during), "an odd stamp is never valid, even if unchanged");
        drop(guard);
        assert!(!seq.is_valid(before));
        assert!(!seq.is_valid(during));
        assert!(seq.is_valid(seq.stamp()));
    }
}
