// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that counting on whole CPUs belongs to one descriptor at a time.

use std::fs::File;
use std::io::{Read, Write, pipe};
use std::sync::atomic::Ordering::SeqCst;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::unistd::alarm;
use shared_abi::CounterConfig;
use shared_abi::ioctl::{CpuState, IOC_CPU_CONTROL, IOC_CPU_READ, IOC_CPU_START, IOC_CPU_STOP};
use vm_tests::raw::{Argument, Refusal, ioctl, open_device};
use vm_tests::stats::until_threads;
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, run_on, wait_for_rest};
use vm_tests::witness::Witness;

use crate::Test;
use crate::device::{self, USER, counting};
use vm_tests::shared;
use vm_tests::users::{
    Child, NOBODY, admit, as_user, become_user, give_up_capabilities, wait_until,
};

/// Sets what CPU 0 counts, and starts. Returns the first refusal of these two requests, if there is
/// one.
pub fn start(device: &File, counters: &[CounterConfig]) -> Result<(), Refusal> {
    let mut state = CpuState { control: counting(counters), ..CpuState::default() };
    ioctl(device, IOC_CPU_CONTROL, Argument::of(&mut state))?;
    ioctl(device, IOC_CPU_START, Argument::Null)
}

/// Runs all checks.
pub fn run(tally: &mut Tally) -> Result<()> {
    admit(0o660)?;
    let checks: &[Test] = &[
        ("whole CPUs stop with who has started them", stops_with_owner),
        ("whole CPUs stop when their descriptor is closed", stops_with_descriptor),
        ("a sleeping thread does not keep whole CPUs from counting", sleeper),
        ("a thread that wakes where a whole CPU counts is told so", awakes),
        ("reserved fields of a CPU's control are refused", reserved),
    ];
    for (name, check) in checks {
        let outcome = check().and_then(|()| until_threads(0));
        // If a failed check has left CPUs counting, the other checks must not fail because of that.
        ioctl(&open_device()?, IOC_CPU_STOP, Argument::Null).ok();
        tally.check(name, outcome.map_err(|error| format!("{error:#}")));
    }
    Ok(())
}

/// Checks that a user can count, and exactly.
fn users_count() -> Result<()> {
    as_user(NOBODY, || Witness::new()?.unchanged().map_err(anyhow::Error::msg))
}

fn stops_with_owner() -> Result<()> {
    let words = shared::words()?;
    let owner = Child::fork(|| {
        start(&open_device()?, &[USER]).context("cannot start")?;
        words[0].store(1, SeqCst);
        loop {
            sleep(Duration::from_secs(1));
        }
    })?;
    wait_until(|| words[0].load(SeqCst) == 1, "CPUs to count")?;
    owner.kill()?;
    users_count()
}

fn stops_with_descriptor() -> Result<()> {
    let device = open_device()?;
    start(&device, &[USER]).context("cannot start")?;
    drop(device);
    users_count()
}

fn sleeper() -> Result<()> {
    let words = shared::words()?;
    let sleeper = Child::fork(|| {
        become_user(NOBODY)?;
        let device = open_device()?;
        device::create(&device, 0)?;
        device::control(&device, counting(&[USER]))?;
        words[0].store(1, SeqCst);
        loop {
            sleep(Duration::from_secs(1));
        }
    })?;
    let outcome = wait_until(|| words[0].load(SeqCst) == 1, "a thread to count").and_then(|()| {
        let device = open_device()?;
        start(&device, &[USER]).context("the administrator cannot start")?;
        let mut state = CpuState::default();
        ioctl(&device, IOC_CPU_READ, Argument::of(&mut state)).context("cannot read")?;
        ensure!(state.sums.tsc > 0, "CPU 0 counts nothing");
        ioctl(&device, IOC_CPU_STOP, Argument::Null).context("cannot stop")?;
        Ok(())
    });
    sleeper.kill()?;
    outcome
}

/// Nothing but the start itself changes what is loaded on the CPU: the thread counts what the CPU
/// counts, and has the same user, so that both have one page.
fn awakes() -> Result<()> {
    let words = shared::words()?;
    let (mut sleeps, mut wakes) = pipe()?;
    let sleeper = Child::fork(|| {
        give_up_capabilities()?;
        run_on(SELF, &[0])?;
        let device = open_device()?;
        device::create(&device, 0)?;
        device::control(&device, counting(&[USER]))?;
        words[0].store(1, SeqCst);
        sleeps.read_exact(&mut [0])?;
        let refused = |who| {
            let sums = device::read(&device);
            ensure!(sums == Err(Refusal::EBUSY), "{who} reads {sums:?}");
            Ok(())
        };
        refused("it")?;
        Child::fork(|| {
            // A read that does not end must not keep the whole test waiting.
            alarm::set(READ_SECONDS_MAX);
            refused("another process that has the descriptor")
        })?
        .join()
    })?;
    let outcome = wait_until(|| words[0].load(SeqCst) == 1, "a thread to count").and_then(|()| {
        wait_for_rest(&sleeper.pid.to_string())?;
        let device = open_device()?;
        start(&device, &[USER]).context("the administrator cannot start")?;
        wakes.write_all(&[0])?;
        Ok(device)
    });
    match outcome {
        Ok(_counted) => sleeper.join(),
        Err(error) => sleeper.kill().and(Err(error)),
    }
}

/// How long a read of another thread's sums may take.
const READ_SECONDS_MAX: u32 = 20;

fn reserved() -> Result<()> {
    let device = open_device()?;
    let control = counting(&[USER]);
    let mut bad = CpuState { reserved: 1, control, ..CpuState::default() };
    for request in [IOC_CPU_CONTROL, IOC_CPU_READ] {
        let answer = ioctl(&device, request, Argument::of(&mut bad));
        equal(answer, Err(Refusal::EINVAL)).map_err(anyhow::Error::msg)?;
    }
    Ok(())
}
