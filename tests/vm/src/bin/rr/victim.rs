// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Programs that write something else in each run, unless rr replays them.
#![expect(unsafe_code, reason = "a signal's handler, and its timer")]

use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;

use anyhow::Result;
use libc::{ITIMER_REAL, c_int, itimerval, setitimer, timeval};
use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Puts a block eight times into the machine code, one after the other.
///
/// In a replay rr finds the place of a signal, or of a switch of threads, by a breakpoint on that
/// instruction. rr sets the breakpoint some branches earlier, on AMD 10,000, and it stops the
/// program whenever the program reaches it. In a loop that has each instruction 64 times, that
/// happens less often.
macro_rules! eightfold {
    ($block:expr) => {{
        $block;
        $block;
        $block;
        $block;
        $block;
        $block;
        $block;
        $block;
    }};
}

/// The number of signals until the program ends, and the time between two, in which rr can handle
/// one. Unit of the latter: µs.
const SIGNALS: usize = 12;
const INTERVAL: i64 = 40_000;

/// The program's progress when each signal came.
static PROGRESS: AtomicU64 = AtomicU64::new(0);
static PLACES: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];
static SIGNALLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handler(_: c_int) {
    if let Some(place) = PLACES.get(SIGNALLED.fetch_add(1, Relaxed)) {
        place.store(PROGRESS.load(Relaxed), Relaxed);
    }
}

/// Executes branches until enough signals have come, and writes the progress at each.
pub fn signalled() -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(handler), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler only writes to atomic variables.
    unsafe { sigaction(Signal::SIGALRM, &action)? };
    let interval = timeval { tv_sec: 0, tv_usec: INTERVAL };
    let timer = itimerval { it_interval: interval, it_value: interval };
    // SAFETY: the timer can be read, and the pointer for the old one is null.
    Errno::result(unsafe { setitimer(ITIMER_REAL, &raw const timer, ptr::null_mut()) })?;
    let mut mixed = 1_u64;
    while SIGNALLED.load(Relaxed) < SIGNALS {
        eightfold!(eightfold!({
            mixed = mixed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // The number decides which branches are executed.
            if mixed >> 63 == 0 {
                mixed = black_box(mixed ^ 0x55);
            }
            PROGRESS.fetch_add(1, Relaxed);
        }));
    }
    let places: Vec<u64> = PLACES.iter().map(|place| place.load(Relaxed)).collect();
    println!("{places:?}, {mixed:#x}");
    Ok(())
}

const THREADS: u64 = 4;
/// The steps of each thread. It is a multiple of 64, since the loop's body has 64 of them.
const STEPS: u64 = 288_000;

/// Makes threads change one number without synchronisation, and writes the result.
pub fn racing() -> Result<()> {
    let (number, lost) = (&AtomicU64::new(1), &AtomicU64::new(0));
    thread::scope(|scope| {
        for id in 1..=THREADS {
            scope.spawn(move || {
                for _ in 0..STEPS / 64 {
                    eightfold!(eightfold!({
                        let old = number.load(Relaxed);
                        let new = black_box(old.wrapping_mul(31).wrapping_add(id));
                        if number.load(Relaxed) != old {
                            lost.fetch_add(1, Relaxed);
                        }
                        number.store(new, Relaxed);
                    }));
                }
            });
        }
    });
    println!(
        "{:#x}, changed {} times by another thread meanwhile",
        number.load(Relaxed),
        lost.load(Relaxed)
    );
    Ok(())
}
