// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Handles the fault of an RDPMC that became forbidden after the reader had looked at its pages.
//!
//! After a reader has looked at its pages and before its RDPMC, the thread may be stopped and
//! continue on a CPU on which CR4.PCE is clear. RDPMC then raises #GP, for which Linux sends
//! SIGSEGV to a program. Without a handler that lets the thread continue elsewhere, the process
//! ends.
//!
//! A table has the address of each RDPMC of this crate, and the address at which to continue after
//! a fault, like the kernel's own exception table. So the handler does not mistake a fault of any
//! other instruction, such as an RDPMC of the program's own, for a fault of this crate's RDPMC. A
//! read that does not fault executes no further instruction.
#![expect(unsafe_code, reason = "signal handlers are C functions with C arguments")]

use std::arch::global_asm;
use std::env;
use std::io;
use std::mem::{offset_of, transmute, zeroed};
use std::ptr::{from_ref, null};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::Error;

/// The vector of #GP (SDM volume 3), which Linux passes on in `REG_TRAPNO`.
const GENERAL_PROTECTION: i64 = 13;
/// Linux's code of a signal that the kernel itself raises and that has no address.
const SI_KERNEL: libc::c_int = 0x80;

type Simple = extern "C" fn(libc::c_int);
type Informed = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// The earlier action of SIGSEGV; it is stored before the handler is set.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

static SURVIVED: AtomicU64 = AtomicU64::new(0);

/// Whether sessions leave SIGSEGV's action as it is.
static LEAVES_ACTION: AtomicBool = AtomicBool::new(false);
/// The environment variable by which the user of a program makes sessions leave SIGSEGV's action.
const LEAVE_VARIABLE: &str = "PERFCTR_LEAVE_SIGSEGV";

// A program that never reads has the table, too. The linker names both ends of the table; each
// program and each shared library has a table of its own.
global_asm!(
    ".pushsection perfctr_rdpmc, \"aR\", @progbits",
    ".popsection",
    ".hidden __start_perfctr_rdpmc",
    ".hidden __stop_perfctr_rdpmc",
);

/// Two distances from the field itself to an instruction.
#[repr(C)]
struct Entry {
    instruction: i32,
    continuation: i32,
}

unsafe extern "C" {
    #[link_name = "__start_perfctr_rdpmc"]
    static TABLE: [Entry; 0];
    #[link_name = "__stop_perfctr_rdpmc"]
    static TABLE_END: [Entry; 0];
}

/// Makes reads of this process that fault return an error from now on, where SIGSEGV would end the
/// process otherwise.
///
/// A read faults where the CPU does not let it execute RDPMC. When a thread loses its counters, one
/// of its pages usually changes, and the read looks at the pages again. So it returns the kernel's
/// counts, or the reason why there are none, such as [`Error::NotLoaded`](crate::Error::NotLoaded).
/// A host without the driver changes no page; the read then returns
/// [`Error::Faulted`](crate::Error::Faulted).
///
/// Programs need this in domains that may be saved or migrated while they read, to a host that does
/// not let the domain count, has no driver or has other counters. They also need it where a
/// physical CPU that differs from the others may come up. So code that maps the device's pages,
/// such as a [`Session`](crate::Session), calls this unless [`leave_faults`] was called before, or
/// the variable `PERFCTR_LEAVE_SIGSEGV` is set. Programs that read a mapping of their own call it
/// themselves.
///
/// Every other SIGSEGV is handled as before: an earlier handler is called, on the alternate stack
/// if the thread has one. Only the first call has an effect. Code that sets SIGSEGV's action
/// later undoes this, unless its handler calls the earlier one. A thread must not block SIGSEGV,
/// or Linux ends the process at any fault. Call this, or open the first session, while no other
/// thread sets the action of SIGSEGV: otherwise one of the two actions would be lost.
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

/// Makes sessions that this process opens from now on leave SIGSEGV's action as it is. A session
/// that was opened before has already changed it.
///
/// A read whose domain has just lost its counters then ends the process; see [`survive_faults`].
pub fn leave_faults() {
    // ATOMICS: a thread that opens a session at the same time reads the word before or after this.
    LEAVES_ACTION.store(true, Ordering::Relaxed);
}

/// Does what [`survive_faults`] does, unless the program or its environment forbids it.
///
/// If the kernel refuses it, a read that faults ends the process.
pub(crate) fn survive_by_default() {
    // ATOMICS: see `leave_faults`.
    if !LEAVES_ACTION.load(Ordering::Relaxed) && env::var_os(LEAVE_VARIABLE).is_none() {
        let _ = survive_faults();
    }
}

/// Returns how often RDPMC has faulted, in all threads.
///
/// Readers need this number if their pages may stay unchanged although RDPMC faults.
#[inline(always)]
pub(crate) fn survived() -> u64 {
    // ATOMICS: only the calling thread's own signal handler matters, which is in program order.
    SURVIVED.load(Ordering::Relaxed)
}

fn install() -> io::Result<()> {
    let found = exchange(None)?;
    let previous = PREVIOUS.get_or_init(|| found);
    // An ignored signal interrupted no system call, so this handler must not interrupt one either.
    let restart = if previous.sa_sigaction == libc::SIG_IGN { libc::SA_RESTART } else { 0 };
    let kept = previous.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART);
    let action = libc::sigaction {
        sa_sigaction: on_fault as *const () as usize,
        sa_flags: libc::SA_SIGINFO | libc::SA_ONSTACK | kept | restart,
        ..*previous
    };
    exchange(Some(&action)).map(drop)
}

/// Sets SIGSEGV's action, if one is given, and returns the earlier one. It is async-signal-safe.
fn exchange(action: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    // SAFETY: a `sigaction` of zeros is valid. The action is the default, or a handler of this
    // module with the signature that SA_SIGINFO needs.
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
    // SAFETY: the kernel passes valid pointers to a handler that was set with SA_SIGINFO, and so
    // does a handler that calls this one. Nobody else uses what they point to meanwhile.
    let (code, registers) =
        unsafe { ((*info).si_code, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
    let ip = registers[libc::REG_RIP as usize];
    let protection = registers[libc::REG_TRAPNO as usize] == GENERAL_PROTECTION;
    let ours = if code == SI_KERNEL && protection { continuation(ip as usize) } else { None };
    if let Some(continuation) = ours {
        registers[libc::REG_RAX as usize] = 0;
        registers[libc::REG_RDX as usize] = 0;
        registers[libc::REG_RIP as usize] = continuation as i64;
        // ATOMICS: see `survived`.
        SURVIVED.fetch_add(1, Ordering::Relaxed);
    } else if let Some(previous) = PREVIOUS.get() {
        pass_on(previous, signal, info, context);
    }
}

/// Returns where to continue after an RDPMC of this crate at `ip` has faulted. Returns `None` if
/// no such instruction is there.
fn continuation(ip: usize) -> Option<usize> {
    let (first, end) = (&raw const TABLE, &raw const TABLE_END);
    let mut entry = first.cast::<Entry>();
    while entry.addr() < end.addr() {
        // SAFETY: the linker has put the entries one after another between the two ends, and nobody
        // writes to them.
        let Entry { instruction, continuation } = unsafe { entry.read() };
        if entry.addr().wrapping_add_signed(instruction as isize) == ip {
            let field = entry.addr() + offset_of!(Entry, continuation);
            return Some(field.wrapping_add_signed(continuation as isize));
        }
        entry = entry.wrapping_add(1);
    }
    None
}

/// Does with the signal what the earlier action would have done.
fn pass_on(
    previous: &libc::sigaction,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: `info` is the pointer that `on_fault` was given, and is valid until `on_fault`
    // returns.
    let sent = unsafe { (*info).si_code } <= 0;
    match previous.sa_sigaction {
        libc::SIG_IGN if sent => {}
        // A fault cannot be ignored: the instruction is executed again, and faults again.
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
            // SAFETY: the action's flags say which signature the function has; the kernel relies on
            // these flags, too.
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
    // SAFETY: a `sigaction` of zeros is valid, and means the default.
    let default = unsafe { zeroed() };
    // The call cannot fail, since programs may handle SIGSEGV.
    let _ = exchange(Some(&default));
}

#[cfg(test)]
mod tests;
