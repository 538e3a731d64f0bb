// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Functions of the program that the library's signal handler calls.
#![expect(unsafe_code, reason = "signal handlers are C functions with C arguments")]

use std::io;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{Overflow, Sample, go_on};

/// A function that [`set_handler`] has called with every sample.
pub type Handler = fn(&Sample);

/// The number of Linux's signals, which begin at 1, plus one.
const SIGNALS: usize = 65;

/// The handler of each signal: null, or a [`Handler`].
static HANDLERS: [AtomicPtr<()>; SIGNALS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; SIGNALS];

/// Makes the library call `handler` for each overflow that raises `signal` in any thread of this
/// process. The counters go on when `handler` returns.
///
/// System calls that an overflow interrupts are restarted, and other arrivals of the signal are
/// ignored.
///
/// ```compile_fail,E0133
/// perfctr::overflow::set_handler(libc::SIGPROF, |sample| println!("{:#x}", sample.ip));
/// ```
///
/// # Safety
///
/// `handler` runs in a signal handler, at any instruction of the thread that samples. It must only
/// do what is async-signal-safe (`signal-safety(7)`). It may use atomics, memory that is already
/// allocated, and thread-local variables that need no initialisation. It must not allocate, lock,
/// print or panic.
///
/// # Errors
///
/// The kernel's error: there is no such signal, or it cannot be handled.
pub unsafe fn set_handler(signal: libc::c_int, handler: Handler) -> io::Result<()> {
    let place = usize::try_from(signal).ok().and_then(|signal| HANDLERS.get(signal));
    let place = place.ok_or(io::Error::from_raw_os_error(libc::EINVAL))?;
    // ATOMICS: with Release, a thread that gets the signal sees the data on which the function
    // relies.
    place.store(handler as *mut (), Ordering::Release);
    // SAFETY: a `sigaction` of zeros is valid, and `dispatch` has the signature that SA_SIGINFO
    // needs.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = dispatch as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        if libc::sigaction(signal, &action, std::ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn dispatch(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes valid pointers to a handler that was set with SA_SIGINFO.
    let (info, context) = unsafe { (&*info, &*context.cast::<libc::ucontext_t>()) };
    let Some(overflow) = Overflow::from_siginfo(info) else { return };
    // ATOMICS: see `set_handler`.
    let handler = HANDLERS[signal as usize].load(Ordering::Acquire);
    // SAFETY: `set_handler` stores a `Handler` for the signal before it makes `dispatch` the
    // action.
    let handler: Handler = unsafe { std::mem::transmute(handler) };
    let ip = context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    handler(&Sample { overflow, ip });
    // The request fails if the handler has stopped the counters; they need not go on then.
    let _ = go_on();
}
