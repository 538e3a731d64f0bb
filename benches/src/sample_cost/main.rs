// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Measures what a sample costs, and what counters cost a thread switch: everything that the
//! machine does for it in the guest and in the hypervisor, in whoever's code.
//!
//! Runs in the testbed on one CPU, with libperfctr and with perf events under Xen, with perf events
//! under Xen's own virtual PMU, and with perf events on plain Linux; `cargo xtask bench` makes one
//! table of it. On two vCPUs it measures switches of these. With the argument `operations` it
//! measures single operations only, with `host` and `beside-tenant` samples of the whole host, and
//! with `switches` what the driver's options cost a switch of vCPUs. With `tenant` it is the first
//! program of the tenant that is sampled. The emulator counts, so nothing that is measured has to
//! measure itself.

mod host;
mod operations;
mod stack;

use std::path::Path;
use std::thread::{self, sleep};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::getppid;
use vm_tests::region::Region;
use vm_tests::threads::cpus;
use vm_tests::turns::{self, FIRST_TURNS, SWITCHES_IN_TURN};
use vm_tests::work::{self, PerTime, Work};
use vm_tests::{module, users};

use stack::Stack;

const PERIOD: u64 = 100_003;
const SAMPLES: u64 = 500;
/// A period that is too long to end.
const NEVER: u64 = 1 << 30;
/// The number of attempts with counters, and without.
const ATTEMPTS: u64 = 24;
/// The number of system calls that do nothing.
const CALLS: u64 = 20_000;

fn main() -> Result<()> {
    let what = std::env::args().nth(1);
    check_tally()?;
    if what.as_deref() == Some(host::TENANT) {
        return host::tenant();
    }
    print!("{:<42}{:>9}", "", "told/due");
    Work::NAMES.iter().for_each(|name| print!("{name:>9}"));
    println!();
    // The kernel would slow the sampling down if it takes too much of an emulated CPU's time.
    std::fs::write("/proc/sys/kernel/perf_cpu_time_max_percent", "0")?;
    let module = has_module();
    match what.as_deref() {
        None => {}
        Some("operations") => return operations::measure(module),
        Some("host") => return host::measure(),
        Some("beside-tenant") => return host::beside_tenant(),
        Some("switches") => return host::switches(),
        Some(other) => bail!("{other:?} cannot be measured"),
    }
    if cpus()?.len() > 1 {
        if module {
            switch_vcpus("libperfctr", stack::perfctr)?;
        }
        return switch_vcpus("perf_event", stack::perf_signals);
    }
    if module {
        system_call("libperfctr", stack::perfctr_four)?;
        let taken = sample_thread("libperfctr, a signal for each", stack::perfctr)?;
        ensure!(taken == SAMPLES, "{taken} samples instead of {SAMPLES}");
        let taken = sample_thread("libperfctr, records in a ring", stack::perfctr_records)?;
        ensure!(taken == SAMPLES, "{taken} samples instead of {SAMPLES}");
        sample_each_instruction(
            "libperfctr, a record for each instruction",
            stack::perfctr_records,
        )?;
        switch("libperfctr", stack::perfctr)?;
        switch_bystanders()?;
        switch_users()?;
        switch_beside_module()?;
    }
    system_call("perf_event", stack::perf_four)?;
    let signals = sample_thread("perf_event, a signal for each", stack::perf_signals)?;
    let records = sample_thread("perf_event, records in memory", stack::perf_records)?;
    if module {
        // Linux' own perf accepts no period of 1.
        sample_each_instruction("perf_event, a record for each instruction", stack::perf_records)?;
    }
    ensure!(!module || [signals, records] == [SAMPLES; 2], "{signals} and {records} samples");
    // This is last, since the module stays while this program has had an event of perf's.
    switch("perf_event", stack::perf_signals)
}

/// Checks that the emulator counts this program's instructions exactly.
fn check_tally() -> Result<()> {
    let instructions = |iterations| {
        let region = Region { first: iterations, second: iterations };
        let spent = || {
            let before = Work::read();
            region.execute(&mut 0);
            (Work::read() - before).outside_ring0() - region.instructions()
        };
        // Some of the attempts are not interrupted.
        (0..100).map(|_| spent()).min()
    };
    let (short, long) = (instructions(1), instructions(10_000));
    ensure!(short == long, "the tally of instructions is not exact: {short:?} and {long:?}");
    Ok(())
}

/// Returns whether the driver's counters count here, for perf as well.
fn has_module() -> bool {
    Path::new("/dev/perfctr").exists()
}

/// Measures what a sample of this thread costs in addition to counting. Returns how many samples
/// came.
fn sample_thread(name: &str, stack: Stack) -> Result<u64> {
    // The table says how many samples the others lose.
    let least = if has_module() { SAMPLES } else { 1 };
    let execute = |period| execute(stack, period, samples_of_user_mode());
    sample(&format!("a sample: {name}"), least, execute)
}

/// Returns a region whose instructions are enough for all samples, and half a period more.
fn samples_of_user_mode() -> Region {
    // An iteration is two instructions.
    let half = (2 * SAMPLES + 1) * PERIOD / 8;
    Region { first: half, second: half }
}

/// Measures what a sample costs in addition to counting, where `execute` works while it samples
/// with a period, and returns what the machine did and the number of samples. There have to be at
/// least so many. Returns how many samples came.
fn sample(
    name: &str,
    least: u64,
    mut execute: impl FnMut(u64) -> Result<(Work, u64)>,
) -> Result<u64> {
    // The first time, memory and code are not mapped yet.
    execute(PERIOD).with_context(|| name.to_owned())?;
    let mut fewest = u64::MAX;
    let cost = median(|| {
        let (without, none) = execute(NEVER)?;
        let (with, samples) = execute(PERIOD)?;
        ensure!(none == 0, "{name}: {none} samples of a period that has not passed");
        ensure!(samples >= least, "{name}: {samples} samples, {least} expected at least");
        fewest = fewest.min(samples);
        Ok(difference(&with.per(samples), &without.per(samples)))
    })?;
    print(name, &format!("{fewest}/{SAMPLES}"), &cost);
    Ok(fewest)
}

/// Executes a region while something counts or samples it. Returns what the machine did, and the
/// number of samples.
fn execute(stack: Stack, period: u64, region: Region) -> Result<(Work, u64)> {
    let mut grown = Work::default();
    let taken = stack(period, &mut || {
        let before = Work::read();
        region.execute(&mut 0);
        grown = Work::read() - before;
    })?;
    Ok((grown, taken))
}

/// Measures what a sample costs if the period is a single instruction of user mode.
fn sample_each_instruction(name: &str, stack: Stack) -> Result<()> {
    let region = Region { first: SAMPLES / 4, second: SAMPLES / 4 };
    let execute = |period| execute(stack, period, region);
    execute(1).with_context(|| name.to_owned())?;
    let due = region.instructions();
    let cost = median(|| {
        let (without, _) = execute(NEVER)?;
        let (with, samples) = execute(1)?;
        // What is executed before the region and behind it is sampled, too.
        ensure!(samples >= due, "{name}: {samples} samples of {due} instructions");
        Ok(difference(&with.per(due), &without.per(due)))
    })?;
    print(&format!("a sample: {name}"), &format!("{due}/{due}"), &cost);
    Ok(())
}

/// Measures what a system call that does nothing costs a thread that counts user mode with four
/// counters, in addition to what it costs a thread without counters.
fn system_call(name: &str, stack: Stack) -> Result<()> {
    let execute = |stack: Stack| -> Result<Work> {
        let mut grown = Work::default();
        stack(0, &mut || {
            let calls = |calls| {
                for _ in 0..calls {
                    getppid();
                }
            };
            // What is executed only once is over by then.
            calls(FIRST_TURNS);
            let before = Work::read();
            calls(CALLS);
            grown = Work::read() - before;
        })?;
        Ok(grown)
    };
    sleep(module::UNWATCHED_AFTER);
    let without = execute(stack::nothing)?;
    let with = execute(stack)?;
    let name = format!("a null system call: {name}, 4 counters");
    print(&name, "", &difference(&with.per(CALLS), &without.per(CALLS)));
    Ok(())
}

/// Measures what a switch between two threads costs, in addition to one of threads without counters
/// when nobody has counters.
fn switch(name: &str, stack: Stack) -> Result<()> {
    for (what, period) in [("counting", 0), ("sampling", NEVER)] {
        let cost = beside_idle([stack::nothing; 2], || take_turns([stack; 2], period))?;
        print(&format!("a switch: {name}, {what}"), "", &cost);
    }
    Ok(())
}

/// Measures what a switch between threads without counters costs while their user's third thread
/// counts, and while it has counters that are stopped.
fn switch_bystanders() -> Result<()> {
    for (what, stack) in [("counts", stack::perfctr as Stack), ("has stopped", stack::stopped)] {
        let cost = beside_idle([stack::nothing; 2], || take_turns_beside(stack))?;
        print(&format!("a switch: none, a third thread {what}"), "", &cost);
    }
    Ok(())
}

/// Does [`take_turns`] with two threads without counters, while the calling thread has counters.
fn take_turns_beside(stack: Stack) -> Result<Vec<Work>> {
    let mut grown = Vec::new();
    stack(0, &mut || {
        // The third thread counts until it sleeps.
        sleep(module::UNWATCHED_AFTER);
        grown = thread::scope(|scope| {
            let turns = scope.spawn(|| take_turns([stack::nothing; 2], 0));
            turns.join().expect("no thread panics")
        })
        .expect("two threads can take turns");
    })?;
    Ok(grown)
}

/// Measures what a switch between threads of two users costs, in addition to one of such threads
/// when nobody has counters.
fn switch_users() -> Result<()> {
    users::admit(0o666)?;
    let idle = [stack::nothing, stack::nothing_of_another];
    for (what, other) in
        [("both", stack::perfctr_of_another as Stack), ("one", stack::nothing_of_another)]
    {
        let cost = beside_idle(idle, || take_turns([stack::perfctr, other], 0))?;
        print(&format!("a switch: two users, {what} counting"), "", &cost);
    }
    Ok(())
}

/// Measures what a switch costs of threads that take turns in this way, in addition to one of the
/// threads `idle`, which have no counters, when nobody has counters.
fn beside_idle(idle: [Stack; 2], take: impl FnMut() -> Result<Vec<Work>>) -> Result<PerTime> {
    median_with_and_without(take, || take_idle_turns(idle))
}

/// Measures what a switch of two vCPUs of one CPU costs whose threads count, in addition to one
/// when nobody has counters. Each is also a switch in the guest, to a vCPU's idle thread or from
/// it.
fn switch_vcpus(name: &str, stack: Stack) -> Result<()> {
    let cost = beside_idle([stack::nothing; 2], || take_turns([stack; 2], 0))?;
    let name = format!("a switch of vCPUs: {name}, counting");
    print(&name, "", &cost);
    Ok(())
}

/// Makes several attempts with counters, and as many without. Returns how much more a switch of the
/// median turn of the former costs than one of the latter, for each number.
///
/// Schedulers take one of several ways at each switch. Xen's ways differ by 1,500 instructions, and
/// Linux's by some hundreds. Each has one that it takes in most turns.
fn median_with_and_without(
    mut with: impl FnMut() -> Result<Vec<Work>>,
    mut without: impl FnMut() -> Result<Vec<Work>>,
) -> Result<PerTime> {
    let mut turns = [Vec::new(), Vec::new()];
    for _ in 0..ATTEMPTS {
        turns[0].extend(without()?);
        turns[1].extend(with()?);
    }
    let [without, with] = turns.map(|turns| median_switch(&turns));
    Ok(difference(&with, &without))
}

/// Returns what a switch of the median turn costs, for each number.
fn median_switch(turns: &[Work]) -> PerTime {
    let each: Vec<PerTime> = turns.iter().map(|turn| turn.per(SWITCHES_IN_TURN)).collect();
    median_of(&each)
}

/// Returns the median of each number.
fn median_of(all: &[PerTime]) -> PerTime {
    std::array::from_fn(|number| work::median(all.iter().map(|numbers| numbers[number]).collect()))
}

/// Compares several times, and returns the median of each number. What the guest or the hypervisor
/// does beside the program, for instance once a second, is in some of the comparisons only.
fn median(mut compare: impl FnMut() -> Result<PerTime>) -> Result<PerTime> {
    const COMPARISONS: usize = 7;
    let all = (0..COMPARISONS).map(|_| compare()).collect::<Result<Vec<_>>>()?;
    Ok(median_of(&all))
}

/// Measures what a switch costs when nobody has counters, in addition to one in a kernel without
/// the module.
fn switch_beside_module() -> Result<()> {
    let take = || take_idle_turns([stack::nothing; 2]);
    let cost = median_with_and_without(take, || {
        module::unload_when_idle()?;
        let without = take()?;
        module::load()?;
        Ok(without)
    })?;
    print("a switch: the module, nobody counts", "", &cost);
    Ok(())
}

/// Does [`take_turns`] when nobody has had counters for a while.
fn take_idle_turns(stacks: [Stack; 2]) -> Result<Vec<Work>> {
    sleep(module::UNWATCHED_AFTER);
    take_turns(stacks, 0)
}

/// Has two threads take turns, of which each executes its part in its stack.
fn take_turns(stacks: [Stack; 2], period: u64) -> Result<Vec<Work>> {
    let [here, there] =
        stacks.map(|stack| move |program: &mut dyn FnMut()| stack(period, program).map(drop));
    turns::take([&here, &there])
}

/// Returns by how much each number of one tally is more than the other's.
fn difference(with: &PerTime, without: &PerTime) -> PerTime {
    std::array::from_fn(|number| with[number] - without[number])
}

/// Prints one line of the table. `samples` says how many of the samples that were due have come.
fn print(name: &str, samples: &str, cost: &PerTime) {
    print!("{name:<42}{samples:>9}");
    for number in cost {
        // A sum with 0.0 is never printed as -0.0.
        print!("{:>9.1}", (number * 10.0).round() / 10.0 + 0.0);
    }
    println!();
}
