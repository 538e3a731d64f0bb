// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests how one thread's counters end.

use std::thread;

use anyhow::{Context, Result, ensure};
use perfctr::{Event, Provider, Session};
use shared_abi::ioctl::{CONTROL_TSC, Control, Create, IOC_CONTROL, IOC_CREATE, IOC_READ, Sums};
use shared_abi::version::ABI_MAJOR;
use vm_tests::raw::{Argument, ioctl, open_device};
use vm_tests::stats::{threads, until_threads};
use vm_tests::witness::Witness;

/// A named test.
pub type Test = (&'static str, fn() -> Result<()>);

/// The tests of this module.
pub const TESTS: &[Test] = &[
    ("stop keeps the counts", stop_keeps_the_counts),
    ("resume goes on from the counts", resume_goes_on),
    ("a start that is refused leaves what is resumed", refused_start_is_not_resumed),
    ("drop leaves nothing", drop_leaves_nothing),
    ("thread exit leaves nothing", thread_exit_leaves_nothing),
    ("closing the descriptor does not stop", closing_does_not_stop),
    ("sums outlive their thread", sums_outlive_their_thread),
];

/// Checks a witness, and returns what is wrong as an error.
pub fn exact(witness: &Witness) -> Result<()> {
    witness.exact()
}

/// Runs something in a thread of its own.
pub fn elsewhere<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(test).join().expect("tests do not panic"))
}

fn counting() -> Result<Session> {
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[Event::INSTRUCTIONS.user()])?;
    Ok(session)
}

fn stop_keeps_the_counts() -> Result<()> {
    let mut session = counting()?;
    let running = session.read::<1>()?;
    session.stop()?;
    let (stopped, later) = (session.read::<1>()?, session.read::<1>()?);
    ensure!(stopped.counts[0] > running.counts[0], "{stopped:?} is not after {running:?}");
    ensure!(stopped.counts == later.counts && stopped.tsc == later.tsc, "{later:?} has changed");
    Ok(())
}

fn resume_goes_on() -> Result<()> {
    let mut session = counting()?;
    session.stop()?;
    let stopped = session.read::<1>()?;
    session.resume()?;
    let resumed = session.read::<1>()?;
    // Between the two counts there are only the end of one system call and the end of one read.
    let passed = resumed.counts[0].wrapping_sub(stopped.counts[0]);
    ensure!((1..10_000).contains(&passed), "{passed} instructions passed");
    Ok(())
}

/// Checks that a session whose new events are refused continues with its former events.
fn refused_start_is_not_resumed() -> Result<()> {
    /// A signal that does not exist.
    const NO_SIGNAL: i32 = 200;
    let mut session = counting()?;
    session.stop()?;
    let stopped = session.read::<1>()?;
    let refused = session.start_sampling(&[Event::BRANCHES.every(1_000), Event::CYCLES], NO_SIGNAL);
    ensure!(refused.is_err(), "a signal that does not exist is accepted");
    session.resume()?;
    let resumed = session.read::<1>()?;
    let passed = resumed.counts[0].wrapping_sub(stopped.counts[0]);
    ensure!((1..10_000).contains(&passed), "{passed} instructions passed");
    Ok(())
}

fn drop_leaves_nothing() -> Result<()> {
    let before = threads()?;
    let session = counting()?;
    until_threads(before + 1)?;
    drop(session);
    until_threads(before)
}

fn thread_exit_leaves_nothing() -> Result<()> {
    let before = threads()?;
    let witness = Witness::new()?;
    for _ in 0..50 {
        elsewhere(|| counting_descriptor().map(drop))?;
    }
    until_threads(before + 1)?;
    exact(&witness)
}

/// Checks that the thread keeps its counters without any descriptor, until it ends.
fn closing_does_not_stop() -> Result<()> {
    let before = threads()?;
    elsewhere(|| -> Result<()> {
        drop(counting_descriptor()?);
        until_threads(before + 1)
    })?;
    until_threads(before)
}

fn sums_outlive_their_thread() -> Result<()> {
    let before = threads()?;
    let device = elsewhere(counting_descriptor)?;
    until_threads(before)?;
    let (mut sums, mut later) = (Sums::default(), Sums::default());
    ioctl(&device, IOC_READ, Argument::of(&mut sums)).context("cannot read the sums")?;
    ioctl(&device, IOC_READ, Argument::of(&mut later)).context("cannot read the sums")?;
    ensure!(sums.tsc > 0 && sums == later, "{sums:?}, then {later:?}");
    Ok(())
}

/// Opens a descriptor of the calling thread's counters, which count the TSC.
fn counting_descriptor() -> Result<std::fs::File> {
    let device = open_device()?;
    let mut create = Create { abi_major: ABI_MAJOR.into(), ..Create::default() };
    ioctl(&device, IOC_CREATE, Argument::of(&mut create)).context("cannot create")?;
    let mut control = Control { flags: CONTROL_TSC, ..Control::default() };
    ioctl(&device, IOC_CONTROL, Argument::of(&mut control)).context("cannot control")?;
    Ok(device)
}

/// Opens and closes many sessions, and leaves some to the end of their thread.
pub fn many_sessions(cycles: u32) -> Result<()> {
    let before = threads()?;
    for cycle in 0..cycles {
        if cycle.is_multiple_of(8) {
            elsewhere(|| counting_descriptor().map(drop))?;
        } else {
            drop(counting()?);
        }
    }
    until_threads(before)
}
