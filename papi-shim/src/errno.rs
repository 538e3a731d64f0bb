// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Results as C expects them.

use std::ffi::c_int;
use std::io;
use std::ptr;

use shared_abi::Errno;

/// What a system call said.
pub(crate) fn of(error: &io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// The result of a system call.
pub(crate) fn from<T>(result: io::Result<T>) -> Result<T, Errno> {
    result.map_err(|error| of(&error))
}

/// For Rust programs.
pub(crate) fn to_io(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

#[cold]
pub(crate) fn set(errno: Errno) {
    // SAFETY: the C library gives the calling thread's own variable.
    unsafe { *libc::__errno_location() = errno.0 }
}

/// 0, or -1 with `errno` set.
pub(crate) fn status(result: Result<(), Errno>) -> c_int {
    number(result.map(|()| 0))
}

/// A number that is not negative, or -1 with `errno` set.
pub(crate) fn number(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        set(errno);
        -1
    })
}

/// A pointer, or null with `errno` set.
pub(crate) fn pointer<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set(errno);
        ptr::null_mut()
    })
}

/// Gives a value to C through a pointer that must not be null.
///
/// # Safety
///
/// `place` is null or can be written.
pub(crate) unsafe fn give<T>(place: *mut T, value: Result<T, Errno>) -> Result<(), Errno> {
    if place.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: not null, so the caller says that it can be written.
    unsafe { place.write(value?) };
    Ok(())
}

/// Takes a value from C.
///
/// # Safety
///
/// `place` is null or points to a valid value.
pub(crate) unsafe fn take<T: Copy>(place: *const T) -> Result<T, Errno> {
    // SAFETY: as the caller says.
    unsafe { place.as_ref() }.copied().ok_or(Errno::INVAL)
}
