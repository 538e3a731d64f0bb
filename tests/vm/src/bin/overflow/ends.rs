// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests threads, programs, processes, the module and CPUs that end in the middle of sampling.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use nix::errno::Errno;
use perfctr::Session;
use vm_tests::module;
use vm_tests::region::Region;
use vm_tests::round::{Shape, round};
use vm_tests::sampled;
use vm_tests::stats::until_threads;
use vm_tests::threads::{SELF, cpus, run_on, take_away_and_give_back};

use crate::Test;
use crate::competition::end_while_sampling;
use crate::report::throttled;

/// The tests of this module. The first one reloads the kernel's module, so this process must not
/// have had a session before.
pub const TESTS: &[Test] = &[
    ("the module goes when nobody samples", module_goes),
    ("a thread that ends while it samples leaves nothing", thread_ends),
    ("exec while sampling leaves nothing", || child_leaves_nothing(Child::Exec)),
    ("exit while sampling leaves nothing", || child_leaves_nothing(Child::Exit)),
    ("kill while sampling leaves nothing", kill_leaves_nothing),
    ("the module stays while a thread samples", module_stays),
    ("CPUs come and go while threads sample", cpus_come_and_go),
];

/// What a child process does while it samples.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Child {
    /// Executes another program.
    Exec,
    /// Exits.
    Exit,
    /// Prints that it is ready, and executes a loop.
    Spin,
}

impl Child {
    fn command(self) -> Result<Command> {
        let mut command = Command::new("/proc/self/exe");
        let name = self.to_possible_value().context("every child has a name")?;
        command.arg("--child").arg(name.get_name());
        Ok(command)
    }

    /// Does what the child process has to do.
    pub fn run(self) -> Result<ExitCode> {
        sampled::handle()?;
        let mut session = sampled::open()?;
        Shape::new(2, 1_000).start(&mut session)?;
        match self {
            Self::Exec => Err(Command::new("/bin/true").exec().into()),
            Self::Exit => {
                std::mem::forget(session);
                Ok(ExitCode::SUCCESS)
            }
            Self::Spin => {
                println!("ready");
                std::io::stdout().flush()?;
                loop {
                    Region { first: 1_000, second: 1_000 }.execute(&mut 0);
                }
            }
        }
    }
}

/// Samples, and checks every overflow.
fn all_is_well(session: &mut Session) -> Result<()> {
    let region = Region { first: 50_000, second: 50_000 };
    let put_off = throttled(session, &cpus()?);
    let overflows = round(session, &Shape::new(1, 1_000), region)?.overflows();
    let put_off = throttled(session, &cpus()?).wrapping_sub(put_off);
    ensure!(
        overflows.are_exact(),
        "overflows are not what the counts say: {overflows:?}, {put_off} loads put off"
    );
    ensure!(overflows.signalled >= 200, "only {overflows:?}");
    Ok(())
}

fn thread_ends() -> Result<()> {
    let mut session = sampled::open()?;
    thread::scope(|scope| scope.spawn(end_while_sampling).join().expect("it does not panic"))?;
    until_threads(1)?;
    all_is_well(&mut session)
}

fn child_leaves_nothing(child: Child) -> Result<()> {
    let mut session = sampled::open()?;
    let status = child.command()?.status()?;
    ensure!(status.success(), "the child has failed: {status}");
    until_threads(1)?;
    all_is_well(&mut session)
}

fn kill_leaves_nothing() -> Result<()> {
    let mut session = sampled::open()?;
    for _ in 0..5 {
        let mut child = Child::Spin.command()?.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().context("it was asked for")?;
        BufReader::new(output).read_line(&mut line)?;
        thread::sleep(Duration::from_millis(5));
        child.kill()?;
        child.wait()?;
        until_threads(1)?;
    }
    all_is_well(&mut session)
}

fn module_stays() -> Result<()> {
    let mut session = sampled::open()?;
    Shape::new(0, 1_000).start(&mut session)?;
    Region { first: 5_000, second: 5_000 }.execute(&mut 0);
    let refusal = module::unload();
    session.stop()?;
    ensure!(refusal == Err(Errno::EAGAIN), "unloading gave {refusal:?}");
    all_is_well(&mut session)
}

/// Checks that the module can be unloaded after a thread has ended with an armed counter.
fn module_goes() -> Result<()> {
    let status = Child::Exit.command()?.status()?;
    ensure!(status.success(), "the child has failed: {status}");
    module::unload_when_idle()?;
    module::load()?;
    let mut session = sampled::open()?;
    all_is_well(&mut session)
}

/// Takes each CPU offline and brings it back while threads sample there, and checks that overflows
/// are signalled afterwards.
fn cpus_come_and_go() -> Result<()> {
    let cpus = cpus()?;
    ensure!(cpus.len() > 1, "there is only one CPU");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let sampling = || -> Result<()> {
            let mut session = sampled::open()?;
            while !done.load(Ordering::Relaxed) {
                all_is_well(&mut session)?;
            }
            Ok(())
        };
        let threads: Vec<_> = cpus.iter().map(|_| scope.spawn(sampling)).collect();
        let gone = take_away_and_give_back(&cpus[1..], 2);
        done.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))?;
        Ok::<_, anyhow::Error>(gone?)
    })?;
    let mut session = sampled::open()?;
    for &cpu in &cpus {
        run_on(SELF, &[cpu])?;
        all_is_well(&mut session).with_context(|| format!("on CPU {cpu}"))?;
    }
    Ok(run_on(SELF, &cpus)?)
}
