// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Runs a program while vCPUs are moved between physical CPUs at random, and prints what the host
//! did to them meanwhile. Fails if the host did nothing.

use std::ffi::OsString;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};
use clap::Parser;
use perfctr::{Event, Provider, Session};
use shared_abi::sync::Ordering::Relaxed;
use vm_tests::disturb;
use vm_tests::host::host;
use vm_tests::threads::{SELF, cpus, run_on};

/// Runs a program on vCPUs that are moved between physical CPUs.
#[derive(Debug, Parser)]
struct Options {
    /// Physical CPUs that the vCPUs are moved between.
    #[arg(long, default_value_t = 2)]
    pcpus: u32,
    /// Seed of all random sequences.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let host = host()?;
    let cpus = cpus()?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    show(&mut session, &cpus)?;
    let before = host_did(&session, &cpus)?;
    let stop = AtomicBool::new(false);
    let status = thread::scope(|scope| {
        let (host, cpus, stop) = (&*host, &cpus, &stop);
        scope.spawn(move || disturb::vcpus(host, cpus, options.pcpus, options.seed, stop));
        let mut command = Command::new(&options.command[0]);
        let status = command.args(&options.command[1..]).status();
        stop.store(true, Ordering::Relaxed);
        status
    });
    let status = status.with_context(|| format!("cannot run {:?}", options.command[0]))?;
    let after = host_did(&session, &cpus)?;
    let (switches, migrations) = (after.0 - before.0, after.1 - before.1);
    println!("the host switched vCPUs in {switches} times, {migrations} of them elsewhere");
    let is_good = status.success() && switches > 0 && migrations > 0;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Registers this user's pages on every vCPU, whatever the program counts with. They stay
/// registered, so that they show what the host does.
fn show(session: &mut Session, cpus: &[usize]) -> Result<()> {
    session.start(&[Event::INSTRUCTIONS.user()])?;
    for &cpu in cpus {
        run_on(SELF, &[cpu])?;
    }
    Ok(run_on(SELF, cpus)?)
}

/// Returns how often all vCPUs were switched in, and how often on another physical CPU than before.
fn host_did(session: &Session, cpus: &[usize]) -> Result<(u64, u64)> {
    let mut sum = (0, 0);
    for &cpu in cpus {
        let page = session.vcpu_page(cpu as u32).context("the vCPU has no page")?;
        sum.0 += page.switches.load(Relaxed);
        sum.1 += page.migrations.load(Relaxed);
    }
    Ok(sum)
}
