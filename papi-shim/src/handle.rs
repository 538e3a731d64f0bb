// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Handles, which C holds as pointers to opaque structures.
//!
//! A program may pass a handle that it has closed.  The memory of a closed handle is therefore kept
//! for the next one, so that it can always be asked whether it is open.

use std::cell::UnsafeCell;
use std::hint::unreachable_unchecked;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use shared_abi::Errno;

/// What a handle points to.
#[derive(Debug)]
pub struct Handle<T> {
    is_open: AtomicBool,
    content: UnsafeCell<Option<T>>,
}

// SAFETY: the content is only replaced while the handle is closed or by whoever closes it, and
// callers of `close` promise that nobody uses the handle meanwhile.
unsafe impl<T: Send + Sync> Sync for Handle<T> {}

/// Closed handles.
pub(crate) type Pool<T> = Mutex<Vec<&'static Handle<T>>>;

impl<T> Handle<T> {
    /// A handle with this content, valid until [`close`](Self::close).
    pub(crate) fn open(pool: &'static Pool<T>, content: T) -> *mut Self {
        let reused = pool.lock().ok().and_then(|mut closed| closed.pop());
        let handle = reused.unwrap_or_else(|| {
            Box::leak(Box::new(Self {
                is_open: AtomicBool::new(false),
                content: UnsafeCell::new(None),
            }))
        });
        // SAFETY: the handle is closed and in no pool, so nobody else looks at its content.
        unsafe { *handle.content.get() = Some(content) };
        handle.is_open.store(true, Ordering::Release);
        (&raw const *handle).cast_mut()
    }

    /// What the handle stands for.
    ///
    /// # Errors
    ///
    /// `INVAL` a null pointer or a closed handle.
    ///
    /// # Safety
    ///
    /// `handle` is null or came from [`open`](Self::open), and is not closed while the result
    /// lives.
    #[inline(always)]
    pub(crate) unsafe fn get<'a>(handle: *const Self) -> Result<&'a T, Errno> {
        // SAFETY: the memory of a handle is never freed.
        let handle = unsafe { handle.as_ref() }.ok_or(Errno::INVAL)?;
        if !handle.is_open.load(Ordering::Acquire) {
            return Err(Errno::INVAL);
        }
        // SAFETY: the content of an open handle does not change until it is closed.
        match unsafe { &*handle.content.get() } {
            Some(content) => Ok(content),
            // SAFETY: an open handle has content.
            None => unsafe { unreachable_unchecked() },
        }
    }

    /// Ends the handle and drops its content; without effect on null and on closed ones.
    ///
    /// # Safety
    ///
    /// `handle` is null or came from [`open`](Self::open), and nobody else uses it.
    pub(crate) unsafe fn close(pool: &'static Pool<T>, handle: *mut Self) {
        // SAFETY: the memory of a handle is never freed.
        let Some(handle) = (unsafe { handle.cast_const().as_ref() }) else { return };
        if !handle.is_open.swap(false, Ordering::AcqRel) {
            return;
        }
        // SAFETY: nobody else uses the handle, and it is in no pool yet.
        unsafe { *handle.content.get() = None };
        if let Ok(mut closed) = pool.lock() {
            closed.push(handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_handle_is_refused_and_its_memory_used_again() {
        static POOL: Pool<u32> = Pool::new(Vec::new());
        let first = Handle::open(&POOL, 7);
        // SAFETY: the handle is used by this thread only.
        unsafe {
            assert_eq!(Handle::get(first), Ok(&7));
            Handle::close(&POOL, first);
            assert_eq!(Handle::get(first), Err(Errno::INVAL));
            Handle::close(&POOL, first);
            assert_eq!(Handle::open(&POOL, 8), first);
            assert_eq!(Handle::get(first), Ok(&8));
            assert_eq!(Handle::<u32>::get(std::ptr::null()), Err(Errno::INVAL));
        }
    }
}
