// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Overflows of sampling counters, and the signals that tell of them.
//!
//! A thread that counts an [`Event`](crate::Event) [`every`](crate::Event::every) so often gets a
//! signal at each overflow.  Its counters are paused by then and stay paused until the thread lets
//! them go on, so that neither the handler nor anything else done about the sample is counted.
//! There are three ways to receive it:
//!
//! - [`set_handler`] gives a function that is called with each [`Sample`]; counters go on when it
//!   returns.  This is what a profiler wants.
//! - A handler of one's own decodes the signal with [`Overflow::from_siginfo`] and calls
//!   [`Resumer::resume`]; both may be used in signal handlers.
//! - [`Queue`] receives overflows where the program looks for them, as from a channel, by a
//!   descriptor that can be polled.
//!
//! The `n`th signal of a counter means that its count has reached `n` times its period.  The count
//! may be past that by the instructions that the processor retires between the overflow and its
//! interrupt (the skid); what is past counts for the next period, so periods do not drift.
#![expect(unsafe_code, reason = "signal handlers are C functions with C arguments")]

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicPtr, Ordering};

use shared_abi::ioctl::{IOC_RESUME, SIGNAL_CODE};

use crate::sys::Device;

/// Which counters have overflowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// One bit per counter, in the order in which they were given at the start.
    counters: u32,
}

impl Overflow {
    /// Decodes a signal's information; `None` if it is not one of an overflow.
    ///
    /// May be called in signal handlers.
    pub fn from_siginfo(info: &libc::siginfo_t) -> Option<Self> {
        // SAFETY: with this code the kernel has put the counters where others have a process id,
        // which is part of every signal's information that a handler gets.
        (info.si_code == SIGNAL_CODE).then(|| Self { counters: unsafe { info.si_pid() } as u32 })
    }

    fn from_signalfd(info: &libc::signalfd_siginfo) -> Option<Self> {
        (info.ssi_code == SIGNAL_CODE).then_some(Self { counters: info.ssi_pid })
    }

    /// Whether counter `n`, in the order in which they were given at the start, has overflowed.
    pub const fn contains(self, n: usize) -> bool {
        n < u32::BITS as usize && self.counters >> n & 1 != 0
    }

    /// The counters that have overflowed.
    pub fn counters(self) -> impl Iterator<Item = usize> {
        (0..u32::BITS as usize).filter(move |&n| self.contains(n))
    }
}

/// Lets a thread's counters go on after an overflow.
///
/// It is as good as the session that it comes from: it must not be used when that is dropped.
#[derive(Clone, Copy, Debug)]
pub struct Resumer(RawFd);

impl Resumer {
    pub(crate) fn new(device: &Device) -> Self {
        Self(device.as_raw_fd())
    }

    /// Lets the counters go on.
    ///
    /// May be called in signal handlers: it does nothing but a system call, and leaves `errno` as
    /// it was.
    ///
    /// # Errors
    ///
    /// The kernel's: `EPERM` they are not paused, or another thread's.
    pub fn resume(self) -> io::Result<()> {
        // SAFETY: the calling thread's `errno` always exists; this request has no argument.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            let result = if libc::ioctl(self.0, IOC_RESUME.into(), 0) == 0 {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            };
            *errno = before;
            result
        }
    }
}

/// One overflow, as a handler sees it.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The counters.
    pub overflow: Overflow,
    /// The instruction that the thread was about to execute.
    pub ip: usize,
}

/// What [`set_handler`] gives every sample to.
///
/// It runs in a signal handler: it may use atomics and memory that is there already, but not
/// allocate, lock or print, and must not panic.
pub type Handler = fn(&Sample);

/// Signals of Linux on x86.
const SIGNALS: usize = 65;

/// The handler of each signal: null, or a [`Handler`].
static HANDLERS: [AtomicPtr<()>; SIGNALS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; SIGNALS];

thread_local! {
    /// Of this thread's session, while it samples.
    static RESUMER: Cell<Option<Resumer>> = const { Cell::new(None) };
}

/// The calling thread's session samples, or is gone.
pub(crate) fn set_resumer(resumer: Option<Resumer>) {
    RESUMER.set(resumer);
}

/// Has `handler` called with each overflow that raises `signal` in any thread of this process;
/// counters go on when it returns.
///
/// System calls that an overflow interrupts are restarted, and other arrivals of the signal are
/// ignored.
///
/// # Errors
///
/// The kernel's: there is no such signal, or it cannot be handled.
pub fn set_handler(signal: libc::c_int, handler: Handler) -> io::Result<()> {
    let place = usize::try_from(signal).ok().and_then(|signal| HANDLERS.get(signal));
    let place = place.ok_or(io::Error::from_raw_os_error(libc::EINVAL))?;
    // ATOMICS: with Release, a thread that is signalled sees what the function relies on.
    place.store(handler as *mut (), Ordering::Release);
    // SAFETY: all-zero is a valid `sigaction`, and `dispatch` has the signature that SA_SIGINFO
    // asks for.
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
    // SAFETY: the kernel passes both to a handler that was set with SA_SIGINFO.
    let (info, context) = unsafe { (&*info, &*context.cast::<libc::ucontext_t>()) };
    let Some(overflow) = Overflow::from_siginfo(info) else { return };
    // ATOMICS: see `set_handler`.
    let handler = HANDLERS[signal as usize].load(Ordering::Acquire);
    // SAFETY: `set_handler` has put a `Handler` there before it made this the signal's handler.
    let handler: Handler = unsafe { std::mem::transmute(handler) };
    let ip = context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    handler(&Sample { overflow, ip });
    if let Some(resumer) = RESUMER.get() {
        // A handler that has stopped the counters leaves nothing to go on.
        let _ = resumer.resume();
    }
}

/// Receives the calling thread's overflows where it looks for them.
///
/// The signal is blocked and waits in the kernel.  Its counters stay paused until the thread has
/// [taken](Self::take) the overflow and [resumed](Resumer::resume).
#[derive(Debug)]
pub struct Queue(OwnedFd);

impl Queue {
    /// Blocks `signal` in the calling thread and receives it by a descriptor.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn new(signal: libc::c_int) -> io::Result<Self> {
        // SAFETY: the set is writable, and is initialised before it is used.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            if libc::sigaddset(&mut set, signal) < 0 {
                return Err(io::Error::last_os_error());
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            let descriptor = libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(OwnedFd::from_raw_fd(descriptor)))
        }
    }

    /// The next overflow, if there has been one.  Other arrivals of the signal are dropped.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn take(&self) -> io::Result<Option<Overflow>> {
        loop {
            let mut info = [0_u64; size_of::<libc::signalfd_siginfo>() / size_of::<u64>()];
            let bytes = size_of_val(&info);
            // SAFETY: so many bytes are writable.
            let read = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), bytes) };
            if read < 0 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(None),
                    _ => Err(error),
                };
            }
            // SAFETY: every bit pattern is a `signalfd_siginfo`, which is as large and aligned.
            let info = unsafe { &*info.as_ptr().cast::<libc::signalfd_siginfo>() };
            if let Some(overflow) = Overflow::from_signalfd(info) {
                return Ok(Some(overflow));
            }
        }
    }
}

impl AsFd for Queue {
    /// Readable while an overflow waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Sends the calling thread what the kernel module sends.
    fn overflow(signal: libc::c_int, code: i32, counters: u32) {
        // Signal number, error number, code, padding, then the word that holds the counters.
        let mut info = [0_i32; 32];
        (info[0], info[2], info[4]) = (signal, code, counters as i32);
        // SAFETY: the kernel reads as many bytes as its structure has, 128.
        let result = unsafe {
            libc::syscall(
                libc::SYS_rt_tgsigqueueinfo,
                libc::getpid(),
                libc::gettid(),
                signal,
                info.as_ptr(),
            )
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
    }

    #[test]
    fn a_handler_gets_overflows_and_nothing_else() {
        static SEEN: AtomicUsize = AtomicUsize::new(0);
        fn note(sample: &Sample) {
            assert!(sample.ip != 0);
            SEEN.fetch_add(1 + sample.overflow.counters as usize, Ordering::Relaxed);
        }
        set_handler(libc::SIGUSR1, note).unwrap();
        overflow(libc::SIGUSR1, SIGNAL_CODE, 0b101);
        assert_eq!(SEEN.load(Ordering::Relaxed), 6);
        overflow(libc::SIGUSR1, libc::SI_QUEUE, 0b101);
        assert_eq!(SEEN.load(Ordering::Relaxed), 6);
        assert!(set_handler(libc::SIGKILL, note).is_err() && set_handler(-1, note).is_err());
    }

    #[test]
    fn a_queue_holds_overflows_until_they_are_taken() {
        let queue = Queue::new(libc::SIGUSR2).unwrap();
        assert_eq!(queue.take().unwrap(), None);
        overflow(libc::SIGUSR2, libc::SI_QUEUE, 1);
        assert_eq!(queue.take().unwrap(), None);
        overflow(libc::SIGUSR2, SIGNAL_CODE, 0b110);
        let counters: Vec<_> = queue.take().unwrap().unwrap().counters().collect();
        assert_eq!(counters, [1, 2]);
    }

    #[test]
    fn resuming_nothing_is_an_error_and_leaves_errno() {
        // SAFETY: the calling thread's `errno`.
        let errno = unsafe { &mut *libc::__errno_location() };
        *errno = 42;
        assert_eq!(Resumer(-1).resume().unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert_eq!(*errno, 42);
    }
}
