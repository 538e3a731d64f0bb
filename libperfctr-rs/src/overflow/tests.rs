// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests with signals like those that the kernel module sends.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Sends the calling thread a signal like the kernel module's.
fn overflow(signal: libc::c_int, code: i32, counters: u32) {
    // The words are: signal number, error number, code, padding, and the bits of the counters.
    let mut info = [0_i32; 32];
    (info[0], info[2], info[4]) = (signal, code, counters as i32);
    // SAFETY: the kernel reads 128 bytes, the size of its structure and of `info`.
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
        SEEN.fetch_add(usize::from(sample.ip == 0) * 1_000, Ordering::Relaxed);
        SEEN.fetch_add(1 + sample.overflow.counters as usize, Ordering::Relaxed);
    }
    // SAFETY: `note` only uses an atomic, which is async-signal-safe.
    unsafe { set_handler(libc::SIGUSR1, note).unwrap() };
    overflow(libc::SIGUSR1, SIGNAL_CODE, 0b101);
    assert_eq!(SEEN.load(Ordering::Relaxed), 6);
    overflow(libc::SIGUSR1, libc::SI_QUEUE, 0b101);
    assert_eq!(SEEN.load(Ordering::Relaxed), 6);
    for signal in [libc::SIGKILL, -1] {
        // SAFETY: `note` only uses an atomic, which is async-signal-safe.
        assert!(unsafe { set_handler(signal, note) }.is_err());
    }
}

#[test]
fn counters_go_on_after_each_call_of_a_handler() {
    // SAFETY: the handler does nothing.
    unsafe { set_handler(libc::SIGPROF, |_| {}).unwrap() };
    for calls in 1..=3 {
        overflow(libc::SIGPROF, SIGNAL_CODE, 0b1);
        assert_eq!(RESUMED.get(), calls);
        overflow(libc::SIGPROF, libc::SI_QUEUE, 0b1);
        assert_eq!(RESUMED.get(), calls, "it was no overflow");
    }
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
fn a_queue_passes_over_signals_that_came_for_another_reason() {
    // Real-time signals queue. A standard signal would be lost while the first one is pending.
    let signal = libc::SIGRTMIN();
    let queue = Queue::new(signal).unwrap();
    let sent = [(libc::SI_QUEUE, 1), (SIGNAL_CODE, 2), (libc::SI_QUEUE, 4), (SIGNAL_CODE, 8)];
    for (code, counters) in sent {
        overflow(signal, code, counters);
    }
    let taken = [(); 3].map(|()| queue.take().unwrap().map(|overflow| overflow.counters));
    assert_eq!(taken, [Some(2), Some(8), None]);
}

#[test]
fn resuming_nothing_is_an_error_and_leaves_errno() {
    // SAFETY: the pointer leads to the calling thread's `errno`, which always exists.
    let errno = unsafe { &mut *libc::__errno_location() };
    *errno = 42;
    assert_eq!(go_on().unwrap_err().raw_os_error(), Some(libc::EBADF));
    assert_eq!(*errno, 42);
}

#[test]
fn a_ring_notes_samples_until_it_is_full() {
    let ring = Ring::new(libc::SIGRTMIN(), 2).unwrap();
    assert_eq!(ring.take(), None);
    for counters in 1..=3 {
        overflow(libc::SIGRTMIN(), SIGNAL_CODE, counters);
    }
    assert_eq!(ring.lost(), 1);
    overflow(libc::SIGRTMIN(), libc::SI_QUEUE, 7);
    for counters in 1..=2 {
        let sample = ring.take().unwrap();
        assert!(sample.overflow.counters == counters && sample.ip != 0);
    }
    assert_eq!((ring.take(), ring.lost()), (None, 1));
    overflow(libc::SIGRTMIN(), SIGNAL_CODE, 4);
    assert_eq!(ring.take().map(|sample| sample.overflow.counters), Some(4));
}

#[test]
fn a_thread_has_one_ring_and_signals_outlive_it() {
    let ring = Ring::new(libc::SIGRTMAX(), 0).unwrap();
    let second = Ring::new(libc::SIGRTMAX(), 1).unwrap_err();
    assert_eq!(second.raw_os_error(), Some(libc::EEXIST));
    overflow(libc::SIGRTMAX(), SIGNAL_CODE, 1);
    assert_eq!((ring.take(), ring.lost()), (None, 1));
    drop(ring);
    overflow(libc::SIGRTMAX(), SIGNAL_CODE, 1);
    assert!(Ring::new(libc::SIGRTMAX(), 1).is_ok());
}
