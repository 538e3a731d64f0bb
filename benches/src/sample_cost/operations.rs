// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Measures what single operations cost in a guest of KVM as a whole: an exit that switches no
//! vCPU, a counter read by RDPMC, and having another event counted.

use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_BRANCH_INSTRUCTIONS, PERF_COUNT_HW_INSTRUCTIONS,
};
use perfctr::rdpmc::Hardware;
use perfctr::{Event, Provider, Session};
use shared_abi::read::Counters;
use vm_tests::perf::{self, Whose, generic};
use vm_tests::threads::SELF;
use vm_tests::turns::FIRST_TURNS;
use vm_tests::work::Work;

use super::stack::{self, Mapped, Stack};
use super::{difference, print};

/// The number of operations of each kind, by which the sum is divided.
const TIMES: u64 = 5_000;
/// The folder that exists if the kernel has a PMU for perf.
const PMU: &str = "/sys/bus/event_source/devices/cpu";
/// The file with the registers of the first CPU, by their numbers.
const REGISTERS: &str = "/dev/cpu/0/msr";
/// Where the kernel says whose the CPU is.
const CPU: &str = "/proc/cpuinfo";

/// A selector that perf takes last, and its values for user mode's instructions and branches,
/// enabled.
struct Selector {
    register: u64,
    values: [u64; 2],
}

/// The last of AMD's first four selectors.
const AMD: Selector = Selector { register: 0xc001_0003, values: [0x0041_00c0, 0x0041_00c2] };
/// The last selector of Intel's four general counters.
const INTEL: Selector = Selector { register: 0x189, values: [0x0041_00c0, 0x0041_00c4] };

/// Prints a line for each operation that there is here.
pub fn measure(module: bool) -> Result<()> {
    exits("nobody counts", stack::nothing)?;
    if module {
        exits("libperfctr, counting", stack::perfctr)?;
        rdpmc("libperfctr", stack::perfctr_mapped)?;
        let mut session = Session::open_with(Provider::Paravirt)?;
        let events = [Event::INSTRUCTIONS.user(), Event::BRANCHES.user()];
        operations("another event: libperfctr", |n| Ok(session.start(&events[n..=n])?))?;
    }
    if !Path::new(PMU).exists() {
        return Ok(());
    }
    exits("perf_event, counting", stack::perf_signals)?;
    let open = |event| perf::Event::open(generic(event), Whose::Thread(SELF), None);
    let events = [open(PERF_COUNT_HW_INSTRUCTIONS)?, open(PERF_COUNT_HW_BRANCH_INSTRUCTIONS)?];
    events[1].disable()?;
    operations("another event: perf_event", |n| {
        events[1 - n].disable()?;
        Ok(events[n].enable()?)
    })?;
    drop(events);
    if module {
        return Ok(());
    }
    rdpmc("perf_event", stack::perf_mapped)?;
    let registers = File::options().write(true).open(REGISTERS).context(REGISTERS)?;
    let is_intel = fs::read_to_string(CPU).context(CPU)?.contains("GenuineIntel");
    let Selector { register, values } = if is_intel { INTEL } else { AMD };
    let write = |value: u64| {
        registers.write_all_at(&value.to_ne_bytes(), register).context("writing a selector")
    };
    operations("another event: WRMSR of a selector", |n| write(values[n]))?;
    write(0)
}

/// Measures CPUID, which exits from the guest, for its host to answer.
fn exits(name: &str, stack: Stack) -> Result<()> {
    let mut outcome = Ok(());
    stack(0, &mut || {
        outcome = operations(&format!("an exit without a switch: {name}"), |_| {
            black_box(std::arch::x86_64::__cpuid(0));
            Ok(())
        });
    })?;
    outcome
}

/// Measures RDPMC of the counter that counts, in user mode.
fn rdpmc(name: &str, stack: Mapped) -> Result<()> {
    let mut outcome = Ok(());
    stack(&mut |index| {
        outcome = operations(&format!("RDPMC: {name}"), |_| {
            black_box(Hardware.counter(index));
            Ok(())
        });
    })?;
    outcome
}

/// Measures what one operation costs, which is called with 0 and 1 in turn, less an empty loop.
fn operations(name: &str, mut operation: impl FnMut(usize) -> Result<()>) -> Result<()> {
    let without = turns(|_| Ok(()))?;
    turns(&mut operation)?;
    let with = turns(operation)?;
    print(name, "", &difference(&with.per(TIMES), &without.per(TIMES)));
    Ok(())
}

fn turns(mut operation: impl FnMut(usize) -> Result<()>) -> Result<Work> {
    let mut all = |times| (0..times).try_for_each(|n| operation(black_box(n) as usize % 2));
    // What is executed only once is over by then.
    all(FIRST_TURNS)?;
    let before = Work::read();
    all(TIMES)?;
    Ok(Work::read() - before)
}
