// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that a signal which cannot be sent, or is merged with another one, does not end counting.
#![expect(unsafe_code, reason = "signal handlers")]

use std::fs::File;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise, sigprocmask};
use shared_abi::ioctl::{IOC_RESUME, SIGNAL_CODE};
use vm_tests::raw::{Argument, ioctl, open_device};
use vm_tests::region::Region;
use vm_tests::stats::until_threads;
use vm_tests::tally::Tally;

use crate::Test;
use crate::device::{self, sampling};
use vm_tests::users::{NOBODY, admit, as_user};

const PERIOD: u64 = 50_000;
const WORK: Region = Region { first: 500_000, second: 1 };

/// Runs all checks.
pub fn run(tally: &mut Tally) -> Result<()> {
    admit(0o660)?;
    let checks: &[Test] = &[
        ("counting goes on when no signal may be queued", no_signal_may_be_queued),
        ("counting goes on when the same signal is pending", the_same_is_pending),
        ("counting goes on when a real-time signal is ignored", || is_ignored(libc::SIGRTMIN())),
        ("counting goes on when a standard signal is ignored", || is_ignored(libc::SIGUSR1)),
    ];
    for (name, check) in checks {
        let outcome = as_user(NOBODY, *check).and_then(|()| until_threads(0));
        tally.check(name, outcome.map_err(|error| format!("{error:#}")));
    }
    Ok(())
}

static DEVICE: OnceLock<File> = OnceLock::new();
static OVERFLOWS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a pointer to the signal's information.
    let code = unsafe { (*info).si_code };
    if let (SIGNAL_CODE, Some(device)) = (code, DEVICE.get()) {
        OVERFLOWS.fetch_add(1, Relaxed);
        ioctl(device, IOC_RESUME, Argument::Null).ok();
    }
}

/// Starts sampling, with a handler that lets the counters continue.
fn sample(signal: i32) -> Result<&'static File> {
    let device = DEVICE.get_or_init(|| open_device().expect("nobody may use the device"));
    // SAFETY: all-zero is a valid `sigaction`, and the handler has the signature that SA_SIGINFO
    // demands.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        ensure!(libc::sigaction(signal, &action, std::ptr::null_mut()) == 0, "sigaction");
    }
    device::create(device, 0).context("cannot create")?;
    Ok(device)
}

/// Checks that all of the work is counted from now on, and little more.
fn counts_on(device: &File) -> Result<()> {
    let before = device::read(device)?.counter[0];
    WORK.execute(&mut 0);
    let counted = device::read(device)?.counter[0] - before;
    let executed = WORK.instructions();
    // The instructions of a handler before it lets the counters continue are not counted.
    let is_complete = executed <= counted && counted < executed + executed / 10;
    ensure!(is_complete, "{counted} instructions counted, {executed} executed");
    Ok(())
}

fn no_signal_may_be_queued() -> Result<()> {
    let signal = libc::SIGRTMIN();
    let device = sample(signal)?;
    setrlimit(Resource::RLIMIT_SIGPENDING, 0, 0)?;
    device::control(device, sampling(PERIOD, signal)).context("cannot control")?;
    WORK.execute(&mut 0);
    counts_on(device)
}

fn is_ignored(signal: i32) -> Result<()> {
    let device = sample(signal)?;
    // SAFETY: the call sets no handler.
    ensure!(unsafe { libc::signal(signal, libc::SIG_IGN) } != libc::SIG_ERR, "signal");
    device::control(device, sampling(PERIOD, signal)).context("cannot control")?;
    for _ in 0..2 {
        WORK.execute(&mut 0);
        counts_on(device)?;
    }
    ensure!(OVERFLOWS.load(Relaxed) == 0, "an ignored signal was handled");
    Ok(())
}

fn the_same_is_pending() -> Result<()> {
    let device = sample(libc::SIGUSR1)?;
    let set = SigSet::from(Signal::SIGUSR1);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), None)?;
    raise(Signal::SIGUSR1)?;
    device::control(device, sampling(PERIOD, libc::SIGUSR1)).context("cannot control")?;
    WORK.execute(&mut 0);
    sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&set), None)?;
    counts_on(device)?;
    ensure!(OVERFLOWS.load(Relaxed) > 0, "no overflow was delivered");
    Ok(())
}
