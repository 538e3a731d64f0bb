// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests who may count what, and what one user sees of another.

use std::any::Any;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use perf_event_open_sys::bindings::PERF_COUNT_HW_INSTRUCTIONS;
use perfctr::rdpmc::Hardware;
use perfctr::{Cause, Error, Event, Provider, Session};
use shared_abi::CounterConfig;
use shared_abi::ioctl::DEVICE_PATH;
use shared_abi::limits::MAX_SLOTS;
use shared_abi::read::Counters;
use vm_tests::module;
use vm_tests::perf::{self, Whose, generic};
use vm_tests::raw::{Refusal, open_device};
use vm_tests::region::Region;
use vm_tests::stats::until_threads;
use vm_tests::tally::{Tally, equal};
use vm_tests::threads::{SELF, cpus, run_on};
use vm_tests::volume::pick;
use vm_tests::witness::Witness;

use crate::Test;
use crate::device::{self, KERNEL, USER, counting};
use vm_tests::shared;
use vm_tests::users::{Child, NOBODY, SOMEBODY, STRANGER, admit, as_user, become_user};

/// The region that one user executes and another must not see.
const SECRET: Region = Region { first: 5_000_000, second: 1 };
/// A look itself executes at most this many instructions.
const LOOK_MAX: u64 = 1_000_000;

/// The module's parameter.
const PARANOID: &str = "/sys/module/perfctr/parameters/paranoid";

/// The file with the kernel's version.
const RELEASE: &str = "/proc/sys/kernel/osrelease";

/// How often a user starts and ends counting while switches are watched, and how often the watch
/// ends in between.
const COMINGS: u32 = 10;
const ENDS: u32 = 2;
/// How long a user does not count: until counters have stopped, or longer than the module waits
/// before it stops watching switches.
const AWAY: Duration = Duration::from_millis(250);
const LONG_AWAY: Duration = module::UNWATCHED_AFTER;

/// Tests who may count what.
pub fn run(tally: &mut Tally) -> Result<()> {
    module::unload_when_idle()?;
    module::load()?;
    let mut check = |name: &str, outcome: Result<()>| {
        let outcome = outcome.and_then(|()| until_threads(0));
        tally.check(name, outcome.map_err(|error| format!("{error:#}")));
    };
    check("the device is the administrator's", mode());
    admit(0o660)?;
    check("who is not in the group cannot open the device", as_user(STRANGER, stranger));
    admit(0o664)?;
    check("who may only read cannot control", as_user(STRANGER, read_only));
    admit(0o660)?;
    let refusals: &[Test] = &[
        ("counts of the kernel need CAP_PERFMON", kernel_counts),
        ("counts of the kernel need CAP_PERFMON beside others", kernel_beside_user),
        ("whole CPUs need CAP_PERFMON", whole_cpus),
    ];
    for &(name, act) in refusals {
        check(name, as_user(NOBODY, act));
    }
    check("a session says that counts of the kernel are not the caller's", named_refusal());
    check("the parameter paranoid is honoured at each level", paranoid());
    check("what perf refuses is refused where a module can ask perf", perfs_policy());
    Ok(())
}

/// Tests what a locked-down kernel reveals, even to its administrator. The kernel stays locked down
/// until the machine is off.
pub fn lockdown(tally: &mut Tally) -> Result<()> {
    admit(0o660)?;
    lock_down()?;
    let checks: &[Test] = &[
        ("a kernel that is locked down is counted by nobody", || {
            Child::fork(|| answers(control(&[KERNEL])?, &[Refusal::EACCES]))?.join()
        }),
        ("a kernel that is locked down lets nobody count whole CPUs", || {
            answers(crate::cpu_wide::start(&open_device()?, &[]), &[Refusal::EACCES])
        }),
        ("a kernel that is locked down lets a user count its own threads", || {
            as_user(NOBODY, || Witness::new()?.unchanged().map_err(anyhow::Error::msg))
        }),
    ];
    for (name, check) in checks {
        let outcome = check().and_then(|()| until_threads(0));
        tally.check(name, outcome.map_err(|error| format!("{error:#}")));
    }
    Ok(())
}

/// Locks the kernel down, so that nobody can read anything of the kernel itself any more
/// (`kernel_lockdown(7)`).
fn lock_down() -> Result<()> {
    const FOLDER: &str = "/sys/kernel/security";
    let kind = Some("securityfs");
    match mount(kind, FOLDER, kind, MsFlags::empty(), None::<&str>) {
        Ok(()) | Err(Errno::EBUSY) => {}
        Err(errno) => return Err(errno).context(FOLDER),
    }
    fs::write(format!("{FOLDER}/lockdown"), "confidentiality").context("lockdown")
}

/// Checks the library's message to a user who may not count the kernel, and that the same session
/// can count user mode.
fn named_refusal() -> Result<()> {
    as_user(NOBODY, || {
        let mut session = Session::open_with(Provider::Paravirt)?;
        let started = session.start(&[Event::INSTRUCTIONS.kernel()]);
        let Err(Error::Refused(refusal)) = &started else { bail!("{started:?}") };
        equal(refusal.cause, Cause::ModulePolicy).map_err(anyhow::Error::msg)?;
        Ok(session.start(&[Event::INSTRUCTIONS.user()])?)
    })
}

/// What users and the administrator may count at each level: (level, user mode, kernel mode).
const LEVELS: [(&str, bool, bool); 4] =
    [("-1", true, true), ("1", true, true), ("2", true, false), ("3", false, false)];

fn paranoid() -> Result<()> {
    // Then perf lets everybody count everything.
    with_text_in(perf::PARANOID, "-1", || {
        LEVELS.iter().try_for_each(|&(level, user, kernel)| levels(level, user, kernel))
    })
}

/// Tests a level of perf's own that is stricter than the module's. It binds who counts the kernel
/// where a module can ask perf. There is no kernel where it binds who counts user mode.
fn perfs_policy() -> Result<()> {
    for (level, bound) in [("1", false), ("2", true), ("3", true)] {
        let kernel = !(bound && can_ask_perf()?);
        with_text_in(perf::PARANOID, level, || levels("-1", true, kernel))
            .with_context(|| format!("perf's level {level}"))?;
    }
    Ok(())
}

/// Returns whether this kernel lets a module ask perf who may count the kernel, as it does from
/// Linux 6.15 on.
fn can_ask_perf() -> Result<bool> {
    let release = fs::read_to_string(RELEASE).context(RELEASE)?;
    let numbers: Vec<u32> = release
        .split(|c: char| !c.is_ascii_digit())
        .take(2)
        .map(str::parse)
        .collect::<Result<_, _>>()
        .context(release)?;
    Ok(numbers >= vec![6, 15])
}

/// Writes this text to a file, calls `tested`, and restores the file.
fn with_text_in(path: &str, text: &str, tested: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = fs::read_to_string(path).with_context(|| path.to_owned())?;
    fs::write(path, text).with_context(|| path.to_owned())?;
    let outcome = tested();
    fs::write(path, before).with_context(|| path.to_owned())?;
    outcome
}

/// Checks what users and the administrator may count at a level of the module's.
fn levels(level: &str, user: bool, kernel: bool) -> Result<()> {
    with_text_in(PARANOID, level, || {
        as_user(NOBODY, || may(USER, user).and_then(|()| may(KERNEL, kernel)))
            .and_then(|()| may(KERNEL, true).context("the administrator"))
    })
    .with_context(|| format!("level {level}"))
}

/// Checks whether the caller may count this.
fn may(counter: CounterConfig, allowed: bool) -> Result<()> {
    let device = open_device()?;
    device::create(&device, 0).context("cannot create")?;
    let outcome = device::control(&device, counting(&[counter]));
    device::unlink(&device)?;
    equal(outcome, if allowed { Ok(()) } else { Err(Refusal::EACCES) }).map_err(anyhow::Error::msg)
}

/// Tests what one user sees of another.
pub fn users(tally: &mut Tally) -> Result<()> {
    admit(0o660)?;
    // perf's own policy then lets a user count this much. Debian's kernel begins with less.
    fs::write(perf::PARANOID, "2").context(perf::PARANOID)?;
    for (whose, counts) in VICTIMS {
        for look in &LOOKS {
            let outcome = unseen(look, counts).and_then(|()| until_threads(0));
            let name = format!("another user's thread{whose} is not seen {}", look.how);
            tally.check(&name, outcome.map_err(|error| format!("{error:#}")));
        }
    }
    let outcome = unseen_as_counters_come_and_go().and_then(|()| until_threads(0));
    let name = "another user's thread is not seen as its counters come and go";
    tally.check(name, outcome.map_err(|error| format!("{error:#}")));
    Ok(())
}

/// Fails unless a request has one of these answers.
fn answers(outcome: Result<(), Refusal>, expected: &[Refusal]) -> Result<()> {
    match outcome {
        Err(errno) if expected.contains(&errno) => Ok(()),
        answer => bail!("{answer:?} instead of {expected:?}"),
    }
}

fn mode() -> Result<()> {
    let device = fs::metadata(DEVICE_PATH)?;
    let found = (device.mode() & 0o777, device.uid());
    equal(found, (0o600, 0)).map_err(anyhow::Error::msg)
}

fn stranger() -> Result<()> {
    let errno = device::open_read_only().err().and_then(|error| error.raw_os_error());
    equal(errno, Some(libc::EACCES)).map_err(anyhow::Error::msg)
}

fn read_only() -> Result<()> {
    let device = device::open_read_only().context("cannot open for reading")?;
    answers(device::create(&device, 0), &[Refusal::EBADF])?;
    // The user may not control the counters of another descriptor either, which is open for
    // writing.
    answers(device::control(&device, counting(&[USER])), &[Refusal::EBADF])?;
    answers(device::unlink(&device), &[Refusal::EBADF])
}

fn control(counters: &[CounterConfig]) -> Result<Result<(), Refusal>> {
    let device = open_device()?;
    device::create(&device, 0).context("cannot create")?;
    device::control(&device, counting(&[USER])).context("cannot count user mode")?;
    Ok(device::control(&device, counting(counters)))
}

fn kernel_counts() -> Result<()> {
    answers(control(&[KERNEL])?, &[Refusal::EACCES])
}

fn kernel_beside_user() -> Result<()> {
    let both = CounterConfig { evntsel: USER.evntsel | KERNEL.evntsel, ..USER };
    answers(control(&[CounterConfig { slot: 1, ..USER }, both])?, &[Refusal::EACCES])
}

fn whole_cpus() -> Result<()> {
    answers(crate::cpu_wide::start(&open_device()?, &[]), &[Refusal::EACCES, Refusal::EPERM])
}

/// A way to have the calling thread count its instructions until the result is dropped.
type Counting = fn() -> Result<Box<dyn Any>>;

/// The threads that must not be seen, by the way in which they count.
const VICTIMS: [(&str, Counting); 2] = [("", by_device), (" that perf counts", by_perf)];

fn by_device() -> Result<Box<dyn Any>> {
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[Event::INSTRUCTIONS.user()])?;
    Ok(Box::new(session))
}

fn by_perf() -> Result<Box<dyn Any>> {
    let instructions = generic(PERF_COUNT_HW_INSTRUCTIONS);
    Ok(Box::new(perf::Event::open(instructions, Whose::Thread(SELF), None)?))
}

/// A way to look at counters.
struct Look {
    how: &'static str,
    /// Whether the observing user has counters of its own.
    own: bool,
    /// Returns numbers, each of which might change with another user's events.
    numbers: fn(Option<&Session>) -> Result<Vec<u64>>,
}

const LOOKS: [Look; 3] = [
    Look { how: "by RDPMC without counters", own: false, numbers: |_| raw_rdpmc() },
    Look { how: "by RDPMC beside own counters", own: true, numbers: |_| Ok(rdpmc_all()) },
    Look { how: "in the pages of vCPUs", own: true, numbers: pages },
];

/// Physical counters of the testbed's PMU, general and fixed.
const RDPMC: [u32; 7] = [0, 1, 2, 3, 1 << 30, 1 << 30 | 1, 1 << 30 | 2];

/// Returns all counters of this CPU, whether a process may read them or not.
pub fn rdpmc_all() -> Vec<u64> {
    RDPMC.iter().map(|&counter| Hardware.counter(counter)).collect()
}

/// Executes this program again. RDPMC ends it if it may not read.
fn raw_rdpmc() -> Result<Vec<u64>> {
    let output = Command::new("/proc/self/exe").arg("rdpmc").output()?;
    if output.status.signal() == Some(libc::SIGSEGV) {
        return Ok(Vec::new());
    }
    ensure!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout)?;
    text.split_whitespace().map(|word| Ok(word.parse()?)).collect()
}

/// Prints the counters, as the program for the role `rdpmc`.
pub fn say_counters() {
    let all: Vec<_> = rdpmc_all().iter().map(u64::to_string).collect();
    println!("{}", all.join(" "));
}

/// Opens a session that counts something else.
fn own_session() -> Result<Session> {
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[Event::BRANCHES.user()])?;
    Ok(session)
}

fn pages(session: Option<&Session>) -> Result<Vec<u64>> {
    let session = session.context("there are pages with a session only")?;
    let page = session.vcpu_page(cpus()?[0] as u32).context("the vCPU has no page")?;
    Ok((0..MAX_SLOTS).map(|slot| page.slots[slot].sum.load(Relaxed)).collect())
}

/// Checks what a user sees while another user executes the secret on the same vCPU.
fn unseen(look: &Look, counts: Counting) -> Result<()> {
    let words = shared::words()?;
    let cpu = *cpus()?.first().context("there is no CPU")?;
    let victim = Child::fork(|| {
        become_user(SOMEBODY)?;
        victim(cpu, counts, words)
    })?;
    let outcome = as_user(NOBODY, || {
        run_on(SELF, &[cpu])?;
        let session = look.own.then(own_session).transpose()?;
        words[0].store(1, SeqCst);
        while words[1].load(SeqCst) == 0 {
            sleep(Duration::from_millis(1));
        }
        let before = (look.numbers)(session.as_ref())?;
        words[0].store(2, SeqCst);
        while words[1].load(SeqCst) < 2 {
            sleep(Duration::from_millis(1));
        }
        check_unmoved(&before, &(look.numbers)(session.as_ref())?)
    });
    victim.kill()?;
    outcome
}

/// Fails if a number has changed much between two looks. If the user may not read, there are no
/// numbers.
fn check_unmoved(before: &[u64], after: &[u64]) -> Result<()> {
    let seen = |(before, after): (&u64, &u64)| after.wrapping_sub(*before) << 16 >> 16;
    let moved: Vec<_> = before.iter().zip(after).map(seen).collect();
    let least = moved.iter().find(|&&moved| LOOK_MAX < moved && moved < 1 << 40);
    ensure!(least.is_none(), "{least:?} events of another user are seen: {moved:?}");
    Ok(())
}

/// Checks what a user without counters sees all the time, while another user on the same CPU starts
/// and ends counting. Nobody else counts, so the module stops watching switches in each long pause,
/// and begins again after it.
fn unseen_as_counters_come_and_go() -> Result<()> {
    let words = shared::words()?;
    let cpu = *cpus()?.first().context("there is no CPU")?;
    let victim = Child::fork(|| {
        become_user(SOMEBODY)?;
        let outcome = come_and_go(cpu);
        words[0].store(1, SeqCst);
        outcome
    })?;
    let seen = as_user(NOBODY, || {
        run_on(SELF, &[cpu])?;
        let mut before = raw_rdpmc()?;
        while words[0].load(SeqCst) == 0 {
            let now = raw_rdpmc()?;
            check_unmoved(&before, &now)?;
            before = now;
        }
        Ok(())
    });
    victim.join().and(seen)
}

/// Counts the secret, and then does not count for a while, several times.
fn come_and_go(cpu: usize) -> Result<()> {
    run_on(SELF, &[cpu])?;
    let ends = pick(ENDS, COMINGS);
    for coming in 0..COMINGS {
        let mut session = Session::open_with(Provider::Paravirt)?;
        session.start(&[Event::INSTRUCTIONS.user()])?;
        SECRET.execute(&mut 0);
        drop(session);
        sleep(if coming < ends { LONG_AWAY } else { AWAY });
    }
    Ok(())
}

/// Counts, and executes the secret when it is told to.
fn victim(cpu: usize, counts: Counting, words: &[AtomicU64]) -> Result<()> {
    run_on(SELF, &[cpu])?;
    let _counts = counts()?;
    for step in 1..=2 {
        while words[0].load(SeqCst) < step {
            sleep(Duration::from_millis(1));
        }
        if step == 2 {
            SECRET.execute(&mut 0);
        }
        words[1].store(step, SeqCst);
    }
    loop {
        sleep(Duration::from_secs(1));
    }
}
