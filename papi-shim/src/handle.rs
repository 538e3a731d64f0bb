// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Handles, which C holds as pointers to opaque structures.
//!
//! They are not real pointers: a handle consists of a place in a table and the number of uses of
//! that place. So any value that C passes can be checked, and a closed handle never names what is
//! opened at its place later. Looking one up takes no lock, since overflow handlers do it.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use shared_abi::Errno;

/// The bits of a handle: the place, the number of its use, and the kind of handle, which makes it
/// an address that no x86 processor accepts.
const PLACE_BITS: u32 = 20;
const USE_BITS: u32 = 28;
const PLACES: usize = 1 << PLACE_BITS;
const LAST_USE: usize = (1 << USE_BITS) - 1;

/// The number of places in a block. Memory for places is allocated in blocks.
const BLOCK: usize = 1 << 10;

/// The value at a place without a handle: the bits of the only place that is never used.
const CLOSED: usize = usize::MAX;

/// The content that handles name.
pub(crate) trait Held: Sized + 'static {
    /// The table of all handles of its kind.
    const TABLE: &Table<Self>;
}

/// A handle, such as `struct vperfctr *`.
#[repr(transparent)]
#[derive(Debug)]
pub struct Handle<T> {
    bits: usize,
    kind: PhantomData<fn() -> T>,
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.bits == other.bits
    }
}

/// The content of all handles of a kind.
pub(crate) struct Table<T: 'static> {
    kind: u16,
    blocks: [AtomicPtr<[Place<T>; BLOCK]>; PLACES / BLOCK],
    free: Mutex<Free>,
}

struct Place<T> {
    /// The bits of the handle that is open here.
    open: AtomicUsize,
    content: UnsafeCell<MaybeUninit<T>>,
}

/// The handles to be used next.
struct Free {
    /// Places that had handles before, with their next use.
    again: Vec<usize>,
    /// The number of places that have had handles.
    used: usize,
}

// SAFETY: the content of a place is written before its handle is given and taken out after its
// handle has been withdrawn, each by the one thread that does that; in between it is shared.
unsafe impl<T: Send + Sync> Sync for Table<T> {}

impl<T> Table<T> {
    /// Makes a table without handles. Two kinds must differ, and the two highest bits of `kind`
    /// must differ.
    pub(crate) const fn new(kind: u16) -> Self {
        assert!(kind >> 15 != kind >> 14 & 1, "an address of that kind could be valid");
        Self {
            kind,
            blocks: [const { AtomicPtr::new(ptr::null_mut()) }; PLACES / BLOCK],
            free: Mutex::new(Free { again: Vec::new(), used: 0 }),
        }
    }

    /// Returns the place that a handle names, if there is one.
    #[inline(always)]
    fn place(&self, bits: usize) -> Option<&Place<T>> {
        let number = bits % PLACES;
        let block = self.blocks[number / BLOCK].load(Ordering::Acquire);
        // SAFETY: a block is published when it is complete, and lives for ever.
        unsafe { block.as_ref() }.map(|block| &block[number % BLOCK])
    }

    /// Returns the bits of a handle that was never used before.
    fn new_bits(&self) -> Option<usize> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bits) = free.again.pop() {
            return Some(bits);
        }
        let number = free.used;
        if number == CLOSED % PLACES {
            return None;
        }
        free.used += 1;
        let block = &self.blocks[number / BLOCK];
        if block.load(Ordering::Relaxed).is_null() {
            let place =
                |_| Place { open: CLOSED.into(), content: UnsafeCell::new(MaybeUninit::uninit()) };
            let places = Box::new(std::array::from_fn(place));
            block.store(Box::into_raw(places), Ordering::Release);
        }
        Some(usize::from(self.kind) << (PLACE_BITS + USE_BITS) | number)
    }
}

impl<T: Held> Handle<T> {
    const fn new(bits: usize) -> Self {
        Self { bits, kind: PhantomData }
    }

    /// The null pointer.
    pub(crate) const NULL: Self = Self::new(0);

    /// Returns a handle with this content, which is valid until [`close`](Self::close).
    ///
    /// # Errors
    ///
    /// `MFILE` if there are too many.
    pub(crate) fn open(content: T) -> Result<Self, Errno> {
        let bits = T::TABLE.new_bits().ok_or(Errno(libc::EMFILE))?;
        let place = T::TABLE.place(bits).ok_or(Errno::INVAL)?;
        // SAFETY: the place has no handle and is in no list, so nobody else looks at its content.
        unsafe { (*place.content.get()).write(content) };
        place.open.store(bits, Ordering::Release);
        Ok(Self::new(bits))
    }

    /// Calls `act` with the content of the handle.
    ///
    /// # Errors
    ///
    /// `INVAL` for a null pointer, a closed handle, or anything else that is not an open handle of
    /// this kind; or the error of `act`.
    #[inline(always)]
    pub(crate) fn with<R>(self, act: impl FnOnce(&T) -> Result<R, Errno>) -> Result<R, Errno> {
        let place = T::TABLE.place(self.bits).ok_or(Errno::INVAL)?;
        if place.open.load(Ordering::Acquire) != self.bits {
            return Err(Errno::INVAL);
        }
        // SAFETY: an open handle's content is there and does not change. That C closes no handle
        // in the middle of another call with it is the one thing that the header asks.
        act(unsafe { (*place.content.get()).assume_init_ref() })
    }

    /// Closes the handle and drops its content. It has no effect on anything that is not an open
    /// handle.
    pub(crate) fn close(self) {
        let Some(place) = T::TABLE.place(self.bits) else { return };
        let withdrawn = (Ordering::AcqRel, Ordering::Relaxed);
        if place.open.compare_exchange(self.bits, CLOSED, withdrawn.0, withdrawn.1).is_err() {
            return;
        }
        // SAFETY: this thread has withdrawn the handle, so the content is there and its own.
        drop(unsafe { (*place.content.get()).assume_init_read() });
        // A place whose uses are exhausted stays empty.
        if (self.bits / PLACES) & LAST_USE != LAST_USE {
            let mut free = T::TABLE.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.again.push(self.bits + PLACES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Number(u32);

    impl Held for Number {
        const TABLE: &Table<Self> = {
            static TABLE: Table<Number> = Table::new(0x4e75);
            &TABLE
        };
    }

    fn content(handle: Handle<Number>) -> Result<u32, Errno> {
        handle.with(|number| Ok(number.0))
    }

    #[test]
    fn a_closed_handle_stays_closed_when_its_place_is_used_again() {
        let first = Handle::open(Number(7)).unwrap();
        assert_eq!(content(first), Ok(7));
        first.close();
        assert_eq!(content(first), Err(Errno::INVAL));
        first.close();
        let second = Handle::open(Number(8)).unwrap();
        assert_eq!((content(first), content(second)), (Err(Errno::INVAL), Ok(8)));
        first.close();
        assert_eq!(content(second), Ok(8));
    }

    #[test]
    fn what_is_no_handle_is_refused() {
        let open = Handle::open(Number(9)).unwrap();
        let local = 0_u64;
        let pointer = (&raw const local).addr();
        // The bits are not those of the next place, since another test may have opened that.
        let later = open.bits + (1 << PLACE_BITS);
        for bits in [0, 1, pointer, CLOSED, CLOSED >> 1, later, open.bits ^ 1 << 62] {
            assert_eq!(content(Handle::new(bits)), Err(Errno::INVAL), "{bits:#x}");
            Handle::<Number>::new(bits).close();
        }
        assert_eq!((content(open), content(Handle::NULL)), (Ok(9), Err(Errno::INVAL)));
    }

    struct Word;

    impl Held for Word {
        const TABLE: &Table<Self> = {
            static TABLE: Table<Word> = Table::new(0x5764);
            &TABLE
        };
    }

    #[test]
    fn a_handle_of_another_kind_is_refused() {
        let numbers: Vec<_> = (0..8).map(|n| Handle::open(Number(n)).unwrap()).collect();
        let places = 1 + numbers.iter().map(|number| number.bits % PLACES).max().unwrap();
        let words: Vec<_> = (0..places).map(|_| Handle::open(Word).unwrap()).collect();
        for number in &numbers {
            let confused = Handle::<Word>::new(number.bits);
            assert_eq!(confused.with(|_| Ok(())), Err(Errno::INVAL));
            confused.close();
        }
        assert!(words.iter().all(|word| word.with(|_| Ok(())).is_ok()), "none was closed");
        assert!((0..).zip(&numbers).all(|(n, number)| content(*number) == Ok(n)));
        numbers.iter().for_each(|number| number.close());
    }

    #[test]
    fn a_place_is_left_when_its_uses_are_used_up() {
        let handle = Handle::open(Number(1)).unwrap();
        let last = Handle::<Number>::new(handle.bits | LAST_USE << PLACE_BITS);
        let place = Number::TABLE.place(last.bits).unwrap();
        place.open.store(last.bits, Ordering::Relaxed);
        last.close();
        let next = Handle::open(Number(2)).unwrap();
        assert_ne!(next.bits % PLACES, last.bits % PLACES);
    }

    #[test]
    fn many_are_open_at_once() {
        let all: Vec<_> = (0..3_000).map(|n| Handle::open(Number(n)).unwrap()).collect();
        assert!((0..).zip(&all).all(|(n, handle)| content(*handle) == Ok(n)));
        all.iter().for_each(|handle| handle.close());
        assert!(all.iter().all(|handle| content(*handle).is_err()));
    }
}
