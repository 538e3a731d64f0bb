// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The functions `rvperfctr_*`: counters of a thread that the caller traces and that is stopped.

use std::ffi::c_int;

use shared_abi::Errno;

use crate::abi::{Info, SumCtrs, VperfctrControl};
use crate::errno::Out;
use crate::thread::{Thread, Vperfctr, vperfctr_close};
use crate::{errno, fd, thread};

/// `struct rvperfctr *`, which is the same as `struct vperfctr *`, since PAPI passes one for the
/// other.
pub type Rvperfctr = Vperfctr;

fn open(pid: c_int) -> Result<Thread, Errno> {
    let tid = u32::try_from(pid).ok().filter(|tid| *tid != 0).ok_or(Errno::SRCH)?;
    Thread::create(tid)
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn rvperfctr_open(pid: c_int) -> Rvperfctr {
    errno::handle(open(pid))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn rvperfctr_pid(handle: Rvperfctr) -> c_int {
    errno::number(handle.with(|thread| Ok(thread.tid as c_int)))
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn rvperfctr_read_ctrs(handle: Rvperfctr, to: Out<'_, SumCtrs>) -> c_int {
    errno::status(handle.with(|thread| errno::give(to, fd::sums(&thread.device))))
}

/// Defines functions that do the same for both kinds of handle.
macro_rules! same {
    ($($name:ident => $own:ident($($argument:ident: $ty:ty),*);)+) => {$(
        /// See `libperfctr.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(handle: Rvperfctr $(, $argument: $ty)*) -> c_int {
            thread::$own(handle $(, $argument)*)
        }
    )+};
}

same! {
    rvperfctr_info => vperfctr_info(to: Out<'_, Info>);
    rvperfctr_read_state =>
        vperfctr_read_state(sums: Out<'_, SumCtrs>, control: Out<'_, VperfctrControl>);
    rvperfctr_control => vperfctr_control(from: Option<&VperfctrControl>);
    rvperfctr_stop => vperfctr_stop();
    rvperfctr_iresume => vperfctr_iresume();
    rvperfctr_unlink => vperfctr_unlink();
}

/// See `libperfctr.h`.
#[unsafe(no_mangle)]
pub extern "C" fn rvperfctr_close(handle: Rvperfctr) {
    vperfctr_close(handle);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_positive_number_is_a_thread() {
        for pid in [0, -1, c_int::MIN] {
            assert_eq!(open(pid).err(), Some(Errno::SRCH), "{pid}");
        }
    }
}
