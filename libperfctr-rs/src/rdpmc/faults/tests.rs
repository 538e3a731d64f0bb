// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests of the action for SIGSEGV. Each runs in a child process, because a process has one action
//! and most of the tests end the process.

use super::*;
use std::arch::asm;

use shared_abi::limits::READ_ATTEMPTS_MAX;
use shared_abi::read::{Counters, ReadError};
use shared_abi::thread_page::{THREAD_ACTIVE, THREAD_DIRECT};
use shared_abi::vcpu_page::{VCPU_DIRECT, VCPU_REGISTERED};
use shared_abi::{ThreadPage, VcpuPage};

use crate::rdpmc::{Hardware, survived};
use crate::reader::Reader;

/// A counter that no CPU has, so that RDPMC faults whether CR4.PCE is set or not.
const ABSENT: u32 = 0x0fff_ffff;
/// The exit status of a successful child.
const FINE: Ended = Ended::Exited(0);
/// The exit status with which a handler ends a child.
const HANDLED: Ended = Ended::Exited(42);
const KILLED: Ended = Ended::Signalled(libc::SIGSEGV);
/// An address at which nothing can be.
const NOWHERE: usize = 8;

#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Exited(i32),
    Signalled(i32),
}

/// Runs `body` in a child with these settings, and returns its end: [`FINE`] if `body` returns
/// true. The child's earlier action for SIGSEGV is `previous`, and `survives` says whether the
/// child survives faults of RDPMC.
fn child(previous: libc::sigaction, survives: bool, body: fn() -> bool) -> Ended {
    // SAFETY: the child calls only functions that are async-signal-safe, or that glibc keeps usable
    // in the child of a threaded process: it allocates and starts threads. Only children take this
    // module's lock.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is readable. The limit prevents core dumps; the alarm ends a child that
        // hangs.
        let limited = unsafe {
            libc::alarm(60);
            libc::setrlimit(libc::RLIMIT_CORE, &limit) == 0
        };
        let set = exchange(Some(&previous)).is_ok();
        let fine = limited && set && (!survives || survive_faults().is_ok()) && body();
        // SAFETY: the call ends the child, and executes none of the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if libc::WIFSIGNALED(status) {
        Ended::Signalled(libc::WTERMSIG(status))
    } else {
        Ended::Exited(libc::WEXITSTATUS(status))
    }
}

fn action(handler: usize, flags: libc::c_int) -> libc::sigaction {
    // SAFETY: a `sigaction` of zeros is valid.
    libc::sigaction { sa_sigaction: handler, sa_flags: flags, ..unsafe { zeroed() } }
}

fn default() -> libc::sigaction {
    action(libc::SIG_DFL, 0)
}

fn informed(handler: Informed, flags: libc::c_int) -> libc::sigaction {
    action(handler as *const () as usize, libc::SA_SIGINFO | flags)
}

fn rdpmc_is_0() -> bool {
    Hardware.counter(ABSENT) == 0
}

/// Executes an RDPMC that belongs to the program and not to this crate.
fn other_rdpmc() -> bool {
    // SAFETY: no CPU has this counter, so the instruction faults. It writes only to the registers
    // that are named here.
    unsafe { asm!("rdpmc", in("ecx") ABSENT, out("eax") _, out("edx") _) };
    true
}

/// Causes a fault that has an address.
fn touch_nothing() -> bool {
    // SAFETY: nothing is mapped at this address, so the instruction faults and changes nothing.
    unsafe { asm!("mov {0}, [{0}]", inout(reg) NOWHERE => _) };
    false
}

/// Raises #GP, as RDPMC does.
fn halt() -> bool {
    // SAFETY: user mode may not execute the instruction, so it faults and changes nothing.
    unsafe { asm!("hlt") };
    false
}

fn send() -> bool {
    // SAFETY: the call takes no pointer. The action for the signal is this test's own.
    unsafe { libc::raise(libc::SIGSEGV) == 0 }
}

/// Ends the process with `HANDLED` if the signal is the expected one.
fn end(is_expected: bool) {
    // SAFETY: the call takes a number only, and does not return.
    unsafe { libc::_exit(if is_expected { 42 } else { 1 }) }
}

extern "C" fn expects_address(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a pointer to the signal's information.
    end(signal == libc::SIGSEGV && unsafe { (*info).si_addr() } as usize == NOWHERE);
}

extern "C" fn expects_halt(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a pointer to the context; the instruction that faulted is readable.
    let byte = unsafe {
        let context = &*context.cast::<libc::ucontext_t>();
        *(context.uc_mcontext.gregs[libc::REG_RIP as usize] as *const u8)
    };
    end(byte == 0xf4);
}

extern "C" fn expects_nowhere(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a pointer to the context.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    end(context.uc_mcontext.gregs[libc::REG_RSP as usize] != 0);
}

extern "C" fn expects_signal(signal: libc::c_int) {
    end(signal == libc::SIGSEGV);
}

/// Lets the instruction be executed again.
extern "C" fn returns(_: libc::c_int) {}

#[test]
fn without_it_rdpmc_ends_the_process() {
    assert_eq!(child(default(), false, rdpmc_is_0), KILLED);
}

#[test]
fn rdpmc_gives_0_and_goes_on() {
    let body = || {
        // SAFETY: the pointer leads to the calling thread's `errno`, which always exists.
        let errno = unsafe { &mut *libc::__errno_location() };
        *errno = 42;
        rdpmc_is_0() && rdpmc_is_0() && survived() == 2 && *errno == 42
    };
    assert_eq!(child(default(), true, body), FINE);
}

#[test]
fn reads_survive_unless_the_program_wants_otherwise() {
    let body = || {
        survive_by_default();
        rdpmc_is_0() && survived() == 1
    };
    assert_eq!(child(default(), false, body), FINE);
    let chained = || {
        survive_by_default();
        survive_by_default();
        rdpmc_is_0() && touch_nothing()
    };
    assert_eq!(child(informed(expects_address, 0), false, chained), HANDLED);
}

/// The pages of a thread on a host that no longer lets anybody read counters, although both pages
/// still allow it.
#[repr(C, align(4096))]
#[derive(Default)]
struct Stale {
    thread: ThreadPage,
    vcpu: VcpuPage,
}

impl Stale {
    fn new() -> Self {
        let stale = Self::default();
        stale.thread.state.store(THREAD_DIRECT | THREAD_ACTIVE, Ordering::Relaxed);
        stale.thread.counters.store(1, Ordering::Relaxed);
        stale.thread.slots[0].counter_index.store(ABSENT, Ordering::Relaxed);
        stale.thread.slots[0].sum.store(700, Ordering::Relaxed);
        stale.vcpu.flags.store(VCPU_REGISTERED | VCPU_DIRECT, Ordering::Relaxed);
        stale
    }

    fn reader(&self) -> Reader<'_> {
        // SAFETY: a thread's page and one vCPU's page lie there, and live as long as `self`.
        unsafe { Reader::new(from_ref(self).cast(), 1) }
    }
}

#[test]
fn a_read_that_faults_gives_an_error_and_no_number() {
    let body = || {
        let (stale, mut counts) = (Stale::new(), [5]);
        let reader = stale.reader();
        let lost = (0..2).all(|_| {
            reader.read(&mut counts) == Err(ReadError::Faulted)
                && reader.counts(&mut counts) == Err(ReadError::Faulted)
                && reader.try_read(&mut counts).is_none()
        });
        // Each of the two rounds has two reads of 100 attempts, and a single attempt.
        let faulted = survived() == 2 * (2 * u64::from(READ_ATTEMPTS_MAX) + 1);
        // A reading of the clock alone needs no counter, and a reading of the kernel's sums does
        // not either.
        let clock = reader.read(&mut []).is_ok() && reader.read(&mut []).is_ok();
        stale.thread.state.store(0, Ordering::Relaxed);
        lost && faulted && clock && reader.counts(&mut counts).is_ok() && counts == [700]
    };
    assert_eq!(child(default(), true, body), FINE);
    let first = || Stale::new().reader().try_read(&mut [5]).is_none();
    assert_eq!(child(default(), true, first), FINE);
}

#[test]
fn sessions_leave_the_action_alone_if_asked_to() {
    let left = || {
        leave_faults();
        survive_by_default();
        exchange(None).is_ok_and(|action| action.sa_sigaction == libc::SIG_DFL) && rdpmc_is_0()
    };
    assert_eq!(child(default(), false, left), KILLED);
    let by_variable = || {
        // SAFETY: the child has no other thread that could read the environment meanwhile.
        unsafe { libc::setenv(c"PERFCTR_LEAVE_SIGSEGV".as_ptr(), c"1".as_ptr(), 1) };
        survive_by_default();
        exchange(None).is_ok_and(|action| action.sa_sigaction == libc::SIG_DFL) && rdpmc_is_0()
    };
    assert_eq!(child(default(), false, by_variable), KILLED);
    // A program that asks for the handler gets it nevertheless.
    let asked = || {
        leave_faults();
        survive_faults().is_ok() && rdpmc_is_0()
    };
    assert_eq!(child(default(), false, asked), FINE);
}

#[test]
fn an_rdpmc_of_the_programs_own_still_faults() {
    assert_eq!(child(default(), true, || rdpmc_is_0() && other_rdpmc()), KILLED);
    let handler = action(expects_signal as *const () as usize, 0);
    assert_eq!(child(handler, true, || rdpmc_is_0() && other_rdpmc()), HANDLED);
}

#[test]
fn a_second_call_changes_nothing() {
    let body = || survive_faults().is_ok() && rdpmc_is_0() && touch_nothing();
    assert_eq!(child(informed(expects_address, 0), true, body), HANDLED);
}

#[test]
fn all_threads_may_ask_and_survive() {
    let body = || {
        let trial = || survive_faults().is_ok() && rdpmc_is_0();
        let threads: [_; 4] = std::array::from_fn(|_| std::thread::spawn(trial));
        threads.into_iter().all(|thread| thread.join().is_ok_and(|fine| fine)) && survived() == 4
    };
    assert_eq!(child(default(), false, body), FINE);
}

#[test]
fn the_default_still_ends_the_process() {
    for action in [default(), action(libc::SIG_IGN, 0), exchange(None).unwrap()] {
        for body in [|| rdpmc_is_0() && touch_nothing(), halt] {
            assert_eq!(child(action, true, body), KILLED);
        }
    }
    assert_eq!(child(default(), true, || rdpmc_is_0() && send()), KILLED);
}

#[test]
fn what_is_sent_is_still_ignored() {
    let body = || send() && rdpmc_is_0() && send();
    assert_eq!(child(action(libc::SIG_IGN, 0), true, body), FINE);
}

#[test]
fn a_handler_before_gets_what_is_not_rdpmc() {
    let simple = action(expects_signal as *const () as usize, 0);
    for body in [|| rdpmc_is_0() && touch_nothing(), halt, send] {
        assert_eq!(child(simple, true, body), HANDLED);
    }
    let address = informed(expects_address, libc::SA_NODEFER);
    assert_eq!(child(address, true, || rdpmc_is_0() && touch_nothing()), HANDLED);
    assert_eq!(child(informed(expects_halt, 0), true, halt), HANDLED);
}

#[test]
fn a_handler_before_learns_of_a_jump_to_nowhere() {
    let body = || {
        // SAFETY: the instruction faults, because no code can be at an address that is not
        // canonical.
        unsafe { asm!("call {}", in(reg) 1_u64 << 63 | 1) };
        false
    };
    assert_eq!(child(informed(expects_nowhere, 0), true, body), HANDLED);
}

#[test]
fn a_handler_for_once_is_called_once() {
    let once = action(returns as *const () as usize, libc::SA_RESETHAND);
    assert_eq!(child(once, true, || rdpmc_is_0() && touch_nothing()), KILLED);
    let twice = || send() && send();
    assert_eq!(child(action(once.sa_sigaction, 0), true, twice), FINE);
    assert_eq!(child(once, true, twice), KILLED);
}
