// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Survives an RDPMC that has been forbidden since the reader looked at its page.
//!
//! After a reader has looked at its pages and before its RDPMC, the thread may be stopped and go on
//! where CR4.PCE is clear.  The kernel's own RDPMC survives the #GP; in user mode a handler of the
//! signal is the only way.
#![expect(unsafe_code, reason = "signal handlers are C functions with C arguments")]

use std::io;
use std::mem::{transmute, zeroed};
use std::ptr::{from_ref, null};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::Error;

/// The instruction, without prefixes (SDM volume 2).
const RDPMC: [u8; 2] = [0x0f, 0x33];
/// The vector of #GP (SDM volume 3), which Linux passes on in `REG_TRAPNO`.
const GENERAL_PROTECTION: i64 = 13;
/// Linux's code of a signal that the kernel itself raises and that has no address.
const SI_KERNEL: libc::c_int = 0x80;

type Simple = extern "C" fn(libc::c_int);
type Informed = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// The earlier action of SIGSEGV; it is stored before the handler is set.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

static SURVIVED: AtomicU64 = AtomicU64::new(0);

/// Makes RDPMC give 0 in this process, from now on, where the CPU does not let it read.  Without
/// this, SIGSEGV ends the process.
///
/// A [`Session`](crate::Session) discards such a 0: whatever takes the counters away from a thread
/// changes one of its pages, which a read looks at again.  The read then returns the kernel's
/// counts, or the reason why there are none, such as [`Error::NotLoaded`](crate::Error::NotLoaded).
///
/// Programs need this in domains that may be saved or migrated while they read, to a host that does
/// not let the domain count, has no driver or has other counters.  They also need it where a
/// physical CPU that differs from the others may come up.  It is not the default because a library
/// should not change the process's action of SIGSEGV unasked.
///
/// Every other SIGSEGV is handled as before: an earlier handler is called, on the alternate stack
/// if the thread has one.  Only the first call has an effect.  Code that sets SIGSEGV's action
/// later undoes this, unless its handler calls the earlier one.  A thread must not block SIGSEGV,
/// or Linux ends the process at any fault.  Call this while no other thread sets the action of
/// SIGSEGV: otherwise one of the two actions would be lost.
///
/// # Errors
///
/// [`Error::Kernel`](crate::Error::Kernel).
pub fn survive_faults() -> Result<(), Error> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*installed {
        install().map_err(Error::kernel("handle SIGSEGV"))?;
        *installed = true;
    }
    Ok(())
}

/// Returns how often RDPMC has faulted, in all threads.
///
/// Readers need it if their pages may stay unchanged although RDPMC faults.
#[inline(always)]
pub(crate) fn survived() -> u64 {
    // ATOMICS: only the calling thread's own signal handler matters, which is in program order.
    SURVIVED.load(Ordering::Relaxed)
}

fn install() -> io::Result<()> {
    let found = exchange(None)?;
    let previous = PREVIOUS.get_or_init(|| found);
    // An ignored signal interrupted no system call, so this handler must not do so either.
    let restart = if previous.sa_sigaction == libc::SIG_IGN { libc::SA_RESTART } else { 0 };
    let kept = previous.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART);
    let action = libc::sigaction {
        sa_sigaction: on_fault as *const () as usize,
        sa_flags: libc::SA_SIGINFO | libc::SA_ONSTACK | kept | restart,
        ..*previous
    };
    exchange(Some(&action)).map(drop)
}

/// Sets SIGSEGV's action, if one is given, and returns the earlier one.  It is async-signal-safe.
fn exchange(action: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    // SAFETY: all-zero is a valid `sigaction`; the handlers are this module's, with the signature
    // that SA_SIGINFO asks for, or the default.
    unsafe {
        let mut before: libc::sigaction = zeroed();
        match libc::sigaction(libc::SIGSEGV, action.map_or(null(), from_ref), &mut before) {
            0 => Ok(before),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Handles SIGSEGV; it calls only async-signal-safe functions.
extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes both to a handler that was set with SA_SIGINFO, as does whoever
    // calls it in turn, and nobody else uses them meanwhile.
    let (code, registers) =
        unsafe { ((*info).si_code, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
    let ip = registers[libc::REG_RIP as usize];
    let protection = registers[libc::REG_TRAPNO as usize] == GENERAL_PROTECTION;
    if code == SI_KERNEL && protection && code_at(ip as usize) == Some(RDPMC) {
        registers[libc::REG_RAX as usize] = 0;
        registers[libc::REG_RDX as usize] = 0;
        registers[libc::REG_RIP as usize] = ip + RDPMC.len() as i64;
        // ATOMICS: see `survived`.
        SURVIVED.fetch_add(1, Ordering::Relaxed);
    } else if let Some(previous) = PREVIOUS.get() {
        pass_on(previous, signal, info, context);
    }
}

/// Returns the first bytes of an instruction; `None` if they cannot be read, as after a jump to
/// unmapped memory or in memory that may only be executed.
fn code_at(ip: usize) -> Option<[u8; 2]> {
    let mut bytes = [0; 2];
    let local = libc::iovec { iov_base: (&raw mut bytes).cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: ip as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the system call writes at most all of `bytes`, and returns an error for memory that
    // cannot be read.  The calling thread's `errno` always exists, and is restored.
    let read = unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let read = libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0);
        *errno = before;
        read
    };
    (usize::try_from(read) == Ok(bytes.len())).then_some(bytes)
}

/// Handles the signal as the earlier action would have.
fn pass_on(
    previous: &libc::sigaction,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: see `on_fault`.
    let sent = unsafe { (*info).si_code } <= 0;
    match previous.sa_sigaction {
        libc::SIG_IGN if sent => {}
        // A fault cannot be ignored.  The instruction is executed again, and faults again.
        libc::SIG_DFL | libc::SIG_IGN => {
            set_default();
            if sent {
                // SAFETY: the call takes numbers only.
                unsafe { libc::raise(signal) };
            }
        }
        handler => {
            if previous.sa_flags & libc::SA_RESETHAND != 0 {
                set_default();
            }
            // SAFETY: the flags say which kind of function it is, to the kernel as well.
            unsafe {
                if previous.sa_flags & libc::SA_SIGINFO != 0 {
                    transmute::<usize, Informed>(handler)(signal, info, context);
                } else {
                    transmute::<usize, Simple>(handler)(signal);
                }
            }
        }
    }
}

fn set_default() {
    // SAFETY: all-zero is a valid `sigaction`: the default.
    let default = unsafe { zeroed() };
    // It cannot fail: SIGSEGV may be handled.
    let _ = exchange(Some(&default));
}

#[cfg(test)]
mod tests;
