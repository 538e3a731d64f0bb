// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests how processes begin and end.
#![expect(unsafe_code, reason = "fork and RDPMC are what is tested")]

use std::arch::asm;
use std::io::{BufRead, BufReader, Write};
use std::mem::forget;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use perfctr::{Error, Event, Provider, Session};
use vm_tests::stats::{threads, until_threads};
use vm_tests::witness::Witness;

use crate::ends::{Test, exact};

/// The tests of this module.
pub const TESTS: &[Test] = &[
    ("a forked child is told so", a_forked_child_is_told_so),
    ("a forked child opens its own session", a_forked_child_opens_its_own),
    ("a forked child's drop leaves the parent alone", a_forked_childs_drop_is_harmless),
    ("exec leaves nothing", || leaves_nothing(Child::Exec)),
    ("exit leaves nothing", || leaves_nothing(Child::Exit)),
    ("exit of the main thread alone leaves nothing", || leaves_nothing(Child::ThreadsExit)),
    ("kill leaves nothing", kill_leaves_nothing),
];

/// What a child process does with an open session.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Child {
    /// Executes another program.
    Exec,
    /// Exits.
    Exit,
    /// Exits while several threads count.
    ThreadsExit,
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
    pub fn run(self) -> ExitCode {
        match self.try_run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        }
    }

    fn try_run(self) -> Result<()> {
        let session = counting()?;
        match self {
            Self::Exec => Err(Command::new("/bin/true").exec().into()),
            Self::Exit => {
                forget(session);
                Ok(())
            }
            Self::ThreadsExit => {
                for _ in 0..8 {
                    std::thread::spawn(|| {
                        let _session = counting();
                        spin()
                    });
                }
                std::thread::sleep(std::time::Duration::from_millis(50));
                forget(session);
                Ok(())
            }
            Self::Spin => {
                println!("ready");
                std::io::stdout().flush()?;
                spin()
            }
        }
    }
}

fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

fn counting() -> Result<Session> {
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[Event::INSTRUCTIONS.user()])?;
    Ok(session)
}

/// Runs `child` in a forked process, which exits with its answer and does nothing else.
fn in_child(child: impl FnOnce() -> bool) -> Result<()> {
    // SAFETY: no other thread of this program runs now, so the child may do anything.
    match unsafe { fork()? } {
        ForkResult::Child => {
            let code = if child() { 0 } else { 1 };
            // SAFETY: this ends the process at once, as a child must that shares its parent's
            // buffers.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => Ok(()),
            status => bail!("the child found something else: {status:?}"),
        },
    }
}

fn a_forked_child_is_told_so() -> Result<()> {
    let witness = Witness::new()?;
    let session = witness.session();
    in_child(|| {
        matches!(session.read::<1>(), Err(Error::Forked))
            && session.thread_page().is_none()
            && session.vcpu_page(0).is_none()
    })?;
    exact(&witness)
}

/// Checks a guest whose kernel decides who may execute RDPMC: a process without pages of its own
/// may not. This also holds if its address space began as a copy of one with pages.
pub fn a_forked_child_reads_no_counter() -> Result<()> {
    let session = counting()?;
    ensure!(session.read::<1>()?.direct, "the parent itself reads nothing directly");
    // SAFETY: no other thread of this program runs now, so the child may do anything.
    let status = match unsafe { fork()? } {
        ForkResult::Child => {
            // SAFETY: as in `in_child`. RDPMC changes two registers, or faults. The library's own
            // RDPMC would survive that.
            unsafe {
                asm!("rdpmc", in("ecx") 0, out("eax") _, out("edx") _);
                libc::_exit(0)
            }
        }
        ForkResult::Parent { child } => waitpid(child, None)?,
    };
    let refused = matches!(status, WaitStatus::Signaled(_, Signal::SIGSEGV, _));
    ensure!(refused, "the child ended so: {status:?}");
    ensure!(session.read::<1>()?.direct, "the parent reads nothing directly any more");
    Ok(())
}

fn a_forked_child_opens_its_own() -> Result<()> {
    let before = threads()?;
    let witness = Witness::new()?;
    in_child(|| Witness::new().is_ok_and(|own| own.unchanged().is_ok()))?;
    exact(&witness)?;
    until_threads(before + 1)
}

fn a_forked_childs_drop_is_harmless() -> Result<()> {
    let mut session = Some(counting()?);
    in_child(|| {
        drop(session.take());
        true
    })?;
    let session = session.context("the parent's session is still there")?;
    let (earlier, later) = (session.read::<1>()?, session.read::<1>()?);
    ensure!(later.counts[0] > earlier.counts[0], "the parent's counters have stopped");
    Ok(())
}

fn leaves_nothing(child: Child) -> Result<()> {
    let before = threads()?;
    let witness = Witness::new()?;
    let status = child.command()?.status()?;
    ensure!(status.success(), "the child has failed: {status}");
    until_threads(before + 1)?;
    exact(&witness)
}

fn kill_leaves_nothing() -> Result<()> {
    let before = threads()?;
    let witness = Witness::new()?;
    for _ in 0..10 {
        let mut child = Child::Spin.command()?.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().context("it was asked for")?;
        BufReader::new(output).read_line(&mut line)?;
        let counted = until_threads(before + 2);
        child.kill()?;
        child.wait()?;
        counted?;
        until_threads(before + 1)?;
    }
    exact(&witness)
}
