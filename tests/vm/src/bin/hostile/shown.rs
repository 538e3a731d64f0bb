// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what a user sees, on the CPU where it counts, of programs that it may execute but not look
//! into. Also tests what a mapping of the device allows beyond reading it.

use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io::{Read, Write, pipe, stdin, stdout};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sched::{CloneFlags, sched_getcpu, unshare};
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use perfctr::{Event, Provider, Session};
use shared_abi::limits::MAX_SLOTS;
use shared_abi::sync::Ordering::Relaxed;
use vm_tests::map::{MapRequest, map};
use vm_tests::raw::open_device;
use vm_tests::stats::until_threads;
use vm_tests::tally::Tally;
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::users::{
    Child, NOBODY, SOMEBODY, User, admit, as_user, become_capable_user, become_user,
    give_up_capabilities, hide, let_others_look, make_capable,
};

use crate::Test;
use crate::device::{self, USER, counting};
use crate::policy::rdpmc_all;
use crate::programs::{PREPARATION_MAX, SECRET, work};

/// A program whose group has rights that the user lacks. Whoever executes it is in that group.
const SET_GID: &str = "/run/set-gid";
const OTHER_GROUP: u32 = 4343;
/// A set-uid program that belongs to root.
const SET_UID: &str = "/run/shown-set-uid";
/// A program that another user may execute but not read. So that user may not inspect its process
/// either.
const UNREADABLE: &str = "/run/shown-unreadable";

/// A program that has a capability of its own.
const CAPABLE: &str = "/run/shown-capable";
/// A program that the kernel starts when a process aborts, and the file to which it writes on which
/// CPU it has executed.
const HELPER: &str = "/run/shown-helper";
const HELPED: &str = "/run/shown-helped";

/// The kernel's settings for that: the program to start when a process aborts; how many of these
/// programs may run at a time; and on which CPUs the kernel starts programs. Unless the second
/// setting is 0, a process that aborts waits for its program.
const CORE_PATTERN: &str = "/proc/sys/kernel/core_pattern";
const CORE_PIPE_LIMIT: &str = "/proc/sys/kernel/core_pipe_limit";
const KERNELS_CPUS: &str = "/sys/devices/virtual/workqueue/cpumask";

/// Runs all checks.
pub fn run(tally: &mut Tally) -> Result<()> {
    admit(0o660)?;
    for (path, mode, group) in [
        (SET_UID, 0o4755, 0),
        (UNREADABLE, 0o711, 0),
        (SET_GID, 0o2755, OTHER_GROUP),
        (CAPABLE, 0o755, 0),
        (HELPER, 0o755, 0),
    ] {
        fs::copy("/proc/self/exe", path)?;
        chown(path, Some(0), Some(group))?;
        fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    make_capable(&CString::new(CAPABLE)?)?;
    let checks: &[Test] = &[
        ("a program of one's own is counted where nobody interrupts it", own_is_seen),
        ("a set-uid program is not seen on the CPU where its user counts", || unseen(SET_UID)),
        ("a set-gid program is not seen there", || unseen(SET_GID)),
        ("an unreadable program is not seen there", || unseen(UNREADABLE)),
        ("a program whose file has a capability is not seen there", || unseen(CAPABLE)),
        ("a program in a container that its user has made is not seen there", contained_is_unseen),
        ("a program that hides from its user's others is not seen there", hidden_is_unseen),
        ("a mapping is no memory of the process", maps_take_no_memory),
        ("no reference to a page can be taken from a mapping", nothing_to_splice),
        ("a descriptor is not mapped in another container", not_mapped_in_another_container),
    ];
    for (name, check) in checks {
        let outcome = as_user(NOBODY, *check).and_then(|()| until_threads(0));
        tally.check(name, outcome.map_err(|error| format!("{error:#}")));
    }
    let checks: &[Test] = &[
        ("a program that the kernel starts is not seen where a user counts", helper_is_unseen),
        ("counters of root's end where root has another user execute", ends_with_another_user),
        ("a descriptor that root passes on is not mapped", not_mapped_by_another_user),
        ("a program of a user's is seen there whoever has started it", neighbour_is_seen),
        ("a program of its user's in another group is not seen there", || {
            neighbour_is_unseen(as_nobody, || become_user(User { gid: OTHER_GROUP, ..NOBODY }))
        }),
        ("a program that was started with a capability is not seen there", || {
            neighbour_is_unseen(as_nobody, || become_capable_user(NOBODY))
        }),
        ("a program that can become another user is not seen there", || {
            neighbour_is_unseen(as_nobody, become_nobody_for_somebody)
        }),
        ("a program of its user's in another namespace of users is not seen there", || {
            neighbour_is_unseen(as_nobody, become_nobody_in_own_namespace)
        }),
        ("a program of its user's in another container is not seen there", || {
            neighbour_is_unseen(as_nobody, become_nobody_in_own_container)
        }),
        ("root's programs are not seen where a root without capabilities counts", || {
            neighbour_is_unseen(as_root_without_capabilities, || Ok(()))
        }),
    ];
    for (name, check) in checks {
        let outcome = check().and_then(|()| until_threads(0));
        tally.check(name, outcome.map_err(|error| format!("{error:#}")));
    }
    Ok(())
}

/// Returns what a user sees of this vCPU: its page's sums, and the counters themselves.
fn numbers(session: &Session, cpu: usize) -> Result<Vec<u64>> {
    let page = session.vcpu_page(cpu as u32).context("the vCPU has no page")?;
    let sums = (0..MAX_SLOTS).map(|slot| page.slots[slot].sum.load(Relaxed));
    Ok(sums.chain(rdpmc_all()).collect())
}

/// Returns the largest change of any number while the process waited for a child that did this on
/// the same CPU. The counters are 48 bits wide.
fn most_moved(act: impl FnOnce() -> Result<()>, code: i32) -> Result<u64> {
    let cpu = *cpus()?.first().context("there is no CPU")?;
    run_on(SELF, &[cpu])?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[Event::INSTRUCTIONS.user()])?;
    let before = numbers(&session, cpu)?;
    let child = Child::fork(act)?;
    let status = waitpid(child.pid, None)?;
    let after = numbers(&session, cpu)?;
    ensure!(status == WaitStatus::Exited(child.pid, code), "the program ended so: {status:?}");
    let moved = before.iter().zip(&after).map(|(before, after)| after.wrapping_sub(*before) << 16);
    // A counter that was cleared goes backwards.
    let forwards = moved.filter(|moved| *moved < 1 << 63).map(|moved| moved >> 16);
    forwards.max().context("nothing is counted")
}

/// Checks that a program of the user's own can be seen in this way. If its vCPU is switched
/// meanwhile, a part of its instructions is in the page's sum and the rest in the counter.
fn own_is_seen() -> Result<()> {
    const TRIES: usize = 10;
    let executed = SECRET.instructions();
    let mut most = 0;
    for _ in 0..TRIES {
        let work = || {
            SECRET.execute(&mut 0);
            Ok(())
        };
        most = most.max(most_moved(work, 0)?);
        if most >= executed {
            return Ok(());
        }
    }
    bail!("at most {most} events are seen of {executed}, in {TRIES} tries")
}

/// Says that it executes, waits for a byte, and then does the work. It does not hide.
pub fn work_when_told() -> Result<()> {
    let_others_look()?;
    stdout().write_all(&[0])?;
    stdout().flush()?;
    stdin().read_exact(&mut [0])?;
    work()
}

fn as_nobody() -> Result<()> {
    become_user(NOBODY)
}

fn as_root_without_capabilities() -> Result<()> {
    give_up_capabilities()?;
    let_others_look()
}

/// Makes the calling process one whose effective and saved user is nobody, and whose real user is
/// another one. It can become that one without any capability.
fn become_nobody_for_somebody() -> Result<()> {
    let [nobody, somebody] = [NOBODY, SOMEBODY].map(|user| Uid::from_raw(user.uid));
    let group = Gid::from_raw(NOBODY.gid);
    setgroups(&[])?;
    setresgid(group, group, group)?;
    Ok(setresuid(somebody, nobody, nobody)?)
}

fn become_nobody_in_own_namespace() -> Result<()> {
    become_user(NOBODY)?;
    Ok(unshare(CloneFlags::CLONE_NEWUSER)?)
}

/// Only root may make a namespace of processes without a namespace of users. The module takes two
/// processes for those of two containers if their children will be in two namespaces of processes.
fn become_nobody_in_own_container() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWPID)?;
    become_user(NOBODY)
}

/// Has a program do the work on the CPU where a user counts, and passes what that user sees of it
/// to `judge`. `begin` makes a process that user's. `prepare` gives a process its rights before it
/// executes the program, which happens before the user counts.
fn beside(
    begin: fn() -> Result<()>,
    prepare: fn() -> Result<()>,
    judge: fn(u64) -> Result<()>,
) -> Result<()> {
    let cpu = *cpus()?.first().context("there is no CPU")?;
    let (asked, mut asking) = pipe()?;
    let (mut told, telling) = pipe()?;
    let program = Child::fork(|| {
        run_on(SELF, &[cpu])?;
        prepare()?;
        let mut program = Command::new("/proc/self/exe");
        Err(program.arg("work-when-told").stdin(asked).stdout(telling).exec().into())
    })?;
    // The parent's copies have gone into the closure, which is dropped here.
    told.read_exact(&mut [0]).context("the program has not begun")?;
    let outcome = Child::fork(|| {
        begin()?;
        let tell_and_wait = || {
            asking.write_all(&[0])?;
            told.read_to_end(&mut Vec::new())?;
            Ok(())
        };
        judge(most_moved(tell_and_wait, 0)?)
    })?
    .join();
    // A program that was not told ends, too.
    drop(asking);
    let status = waitpid(program.pid, None)?;
    ensure!(matches!(status, WaitStatus::Exited(..)), "the program ended so: {status:?}");
    outcome
}

fn neighbour_is_unseen(begin: fn() -> Result<()>, prepare: fn() -> Result<()>) -> Result<()> {
    beside(begin, prepare, |moved| {
        ensure!(moved < PREPARATION_MAX, "{moved} events of the program are seen");
        Ok(())
    })
}

/// Checks that a program with the same rights can be seen in this way. As in [`own_is_seen`], a
/// try may fail.
fn neighbour_is_seen() -> Result<()> {
    const TRIES: usize = 10;
    let executed = |moved| {
        ensure!(moved >= SECRET.instructions(), "only {moved} events are seen");
        Ok(())
    };
    for _ in 1..TRIES {
        if beside(as_nobody, as_nobody, executed).is_ok() {
            return Ok(());
        }
    }
    beside(as_nobody, as_nobody, executed)
}

fn unseen(path: &'static str) -> Result<()> {
    let code = if path == SET_UID { 0 } else { 1 };
    let moved = most_moved(|| Err(Command::new(path).arg("work").exec().into()), code)?;
    ensure!(moved < PREPARATION_MAX, "{moved} events of the program are seen");
    Ok(())
}

/// A user may make a namespace of processes only in a namespace of users that it has made.
fn contained_is_unseen() -> Result<()> {
    let work_inside = || {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID)?;
        Child::fork(|| {
            SECRET.execute(&mut 0);
            Ok(())
        })?
        .join()
    };
    let moved = most_moved(work_inside, 0)?;
    ensure!(moved < PREPARATION_MAX, "{moved} events of the program are seen");
    Ok(())
}

/// A file of the kernel's, which has other content as long as this lives.
struct Changed {
    path: &'static str,
    before: String,
}

impl Changed {
    fn new(path: &'static str, content: &str) -> Result<Self> {
        let before = fs::read_to_string(path).context(path)?;
        fs::write(path, content).context(path)?;
        Ok(Self { path, before })
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        fs::write(self.path, &self.before).ok();
    }
}

/// Does the work for which the kernel starts this program when a process aborts, and writes where.
pub fn collect() -> Result<()> {
    SECRET.execute(&mut 0);
    fs::write(HELPED, sched_getcpu()?.to_string()).context(HELPED)
}

/// Checks a program into which a thread of the kernel turns without a switch. The process that
/// aborts waits until the program has ended. It waits on another CPU if there is one, because
/// otherwise the CPU would be switched to it.
fn helper_is_unseen() -> Result<()> {
    let all = cpus()?;
    let (cpu, other) = all.first().zip(all.last()).context("there is no CPU")?;
    let contents = [
        (CORE_PATTERN, format!("|{HELPER} collect")),
        (CORE_PIPE_LIMIT, "1".to_owned()),
        (KERNELS_CPUS, format!("{:x}", 1_u64 << cpu)),
    ];
    let changed = contents.map(|(path, content)| Changed::new(path, &content));
    let changed = changed.into_iter().collect::<Result<Vec<_>>>()?;
    let abort = || {
        let aborted = Child::fork(|| {
            run_on(SELF, &[*other])?;
            Ok(raise(Signal::SIGABRT)?)
        })?;
        let status = waitpid(aborted.pid, None)?;
        let by_signal = matches!(status, WaitStatus::Signaled(_, Signal::SIGABRT, _));
        ensure!(by_signal, "the process ended so: {status:?}");
        Ok(())
    };
    as_user(NOBODY, || {
        let moved = most_moved(abort, 0)?;
        ensure!(moved < PREPARATION_MAX, "{moved} events of the program are seen");
        Ok(())
    })?;
    drop(changed);
    let helped = fs::read_to_string(HELPED).context("the kernel has started no program")?;
    ensure!(helped == cpu.to_string(), "the program has executed on CPU {helped}, not {cpu}");
    Ok(())
}

/// Checks a program that hides and then yields its CPU, as a program does that waits.
fn hidden_is_unseen() -> Result<()> {
    let hide_and_work = || {
        hide()?;
        std::thread::sleep(std::time::Duration::from_millis(20));
        work()
    };
    let moved = most_moved(hide_and_work, 1)?;
    ensure!(moved < PREPARATION_MAX, "{moved} events of the program are seen");
    Ok(())
}

/// Returns the kilobytes of memory that this process has, by a line of its status.
fn resident(kind: &str) -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with(kind)).context(kind.to_owned())?;
    Ok(line.split_whitespace().nth(1).context("no number")?.parse()?)
}

fn maps_take_no_memory() -> Result<()> {
    const MAPPINGS: usize = 100;
    let device = open_device()?;
    device::create(&device, 0).context("cannot create")?;
    let request = MapRequest::pages(device::pages(&device)?);
    let before = resident("RssFile:")? + resident("RssShmem:")?;
    let maps: Result<Vec<_>, Errno> = (0..MAPPINGS).map(|_| map(&device, &request)).collect();
    let maps = maps?;
    let more = resident("RssFile:")? + resident("RssShmem:")? - before;
    let page_kib = 4;
    // A page of the program itself may have been loaded meanwhile.
    let bound = (MAPPINGS * page_kib) as u64;
    ensure!(more < bound, "{} mappings take {more} KiB", maps.len());
    Ok(())
}

/// Checks that no page can be spliced. A process that kept such a reference could read the counts
/// of the page's next user.
fn nothing_to_splice() -> Result<()> {
    let device = open_device()?;
    device::create(&device, 0).context("cannot create")?;
    let mapped = map(&device, &MapRequest::pages(device::pages(&device)?))?;
    let (_reader, writer) = pipe()?;
    for page in 0..2 {
        let outcome = mapped.splice(page, &writer);
        ensure!(outcome == Err(Errno::EFAULT), "page {page} is spliced: {outcome:?}");
    }
    Ok(())
}

/// Checks that counting ends when a thread that root counts becomes another user's thread and
/// executes a program.
fn ends_with_another_user() -> Result<()> {
    let device = open_device()?;
    let kept = device.try_clone()?;
    let child = Child::fork(|| {
        device::create(&kept, 0).context("cannot create")?;
        device::control(&kept, counting(&[USER])).context("cannot control")?;
        become_user(NOBODY)?;
        Err(Command::new("/proc/self/exe").arg("work").exec().into())
    })?;
    let status = waitpid(child.pid, None)?;
    ensure!(status == WaitStatus::Exited(child.pid, 1), "the program ended so: {status:?}");
    let counted = device::read(&device)?.counter[0];
    ensure!(counted < PREPARATION_MAX, "{counted} instructions of the program were told");
    Ok(())
}

/// Checks that another user cannot map root's descriptor, since the page shows all of root's
/// threads.
fn not_mapped_by_another_user() -> Result<()> {
    let device = open_device()?;
    device::create(&device, 0).context("cannot create")?;
    let request = MapRequest::pages(device::pages(&device)?);
    drop(map(&device, &request).context("root itself")?);
    let outcome = as_user(NOBODY, || {
        let refused = map(&device, &request).err();
        ensure!(refused == Some(Errno::EPERM), "mapping ends so: {refused:?}");
        device::read(&device).context("who has it may read it")?;
        Ok(())
    });
    device::unlink(&device)?;
    outcome
}

/// Checks that the same user cannot map the descriptor in another container, since the page shows
/// all threads of that user in the descriptor's container.
fn not_mapped_in_another_container() -> Result<()> {
    let device = open_device()?;
    device::create(&device, 0).context("cannot create")?;
    let request = MapRequest::pages(device::pages(&device)?);
    drop(map(&device, &request).context("in its own container")?);
    let inside = || {
        let refused = map(&device, &request).err();
        ensure!(refused == Some(Errno::EPERM), "mapping ends so: {refused:?}");
        device::read(&device).context("who has it may read it")?;
        Ok(())
    };
    // A user may make a namespace of processes only in a namespace of users that it has made.
    let enter = || {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWPID)?;
        Child::fork(inside)?.join()
    };
    Child::fork(enter)?.join()
}
