// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Converts results to what C expects.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use shared_abi::Errno;

use crate::handle::{Handle, Held};

/// Returns the error number of a system call.
pub(crate) fn of(error: &io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Converts the result of a system call.
pub(crate) fn from<T>(result: io::Result<T>) -> Result<T, Errno> {
    result.map_err(|error| of(&error))
}

/// Converts an error number for Rust programs.
pub(crate) fn to_io(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

#[cold]
pub(crate) fn set(errno: Errno) {
    // SAFETY: the C library gives the calling thread's own variable.
    unsafe { *libc::__errno_location() = errno.0 }
}

/// Returns -1 with `errno` set.
#[cold]
#[inline(never)]
pub(crate) fn failed(errno: Errno) -> c_int {
    set(errno);
    -1
}

/// Returns 0, or -1 with `errno` set.
pub(crate) fn status(result: Result<(), Errno>) -> c_int {
    number(result.map(|()| 0))
}

/// Returns a number that is not negative, or -1 with `errno` set.
pub(crate) fn number(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(failed)
}

/// Returns a pointer, or null with `errno` set.
pub(crate) fn pointer<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set(errno);
        ptr::null_mut()
    })
}

/// Returns a handle, or null with `errno` set.
pub(crate) fn handle<T: Held>(result: Result<T, Errno>) -> Handle<T> {
    result.and_then(Handle::open).unwrap_or_else(|errno| {
        set(errno);
        Handle::NULL
    })
}

/// The place where C wants a value: a pointer that may be null, to memory that need not be
/// initialised.
pub type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Gives a value to C.
pub(crate) fn give<T>(place: Out<'_, T>, value: Result<T, Errno>) -> Result<(), Errno> {
    place.ok_or(Errno::INVAL)?.write(value?);
    Ok(())
}

/// Takes a value from C.
pub(crate) fn take<T: Copy>(place: Option<&T>) -> Result<T, Errno> {
    place.copied().ok_or(Errno::INVAL)
}
