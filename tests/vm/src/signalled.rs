// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes the calling thread's perf event send a signal to the thread when it overflows, as rr does.
#![expect(unsafe_code, reason = "a signal's handler, and what it may call")]

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

use libc::{c_int, c_void};
use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::gettid;
use perf_event_open_sys::ioctls;

use crate::perf::Event;

/// The signal that rr has its counter send.
const SIGNAL: Signal = Signal::SIGSTKFLT;

/// `F_SETSIG` and `F_SETOWN_EX` of `fcntl(2)`.
const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;

/// `struct f_owner_ex` of `fcntl(2)`.
#[repr(C)]
struct Owner {
    /// 0: a thread.
    kind: c_int,
    id: libc::pid_t,
}

/// The event whose signal is expected, and its count when the first signal came: 0 before.
static EVENT: AtomicI32 = AtomicI32::new(-1);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Reads the event's count and stops the event. For the first signal it executes the same
/// instructions each time. Further signals may come until the event has stopped.
extern "C" fn handler(_: c_int) {
    if COUNT.load(Relaxed) != 0 {
        return;
    }
    let mut count = 0_u64;
    let event = EVENT.load(Relaxed);
    // SAFETY: a handler may make these calls, and the count has room for the 8 bytes.
    unsafe {
        libc::read(event, (&raw mut count).cast::<c_void>(), size_of::<u64>());
        ioctls::DISABLE(event, 0);
    }
    COUNT.store(count, Relaxed);
}

/// Prepares the calling thread's event to send its signal to this thread.
///
/// # Errors
///
/// The kernel's error.
pub fn prepare(event: &Event) -> nix::Result<()> {
    let action = SigAction::new(SigHandler::Handler(handler), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler makes only calls that a handler may make.
    unsafe { sigaction(SIGNAL, &action)? };
    let file = event.descriptor().as_raw_fd();
    let owner = Owner { kind: 0, id: gettid().as_raw() };
    // SAFETY: the descriptor is an event's, and the owner has the form that the kernel reads.
    unsafe {
        Errno::result(libc::fcntl(file, F_SETOWN_EX, &raw const owner))?;
        Errno::result(libc::fcntl(file, F_SETSIG, SIGNAL as c_int))?;
        Errno::result(libc::fcntl(file, libc::F_SETFL, libc::O_ASYNC))?;
    }
    EVENT.store(file, Relaxed);
    COUNT.store(0, Relaxed);
    Ok(())
}

/// Returns the count that the handler has read since the last call, or 0 if no signal has come.
pub fn take_count() -> u64 {
    COUNT.swap(0, Relaxed)
}
