// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests that samples of the guest's kernel name the instruction before which the counter
//! interrupted, even if interrupts were disabled. The emulator's tally says which instruction that
//! was (`testbed/qemu`).

use std::collections::BTreeMap;
use std::fs;
use std::thread::yield_now;

use anyhow::{Context, Result, ensure};
use perf_event_open_sys::bindings::PERF_COUNT_HW_INSTRUCTIONS;
use perfctr::rdpmc::Hardware;
use shared_abi::read::Counters;
use vm_tests::emulated::PLACE;
use vm_tests::perf::{Record, Sampling, Whose, generic};
use vm_tests::threads::{SELF, run_on};

use crate::{Machine, PCPUS};

const SAMPLES: u64 = 1_000;
/// The period. Unit: instructions of the kernel.
const PERIOD: u64 = 5_003;

/// Functions that the scheduler calls only with interrupts disabled, and the least number of
/// samples in them.
const MASKED: [&str; 6] = [
    "update_curr",
    "update_rq_clock",
    "pick_next_task_fair",
    "pick_next_entity",
    "put_prev_entity",
    "yield_task_fair",
];
const MASKED_MIN: u64 = 50;

/// The kernel's functions, by address.
struct Symbols(BTreeMap<u64, String>);

impl Symbols {
    fn read() -> Result<Self> {
        let text = fs::read_to_string("/proc/kallsyms")?;
        let symbol = |line: &str| {
            let mut words = line.split_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            Some((address, words.nth(1)?.to_owned()))
        };
        Ok(Self(text.lines().filter_map(symbol).collect()))
    }

    fn function(&self, ip: u64) -> &str {
        self.0.range(..=ip).next_back().map_or("nowhere", |(_, name)| name)
    }
}

/// Enters the scheduler until one period has passed. Returns the sample's place and the emulator's.
fn sample(period: u64) -> Result<[u64; 2]> {
    let mut instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
    instructions.set_exclude_kernel(0);
    instructions.set_exclude_user(1);
    instructions.set_disabled(1);
    let mut sampling = Sampling::open(instructions, period, Whose::Thread(SELF))?;
    // The ring's first page is mapped from now on.
    sampling.records();
    sampling.event.refresh(1)?;
    for _ in 0..period {
        yield_now();
        if let [record] = sampling.records()[..] {
            let Record::Sample { ip, .. } = record else {
                anyhow::bail!("{record:?} in place of a sample");
            };
            return Ok([ip, Hardware.counter(PLACE)]);
        }
    }
    anyhow::bail!("no sample in {period} system calls")
}

/// Runs the test on one vCPU, which stays on one physical CPU. For a tenant the control domain
/// makes sure of that.
pub fn of_the_kernel(machine: &Machine) -> Result<()> {
    let vcpu = *machine.cpus.first().context("no vCPU")?;
    run_on(SELF, &[vcpu])?;
    let keep = |cpus| match &machine.host {
        Some(host) => host.set_affinity(vcpu as u32, cpus),
        None => Ok(()),
    };
    keep(1)?;
    let outcome = all_places();
    keep((1 << PCPUS) - 1)?;
    run_on(SELF, &machine.cpus)?;
    outcome
}

fn all_places() -> Result<()> {
    let symbols = Symbols::read()?;
    let (mut compared, mut masked, mut wrong) = (0, 0, Vec::new());
    for n in 0..SAMPLES {
        let [ip, truth] = sample(PERIOD + n)?;
        if truth == 0 {
            continue;
        }
        compared += 1;
        masked += u64::from(MASKED.contains(&symbols.function(truth)));
        if ip != truth {
            wrong.push([ip, truth]);
        }
    }
    println!("{compared} samples of the kernel compared, {masked} with interrupts disabled");
    let of_wrong = wrong.first().map(|&[ip, truth]| {
        format!("{ip:x} in {}, not {truth:x} in {}", symbols.function(ip), symbols.function(truth))
    });
    ensure!(wrong.is_empty(), "{} of {compared} are elsewhere: {}", wrong.len(), of_wrong.unwrap());
    ensure!(compared >= SAMPLES * 9 / 10, "only {compared} could be compared");
    ensure!(masked >= MASKED_MIN, "only {masked} with interrupts disabled");
    Ok(())
}
