// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests programs that have more rights than their user. A user that counted before sees nothing of
//! them.

use std::fs::{self, File, Permissions};
use std::io::pipe;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, exit};

use anyhow::{Context, Result, ensure};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, Uid};
use shared_abi::ioctl::Control;
use vm_tests::raw::open_device;
use vm_tests::region::Region;
use vm_tests::stats::until_threads;
use vm_tests::tally::Tally;

use crate::Test;
use crate::device::{self, USER, counting, sampling};
use vm_tests::users::{Child, NOBODY, admit, as_user};

/// The region that a program executes in its own name.
pub const SECRET: Region = Region { first: 3_000_000, second: 1 };
/// More instructions than a program executes to prepare an execve.
pub const PREPARATION_MAX: u64 = 1_000_000;
const PERIOD: u64 = 100_000;

/// A program that belongs to root.
#[derive(Clone, Copy, Debug)]
struct Image {
    path: &'static str,
    mode: u32,
}

/// Whoever executes it becomes root.
const SET_UID: Image = Image { path: "/run/set-uid", mode: 0o4755 };
/// No user may look into a process that executes it.
const UNREADABLE: Image = Image { path: "/run/unreadable", mode: 0o711 };

/// Does what the programs do. The exit status says whether they are root.
pub fn work() -> ! {
    SECRET.execute(&mut 0);
    exit(if Uid::effective().is_root() { 0 } else { 1 })
}

/// Runs all checks.
pub fn run(tally: &mut Tally) -> Result<()> {
    admit(0o660)?;
    for image in [SET_UID, UNREADABLE] {
        fs::copy("/proc/self/exe", image.path)?;
        fs::set_permissions(image.path, Permissions::from_mode(image.mode))?;
    }
    let checks: &[Test] = &[
        ("a kept descriptor tells nothing of a set-uid program", || kept(SET_UID)),
        ("a kept descriptor tells nothing of an unreadable program", || kept(UNREADABLE)),
        ("a set-uid program gets no signal of who executed it", no_signal),
        ("what a tracer asked for at execve is not done in a set-uid program", asked_at_execve),
    ];
    for (name, check) in checks {
        let outcome = as_user(NOBODY, *check).and_then(|()| until_threads(0));
        tally.check(name, outcome.map_err(|error| format!("{error:#}")));
    }
    Ok(())
}

/// Starts a child that counts, does `before`, and executes the program.
fn execute(
    image: Image,
    device: File,
    control: Option<Control>,
    before: impl FnOnce(),
) -> Result<Child> {
    Child::fork(|| {
        fcntl(device.as_fd(), FcntlArg::F_SETFD(FdFlag::empty()))?;
        if let Some(control) = control {
            device::create(&device, 0).context("cannot create")?;
            device::control(&device, control).context("cannot control")?;
        }
        before();
        Err(Command::new(image.path).arg("work").exec().into())
    })
}

/// Waits for the program's end, and judges the numbers of the descriptor.
fn judge(child: Pid, device: &File, root: bool) -> Result<()> {
    let status = waitpid(child, None)?;
    let code = if root { 0 } else { 1 };
    ensure!(status == WaitStatus::Exited(child, code), "the program has ended so: {status:?}");
    let Ok(sums) = device::read(device) else { return Ok(()) };
    let counted = sums.counter[0];
    ensure!(counted < PREPARATION_MAX, "{counted} instructions of the program were told");
    Ok(())
}

fn kept(image: Image) -> Result<()> {
    let device = open_device()?;
    let child = execute(image, device.try_clone()?, Some(counting(&[USER])), || {})?;
    judge(child.pid, &device, image.mode == SET_UID.mode)
}

fn no_signal() -> Result<()> {
    let device = open_device()?;
    let control = sampling(PERIOD, libc::SIGUSR1);
    let child = execute(SET_UID, device.try_clone()?, Some(control), || {})?;
    judge(child.pid, &device, true)
}

/// Makes a tracer's request at the entry of execve. A tracer that has detached does not reduce the
/// program's rights.
fn asked_at_execve() -> Result<()> {
    let device = open_device()?;
    let (reader, writer) = pipe()?;
    let child = execute(SET_UID, device.try_clone()?, None, || {
        drop(std::io::Read::read(&mut &reader, &mut [0]));
    })?;
    let pid = child.pid;
    ptrace::seize(pid, Options::PTRACE_O_TRACESYSGOOD).context("cannot trace")?;
    ptrace::interrupt(pid)?;
    std::io::Write::write(&mut &writer, &[0])?;
    loop {
        let status = waitpid(pid, None)?;
        let at_call = matches!(status, WaitStatus::PtraceSyscall(_));
        if at_call && ptrace::getregs(pid)?.orig_rax == libc::SYS_execve as u64 {
            break;
        }
        ensure!(status.pid().is_some() && !matches!(status, WaitStatus::Exited(..)), "{status:?}");
        ptrace::syscall(pid, None)?;
    }
    device::create(&device, pid.as_raw() as u32).context("cannot create")?;
    device::control(&device, counting(&[USER])).context("cannot control")?;
    ptrace::detach(pid, None)?;
    judge(pid, &device, true)
}
