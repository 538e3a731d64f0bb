// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Measures how the costs of counters grow with the number of vCPUs, threads, users and counters.
//!
//! Each line `growth DIMENSION NUMBER | OPERATION | VALUE` is one measurement. The program judges
//! nothing, since it knows one size of the machine only; `cargo xtask bench growth` and the suite
//! `scale` collect the lines of several boots.
//!
//! The machine has one physical CPU, whose emulator counts everything that is executed
//! ([`vm_tests::work`]).

mod counted;
mod memory;
mod mutexes;
mod operations;
mod sleepers;

use std::fs;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use nix::sys::resource::{Resource, setrlimit};
use perfctr::Event;
use vm_tests::threads::cpus;
use vm_tests::users;

use crate::operations::Operations;
use crate::sleepers::Sleepers;

/// The numbers of threads that have counters meanwhile.
const THREADS: [usize; 4] = [8, 100, 1_000, 10_000];
/// The numbers of users that have counters meanwhile.
const USERS: [usize; 4] = [1, 4, 16, 64];
/// The counters of one thread, of which the first ones are used. Two of them are fixed ones.
const COUNTERS: [Event; 6] = [
    Event::INSTRUCTIONS.user(),
    Event::CYCLES.user(),
    Event::BRANCHES.user(),
    Event::BRANCHES.user(),
    Event::BRANCHES.user(),
    Event::BRANCHES.user(),
];
/// The numbers of them that are used.
const NUMBERS_OF_COUNTERS: [usize; 4] = [1, 2, 4, 6];
/// The threads that count beside everything that is not about threads.
const THREADS_BESIDE: usize = 8;
/// More descriptors than threads.
const DESCRIPTORS: u64 = 20_000;
/// More threads than the kernel allows by default in a machine with little memory.
const THREADS_MAX: &str = "40000";

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dimension {
    /// The vCPUs that this machine has.
    Vcpus,
    /// Threads that have counters.
    Threads,
    /// Users that have counters.
    Users,
    /// Counters of a thread.
    Counters,
}

/// Measures costs, and prints a line for each.
#[derive(Debug, Parser)]
struct Options {
    /// What grows.
    #[arg(required = true)]
    dimensions: Vec<Dimension>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, DESCRIPTORS)?;
    fs::write("/proc/sys/kernel/threads-max", THREADS_MAX)?;
    users::admit(0o666)?;
    operations::check_tally()?;
    for dimension in options.dimensions {
        match dimension {
            Dimension::Vcpus => by_vcpus()?,
            Dimension::Threads => by_threads()?,
            Dimension::Users => by_users()?,
            Dimension::Counters => by_counters()?,
        }
    }
    Ok(())
}

/// A line's dimension and number.
#[derive(Clone, Copy, Debug)]
pub struct At(&'static str, usize);

impl At {
    /// Prints a line.
    pub fn print(self, operation: &str, value: f64) {
        let Self(dimension, number) = self;
        println!("growth {dimension} {number} | {operation} | {value:.2}");
    }
}

fn by_vcpus() -> Result<()> {
    let cpus = cpus()?;
    let at = At("vcpus", cpus.len());
    memory::measure(at)?;
    let sleepers = Sleepers::start(THREADS_BESIDE, sleepers::all_root)?;
    Operations { at, events: &COUNTERS[..1] }.measure()?;
    counted::mutexes(at, "of a user with other counters")?;
    counted::interrupts(at)?;
    operations::at_once(at, &cpus)?;
    sleepers.end()?;
    counted::mutexes(at, "of a user without other counters")
}

fn by_threads() -> Result<()> {
    for number in THREADS {
        let at = At("threads", number);
        let sleepers = Sleepers::start(number, sleepers::all_root)?;
        Operations { at, events: &COUNTERS[..1] }.measure()?;
        counted::mutexes(at, "of a user with other counters")?;
        counted::interrupts(at)?;
        sleepers.end()?;
    }
    Ok(())
}

fn by_users() -> Result<()> {
    for number in USERS {
        let at = At("users", number);
        // One thread is root's, as this process is, and the others have a user each.
        let sleepers = Sleepers::start(number, sleepers::each_its_own)?;
        let operations = Operations { at, events: &COUNTERS[..1] };
        operations.measure()?;
        operations.switch_users()?;
        counted::mutexes(at, "of a user with other counters")?;
        sleepers.end()?;
    }
    Ok(())
}

fn by_counters() -> Result<()> {
    let sleepers = Sleepers::start(THREADS_BESIDE, sleepers::all_root)?;
    for number in NUMBERS_OF_COUNTERS {
        Operations { at: At("counters", number), events: &COUNTERS[..number] }.measure()?;
    }
    sleepers.end()
}
