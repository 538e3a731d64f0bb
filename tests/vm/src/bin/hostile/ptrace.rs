// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests every kind of stop, with every request that a tracer may make there, and every act of the
//! tracee afterwards.

use std::fmt;
use std::fs::{self, File, Permissions};
use std::io::{self, Write, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, alarm, pause};
use shared_abi::ioctl::Sums;
use vm_tests::raw::{Refusal, open_device};
use vm_tests::stats::until_threads;
use vm_tests::tally::Tally;
use vm_tests::volume::pick;

use crate::device::{self, USER, counting};
use crate::tracee::{AT_ACT, AT_START, AT_STOP, Act, Plan, STOPS, Stop};
use vm_tests::shared;
use vm_tests::users::{Child, NOBODY, admit, as_user, wait_until};

/// A request of a tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Create,
    Control,
    Resume,
    Unlink,
}

/// The requests of a tracer at one stop, each with whether the tracee already has counters.
const WISHES: [(bool, &[Wish]); 10] = [
    (false, &[Wish::Create]),
    (false, &[Wish::Create, Wish::Control]),
    (false, &[Wish::Create, Wish::Control, Wish::Resume]),
    (false, &[Wish::Create, Wish::Control, Wish::Unlink]),
    (false, &[Wish::Create, Wish::Unlink]),
    (true, &[Wish::Control]),
    (true, &[Wish::Unlink]),
    (true, &[Wish::Resume]),
    (true, &[Wish::Control, Wish::Unlink]),
    (true, &[Wish::Unlink, Wish::Control]),
];

/// The lengths of the tracee's work, in loops of two instructions, if it counts to its end.
const SHORT: u64 = 1_000;
const LONG: u64 = 6_000;

/// The usual run tries one case in this many, which still covers each pair of a stop, requests and
/// an act.
const SHARE: usize = 10;

/// How long all cases of one kind may take, in s. A case that waits for ever is then ended.
const PATIENCE_S: u32 = 300;

/// How long a tracer may take that makes one request, in s.
const PATIENCE_ONCE_S: u32 = 30;

/// One combination of a stop, requests and an act.
#[derive(Clone, Copy)]
struct Case {
    stop: Stop,
    act: Act,
    owned: bool,
    wishes: &'static [Wish],
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stop, act, owned, wishes } = self;
        write!(f, "stop {stop:?}, owned {owned}, tracer {wishes:?}, tracee {act:?}")
    }
}

/// Makes one check for each kind of stop.
pub fn run(tally: &mut Tally) -> Result<()> {
    admit(0o660)?;
    for stop in STOPS {
        let outcome = as_user(NOBODY, || {
            alarm::set(PATIENCE_S);
            for case in cases(stop) {
                case.check().with_context(|| case.to_string())?;
            }
            Ok(())
        });
        let outcome = outcome.and_then(|()| until_threads(0));
        let name = format!("whatever a tracer asks at {stop:?} stops");
        tally.check(&name, outcome.map_err(|error| format!("{error:#}")));
    }
    let outcome = as_user(NOBODY, only_its_tracer).and_then(|()| until_threads(0));
    let name = "a stopped thread gets counters from nobody but its tracer";
    tally.check(name, outcome.map_err(|error| format!("{error:#}")));
    Ok(())
}

/// Checks that a tracer gets an answer although its tracee is frozen.
pub fn frozen(tally: &mut Tally) -> Result<()> {
    admit(0o660)?;
    let outcome = of_a_frozen_one().and_then(|()| until_threads(0));
    let name = "a stopped thread that is frozen gets counters from its tracer";
    tally.check(name, outcome.map_err(|error| format!("{error:#}")));
    Ok(())
}

/// Starts a process, and stops it as a tracer does.
fn stopped() -> Result<Child> {
    let tracee = Child::fork(|| {
        loop {
            pause();
        }
    })?;
    ptrace::seize(tracee.pid, Options::PTRACE_O_EXITKILL).context("cannot trace")?;
    ptrace::interrupt(tracee.pid)?;
    let status = waitpid(tracee.pid, Some(WaitPidFlag::__WALL))?;
    ensure!(matches!(status, WaitStatus::PtraceEvent(..)), "{status:?} in place of a stop");
    Ok(tracee)
}

/// A group of processes that anybody may freeze. The older freezer has a state of its own for its
/// processes.
struct Freezer {
    root: PathBuf,
    group: PathBuf,
}

impl Freezer {
    fn new() -> Result<Self> {
        let root = Path::new("/run/freezer").to_owned();
        fs::create_dir_all(&root)?;
        mount(Some("none"), &root, Some("cgroup"), MsFlags::empty(), Some("freezer"))?;
        let group = root.join("tracee");
        fs::create_dir(&group)?;
        let freezer = Self { root, group };
        for file in ["cgroup.procs", "freezer.state"] {
            fs::set_permissions(freezer.group.join(file), Permissions::from_mode(0o666))?;
        }
        Ok(freezer)
    }

    fn freeze(&self, process: Pid) -> Result<()> {
        let state = self.group.join("freezer.state");
        fs::write(self.group.join("cgroup.procs"), process.to_string()).context("cgroup.procs")?;
        fs::write(&state, "FROZEN").context("freezer.state")?;
        let is_frozen = || fs::read_to_string(&state).is_ok_and(|state| state == "FROZEN\n");
        wait_until(is_frozen, "the tracee to be frozen")
    }

    fn thaw(&self) -> Result<()> {
        fs::write(self.group.join("freezer.state"), "THAWED").context("freezer.state")
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        // If a failed test has left processes there, they must end.
        self.thaw().ok();
        let group = &self.group;
        wait_until(|| fs::remove_dir(group).is_ok(), "the tracee to end").ok();
        umount(&self.root).ok();
    }
}

/// Checks that a tracer does not wait for ever for a tracee that was frozen while it was stopped.
fn of_a_frozen_one() -> Result<()> {
    let freezer = Freezer::new().context("no freezer")?;
    as_user(NOBODY, || {
        alarm::set(PATIENCE_ONCE_S);
        let tracee = stopped()?;
        freezer.freeze(tracee.pid)?;
        let device = open_device()?;
        device::create(&device, tracee.pid.as_raw() as u32).context("gives it counters")?;
        device::control(&device, counting(&[USER])).context("starts its counters")?;
        freezer.thaw()?;
        tracee.kill()
    })
}

/// Checks that another process of the same user is refused the requests that the tracer may make.
fn only_its_tracer() -> Result<()> {
    alarm::set(PATIENCE_S);
    let tracee = stopped()?;
    let (device, target) = (open_device()?, tracee.pid.as_raw() as u32);
    let refused = |what: &str, answer| {
        ensure!(answer == Err(Refusal::ESRCH), "another process {what}: {answer:?}");
        Ok(())
    };
    Child::fork(|| refused("gives it counters", device::create(&open_device()?, target)))?
        .join()?;
    device::create(&device, target).context("its tracer gives it counters")?;
    let control = || device::control(&device, counting(&[USER]));
    // The process uses the descriptor that it has inherited from the tracer.
    Child::fork(|| refused("starts its counters", control()))?.join()?;
    control().context("its tracer starts its counters")?;
    Child::fork(|| refused("starts its counters anew", control()))?.join()?;
    tracee.kill()
}

/// Returns some of all cases, see [`SHARE`]. The long tier has all.
fn cases(stop: Stop) -> impl Iterator<Item = Case> {
    let place = STOPS.iter().position(|&other| other == stop).unwrap_or_default();
    let wishes = WISHES.iter().zip(place..).flat_map(move |(&(owned, wishes), place)| {
        let acts = Act::value_variants().iter().zip(place..);
        acts.map(move |(&act, place)| (Case { stop, act, owned, wishes }, place))
    });
    wishes
        .filter(|(case, place)| match case.stop {
            Stop::End => case.act == Act::Nothing,
            // A new process or thread has no counters yet.
            Stop::NewChild | Stop::NewThread if case.owned => false,
            _ => place.is_multiple_of(pick(SHARE, 1)),
        })
        .map(|(case, _)| case)
}

impl Case {
    /// Returns whether the tracee may count the work at its end. Both may be possible.
    fn counts(&self) -> &'static [bool] {
        let ended = matches!(self.act, Act::Exec | Act::Exit | Act::Kill);
        if ended || matches!(self.stop, Stop::Exec | Stop::End) {
            return &[];
        }
        if self.wishes.contains(&Wish::Unlink) {
            return &[false];
        }
        let competes = matches!(self.act, Act::Control | Act::Unlink);
        if competes && matches!(self.stop, Stop::Entry | Stop::Seccomp) {
            // The tracee's system call had begun. It is executed before the tracer's request or
            // after it.
            return &[false, true];
        }
        let controlled = self.owned || self.wishes.contains(&Wish::Control);
        match self.act {
            Act::Unlink => &[false],
            Act::Control => &[true],
            _ if controlled => &[true],
            _ => &[false],
        }
    }

    fn check(&self) -> Result<()> {
        let short = self.run(SHORT)?;
        let counts = self.counts();
        let usual = matches!(self.act, Act::Nothing | Act::Control | Act::Unlink);
        if counts.is_empty() || !pick(usual, true) {
            return Ok(());
        }
        let long = self.run(LONG)?;
        let counted = long.counter[0].wrapping_sub(short.counter[0]);
        let may = |&counts| counted == if counts { 2 * (LONG - SHORT) } else { 0 };
        ensure!(counts.iter().any(may), "{counted} instructions counted, expected {counts:?}");
        Ok(())
    }

    /// Runs the case to its end, and returns the tracee's sums.
    fn run(&self, iterations: u64) -> Result<Sums> {
        let tracee = Tracee::start(self, iterations, open_device)?;
        let stopped = tracee.until(self.stop)?;
        for &wish in self.wishes {
            let answer = ask(&tracee.device, wish, stopped.as_raw() as u32);
            ensure!(self.may_answer(wish, answer), "{wish:?} gives {answer:?}");
        }
        if self.act == Act::Kill {
            kill(stopped, Signal::SIGKILL)?;
        } else {
            ptrace::cont(stopped, None)?;
        }
        drain()?;
        let sums = device::read(&tracee.device).or_else(|errno| match errno {
            // No thread got counters.
            Refusal::EINVAL | Refusal::ESRCH => Ok(Sums::default()),
            _ => Err(errno),
        })?;
        plausible(&sums)?;
        Ok(sums)
    }

    /// Returns whether a request may fail with this error, because the error states the truth.
    fn may_answer(&self, wish: Wish, answer: Result<(), Refusal>) -> bool {
        match answer {
            Ok(()) => true,
            // The thread has ended, or its counters were unlinked.
            Err(Refusal::ESRCH) => self.stop == Stop::End || wish == Wish::Control && self.owned,
            // Nothing has paused the counters.
            Err(Refusal::EPERM) => wish == Wish::Resume,
            Err(_) => false,
        }
    }
}

fn ask(device: &File, wish: Wish, target: u32) -> Result<(), Refusal> {
    match wish {
        Wish::Create => device::create(device, target),
        Wish::Control => device::control(device, counting(&[USER])),
        Wish::Resume => device::resume(device),
        Wish::Unlink => device::unlink(device),
    }
}

/// Fails if a sum is not plausible. A tracee executes some ten thousand instructions, so a count of
/// something else would be far larger.
fn plausible(sums: &Sums) -> Result<()> {
    const INSTRUCTIONS_MAX: u64 = 20_000_000;
    const TICKS_MAX: u64 = 100_000_000_000;
    ensure!(sums.counter[0] < INSTRUCTIONS_MAX && sums.tsc < TICKS_MAX, "garbage sums: {sums:?}");
    Ok(())
}

/// A traced process, with the descriptor that it shares with its tracer.
struct Tracee {
    child: Child,
    device: File,
    start: File,
    at: &'static AtomicU64,
}

/// The progress of the tracee. There is one at a time.
static AT: LazyLock<&AtomicU64> =
    LazyLock::new(|| &shared::words().expect("there is memory for a page")[0]);

impl Tracee {
    fn start(case: &Case, iterations: u64, open: fn() -> io::Result<File>) -> Result<Self> {
        let device = inherited(open()?)?;
        let spare = inherited(open()?)?;
        let (reader, writer) = pipe()?;
        let [reader, start] = [OwnedFd::from(reader), OwnedFd::from(writer)].map(File::from);
        let at = *AT;
        at.store(AT_START, SeqCst);
        let (stop, act, owned) = (case.stop, case.act, case.owned);
        let child = Child::fork(|| {
            let [device, spare] = [device.try_clone()?, spare].map(inherited);
            let (device, spare) = (device?, spare?);
            Plan { stop, act, owned, iterations, device, spare, start: reader, at }.run()
        })?;
        ptrace::seize(child.pid, options(stop)).context("cannot trace")?;
        Ok(Self { child, device, start, at })
    }

    fn at(&self) -> u64 {
        self.at.load(SeqCst)
    }

    /// Lets the tracee run to the stop. Returns the process or thread that has stopped.
    fn until(&self, stop: Stop) -> Result<Pid> {
        if matches!(stop, Stop::Entry | Stop::Exit) {
            // From its start on, the tracee stops at system calls.
            ptrace::interrupt(self.child.pid)?;
        }
        (&self.start).write_all(&[0])?;
        if stop == Stop::Interrupt {
            self.interrupt_in_wait()?;
        }
        let stopped = self.next(stop)?;
        if stop == Stop::Interrupt {
            // The byte for which the tracee waits comes while it is stopped, so it always waits
            // again.
            (&self.start).write_all(&[0])?;
        }
        Ok(stopped)
    }

    /// Lets the tracee continue to the stop.
    fn next(&self, stop: Stop) -> Result<Pid> {
        let mut calls = 0;
        loop {
            let status = waitpid(None, Some(WaitPidFlag::__WALL))?;
            let pid = status.pid().context("nobody has stopped")?;
            let main = pid == self.child.pid;
            let is_there = match (status, stop) {
                (WaitStatus::PtraceSyscall(_), Stop::Entry) => self.at() == AT_ACT,
                (WaitStatus::PtraceSyscall(_), Stop::Exit) if self.at() == AT_STOP => {
                    calls += 1;
                    calls == 2
                }
                (WaitStatus::PtraceEvent(_, _, event), _) => self.is_event(main, event, stop),
                (WaitStatus::Stopped(_, Signal::SIGURG), Stop::Signal) => true,
                // The process that has forked a child ends, perhaps before the child has stopped.
                (WaitStatus::Exited(..) | WaitStatus::Signaled(..), Stop::NewChild) => continue,
                (WaitStatus::Exited(..) | WaitStatus::Signaled(..), _) if main => {
                    bail!("ended before it stopped: {status:?}, at {}", self.at());
                }
                (WaitStatus::Exited(..) | WaitStatus::Signaled(..), _) => continue,
                _ => false,
            };
            if is_there {
                return Ok(pid);
            }
            if main && matches!(stop, Stop::Entry | Stop::Exit) {
                ptrace::syscall(pid, None)?;
            } else {
                // Only a signal that is delivered stops the whole process.
                ptrace::cont(
                    pid,
                    match status {
                        WaitStatus::Stopped(_, Signal::SIGSTOP) => Some(Signal::SIGSTOP),
                        _ => None,
                    },
                )?;
            }
        }
    }

    fn is_event(&self, main: bool, event: i32, stop: Stop) -> bool {
        let wanted = match stop {
            Stop::Fork => libc::PTRACE_EVENT_FORK,
            Stop::Clone => libc::PTRACE_EVENT_CLONE,
            Stop::Exec => libc::PTRACE_EVENT_EXEC,
            Stop::End => libc::PTRACE_EVENT_EXIT,
            Stop::Seccomp => libc::PTRACE_EVENT_SECCOMP,
            Stop::Group | Stop::Interrupt | Stop::NewChild | Stop::NewThread => {
                libc::PTRACE_EVENT_STOP
            }
            Stop::Entry | Stop::Exit | Stop::Signal => return false,
        };
        let new = matches!(stop, Stop::NewChild | Stop::NewThread);
        event == wanted && main != new && (stop != Stop::Seccomp || self.at() == AT_ACT)
    }

    /// Interrupts the tracee when it waits.
    fn interrupt_in_wait(&self) -> Result<()> {
        let stat = format!("/proc/{}/stat", self.child.pid);
        let waits = || {
            let stat = fs::read_to_string(&stat).unwrap_or_default();
            self.at() == AT_STOP && stat.contains(") S ")
        };
        wait_until(waits, "the tracee to wait")?;
        Ok(ptrace::interrupt(self.child.pid)?)
    }
}

/// Leaves the descriptor open for a program that is executed.
fn inherited(file: File) -> Result<File> {
    fcntl(file.as_fd(), FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(file)
}

fn options(stop: Stop) -> Options {
    let what = match stop {
        Stop::Fork | Stop::NewChild => Options::PTRACE_O_TRACEFORK,
        Stop::Clone | Stop::NewThread => Options::PTRACE_O_TRACECLONE,
        Stop::Exec => Options::PTRACE_O_TRACEEXEC,
        Stop::End => Options::PTRACE_O_TRACEEXIT,
        Stop::Seccomp => Options::PTRACE_O_TRACESECCOMP,
        _ => Options::empty(),
    };
    what | Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL
}

/// Lets all processes and threads continue to their ends.
fn drain() -> Result<()> {
    loop {
        match waitpid(None, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => {}
            Ok(status) => {
                let pid = status.pid().context("nobody has stopped")?;
                match ptrace::cont(pid, None) {
                    // The process was killed meanwhile.
                    Ok(()) | Err(Errno::ESRCH) => {}
                    Err(error) => return Err(error).context("cannot go on"),
                }
            }
            Err(Errno::ECHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

const _: () = assert!(AT_START < AT_STOP && AT_STOP < AT_ACT);

#[cfg(test)]
mod tests {
    use super::*;

    /// This test has a device that refuses everything, which is enough to stop and to continue.
    #[test]
    fn every_stop_is_reached() {
        for stop in STOPS {
            for case in cases(stop).filter(|case| !case.owned && case.wishes.len() == 1) {
                let tracee = Tracee::start(&case, SHORT, || File::open("/dev/null")).unwrap();
                let stopped = tracee.until(stop).context(case.to_string()).unwrap();
                ptrace::cont(stopped, None).unwrap();
                drain().unwrap();
                let at = tracee.at();
                let ends = matches!(stop, Stop::Exec | Stop::End);
                assert_eq!(at, if ends { AT_STOP } else { AT_ACT }, "{case}");
            }
        }
    }
}
