// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! `rvperfctr_*`: the counters of a thread that the caller traces and that is stopped.

use std::ffi::c_int;

use shared_abi::Errno;

use crate::abi::{Info, SumCtrs, VperfctrControl};
use crate::handle::Handle;
use crate::thread::{POOL, Thread, vperfctr_close};
use crate::{errno, fd, thread};

/// `struct rvperfctr`: the same as `struct vperfctr`, since PAPI gives one for the other.
pub type Rvperfctr = Handle<Thread>;

fn open(pid: c_int) -> Result<*mut Rvperfctr, Errno> {
    let tid = u32::try_from(pid).ok().filter(|tid| *tid != 0).ok_or(Errno::SRCH)?;
    Ok(Handle::open(&POOL, Thread::create(tid)?))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn rvperfctr_open(pid: c_int) -> *mut Rvperfctr {
    errno::pointer(open(pid))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rvperfctr_pid(handle: *const Rvperfctr) -> c_int {
    // SAFETY: as the caller says.
    errno::number(unsafe { Handle::get(handle) }.map(|thread| thread.tid as c_int))
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle; `to` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rvperfctr_read_ctrs(handle: *const Rvperfctr, to: *mut SumCtrs) -> c_int {
    // SAFETY: as the caller says.
    let thread = unsafe { Handle::get(handle) };
    // SAFETY: as the caller says.
    errno::status(thread.and_then(|thread| unsafe { errno::give(to, fd::sums(&thread.device)) }))
}

/// Functions that do the same for both kinds of handle.
macro_rules! same {
    ($($name:ident => $own:ident($($argument:ident: $ty:ty),*);)+) => {$(
        /// See `libperfctr.h`.
        ///
        /// # Safety
        ///
        /// `handle` is null or a handle; the others are null or valid.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: *const Rvperfctr $(, $argument: $ty)*) -> c_int {
            // SAFETY: as the caller says.
            unsafe { thread::$own(handle $(, $argument)*) }
        }
    )+};
}

same! {
    rvperfctr_info => vperfctr_info(to: *mut Info);
    rvperfctr_read_state =>
        vperfctr_read_state(sums: *mut SumCtrs, control: *mut VperfctrControl);
    rvperfctr_control => vperfctr_control(from: *mut VperfctrControl);
    rvperfctr_stop => vperfctr_stop();
    rvperfctr_iresume => vperfctr_iresume();
    rvperfctr_unlink => vperfctr_unlink();
}

/// See `libperfctr.h`.
///
/// # Safety
///
/// `handle` is null or a handle, which nobody else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rvperfctr_close(handle: *mut Rvperfctr) {
    // SAFETY: as the caller says.
    unsafe { vperfctr_close(handle) };
}
