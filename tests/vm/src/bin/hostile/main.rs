// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs programs of hostile users that attack the kernel, the administrator, and each other.
//!
//! Each check says what must hold whatever they do: the kernel keeps running, numbers are right or
//! refused, and nothing is left behind.

mod abi;
mod cpu_wide;
mod device;
mod owners;
mod policy;
mod programs;
mod ptrace;
mod shown;
mod signals;
mod tenant;
mod tracee;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::{Parser, Subcommand};
use vm_tests::module;
use vm_tests::region;
use vm_tests::tally::Tally;
use vm_tests::toolstack::Kind;

/// Tests what hostile users can do.
#[derive(Debug, Parser)]
struct Options {
    /// Only checks of these kinds.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// What to do as a program that a test executes.
    #[command(subcommand)]
    role: Option<Role>,
}

/// A program that a test executes.
#[derive(Clone, Debug, Subcommand)]
enum Role {
    /// Does what a tracee does when it continues.
    Act {
        /// What it does.
        act: tracee::Act,
        /// The descriptor of its counters.
        device: i32,
        /// Another descriptor.
        spare: i32,
    },
    /// Executes a region, as a program with more rights than the user who executes it.
    Work,
    /// Does so when it is told to, as a program that executes beside a user's.
    WorkWhenTold,
    /// Does so for the kernel, which starts it when a process aborts, and says where.
    Collect,
    /// Reads all counters without permission.
    Rdpmc,
    /// Creates a tenant of Xen in which users do all this.
    Control {
        /// How it is virtualised.
        kind: Kind,
    },
    /// Is the first program of this tenant.
    Tenant,
}

/// A named test.
type Test = (&'static str, fn() -> Result<()>);

/// A kind of checks.
type Check = (&'static str, fn(&mut Tally) -> Result<()>);

const CHECKS: &[Check] = &[
    ("policy", policy::run),
    ("users", policy::users),
    ("programs", programs::run),
    ("shown", shown::run),
    ("signals", signals::run),
    ("cpu-wide", cpu_wide::run),
    ("abi", abi::run),
    ("ptrace", ptrace::run),
    ("frozen", ptrace::frozen),
    ("owners", owners::run),
];

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    match options.role {
        Some(Role::Act { act, device, spare }) => tracee::act_as_program(act, device, spare),
        Some(Role::Work) => programs::work(),
        Some(Role::WorkWhenTold) => shown::work_when_told()?,
        Some(Role::Collect) => {
            shown::collect()?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Role::Rdpmc) => {
            policy::say_counters();
            return Ok(ExitCode::SUCCESS);
        }
        Some(Role::Control { kind }) => return tenant::control(kind),
        Some(Role::Tenant) => return tenant::run(),
        None => {}
    }
    let wanted = |name| options.only.is_empty() || options.only.iter().any(|only| only == name);
    // This takes long, so it is done once, before the processes that need the overhead are forked.
    region::overhead()?;
    let mut tally = Tally::default();
    for &(name, check) in CHECKS {
        if wanted(name) {
            let start = Instant::now();
            make(name, check, &mut tally)?;
            println!("{name} took {:.1} s", start.elapsed().as_secs_f64());
        }
    }
    // After this check no module can be loaded any more.
    if wanted("lockdown") {
        policy::lockdown(&mut tally)?;
    }
    Ok(tally.finish())
}

/// Makes the checks of one kind, and then checks that nothing is left of them.
fn make(kind: &str, check: fn(&mut Tally) -> Result<()>, tally: &mut Tally) -> Result<()> {
    check(tally)?;
    let left = module::reload_unharmed().map_err(|error| format!("{error:#}"));
    tally.check(&format!("{kind}: nothing is left behind"), left);
    Ok(())
}
