// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Tests what providers answer where they have no counters.
#![expect(unsafe_code, reason = "a filter of system calls is given to prctl(2)")]

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use perfctr::raw::Device;
use perfctr::{Cause, Error, Event, Provider, Session};
use serde_json::{Value, json};
use shared_abi::CounterConfig;
use shared_abi::arch::{EVNTSEL_EN, EVNTSEL_USR};
use shared_abi::ioctl::{Control, CpuState};
use vm_tests::tally::{Tally, equal};
use vm_tests::{module, perf};

use crate::{Place, Test};

/// A machine on which a user gets no counters.
struct Machine {
    name: &'static str,
    place: Place,
    /// The user who asks, and the error number with which a filter refuses perf events, if there is
    /// one.
    user: u32,
    filter: Option<i32>,
    /// Brings the machine into this state while the check runs.
    during: fn(&dyn Fn() -> Result<()>) -> Result<()>,
    provider: &'static str,
    reason: &'static str,
    remedy: &'static str,
    errno: i32,
}

/// Six machines, and the messages of library and command on each.
const MACHINES: [Machine; 6] = [
    Machine {
        name: "no PMU",
        place: Place::Bare,
        user: ROOT,
        filter: None,
        during: |check| check(),
        provider: "native",
        reason: "the kernel knows no PMU here",
        remedy: "in a virtual machine the host has to offer one",
        errno: libc::ENOENT,
    },
    Machine {
        name: "perf_event_open forbidden by seccomp",
        place: Place::Native,
        user: ROOT,
        filter: Some(libc::EPERM),
        during: |check| check(),
        provider: "native",
        reason: "a seccomp filter forbids perf_event_open",
        remedy: "the container's profile has to allow it",
        errno: libc::EPERM,
    },
    Machine {
        name: "perf_event_paranoid=3 as a plain user",
        place: Place::Native,
        user: NOBODY,
        filter: None,
        during: |check| paranoid("3", check),
        provider: "native",
        reason: "kernel.perf_event_paranoid is 3",
        remedy: "`sysctl kernel.perf_event_paranoid=2` or CAP_PERFMON lets the caller count",
        errno: libc::EACCES,
    },
    Machine {
        name: "a device without permission",
        place: Place::Guest,
        user: NOBODY,
        filter: None,
        during: unpermitted,
        provider: "paravirt",
        reason: "the caller may not open /dev/perfctr",
        remedy: "root may, and so may the members of the device's group, which Debian's package \
                 calls perfctr",
        errno: libc::EACCES,
    },
    Machine {
        name: "no module",
        place: Place::Guest,
        user: ROOT,
        filter: None,
        during: without_module,
        provider: "paravirt",
        reason: "the kernel module is not loaded",
        remedy: "`modprobe perfctr` loads it, or says in the kernel's log whether the hypervisor \
                 has no driver, has it off, or does not let this domain count",
        errno: libc::ENOENT,
    },
    Machine {
        name: "the driver off",
        place: Place::Off,
        user: ROOT,
        filter: None,
        during: |check| check(),
        provider: "paravirt",
        reason: "the hypervisor's driver is off",
        remedy: "the host's `xl dmesg`, or `dmesg` with KVM, says why, and the option perfctr on \
                 Xen's command line, or of the module kvm, turns it on",
        errno: libc::ENODEV,
    },
];

impl Machine {
    fn message(&self) -> String {
        format!("{}: {}; {}", self.provider, self.reason, self.remedy)
    }

    fn asker(&self) -> Asker {
        Asker { user: self.user, filter: self.filter }
    }

    /// Checks that library and command give this message.
    fn check(&self) -> Result<()> {
        (self.during)(&|| {
            let why = std::io::Error::from_raw_os_error(self.errno);
            expect(self.asker(), &[&format!("{} [{why}]", self.message()), TSC_IS])?;
            let text = self.asker().perfctr("info")?;
            let line = format!("{:<12} {}", "not", self.message());
            ensure!(text.lines().any(|found| found == line), "`{line}` is not in:\n{text}");
            let info: Value = serde_json::from_str(&self.asker().perfctr("info --json")?)?;
            ensure!(info["provider"] == "tsc", "{info:#}");
            let refusals = info["refusals"].as_array().context("no refusals")?;
            let of = |refusal: &&Value| refusal["provider"] == self.provider;
            let expected = json!({
                "provider": self.provider, "reason": self.reason, "remedy": self.remedy,
                "errno": self.errno,
            });
            let found = refusals.iter().find(of);
            ensure!(found == Some(&expected), "{found:?} found, {expected} expected");
            Ok(())
        })
    }
}

/// Checks the machines that this place can imitate, and that no two have the same message.
pub fn machines(tally: &mut Tally, place: Place) {
    for machine in MACHINES.iter().filter(|machine| machine.place == place) {
        let outcome = machine.check().map_err(|error| format!("{error:#}"));
        tally.check(&format!("{} is named, with its remedy", machine.name), outcome);
    }
    let messages: BTreeSet<_> = MACHINES.iter().map(Machine::message).collect();
    let remedies: BTreeSet<_> = MACHINES.iter().map(|machine| machine.remedy).collect();
    let all = MACHINES.len();
    tally.check("the machines' messages are distinct, and so are the remedies", {
        equal((messages.len(), remedies.len()), (all, all))
    });
}

pub const NATIVE: &[Test] = &[
    ("no Xen is named", || {
        expect(SELF, &["paravirt: this machine is no guest of Xen or KVM", NATIVE_IS])
    }),
    ("a user whom perf_event_paranoid lets in counts", || {
        let nobody = Asker { user: NOBODY, ..SELF };
        paranoid("2", &|| expect(nobody, &[NATIVE_IS]))
    }),
    ("a kernel without perf events is named", || {
        let filtered = Asker { filter: Some(libc::ENOSYS), ..SELF };
        expect(filtered, &["native: the kernel has no perf events"])
    }),
];

pub const GUEST: &[Test] = &[
    ("whole CPUs that count are named", cpus_counted),
    ("a thread has one session in a guest", one_session),
    ("events that are not known are refused in a guest", unknown_event),
    ("who may not ask the hypervisor is told who knows", || {
        without_module(&|| {
            let nobody = Asker { user: NOBODY, ..SELF };
            expect(nobody, &["paravirt: the kernel module is not loaded; `modprobe", TSC_IS])
        })
    }),
];

pub const OFF: &[Test] = &[("the module refuses a driver that is off", refused_module)];

const NATIVE_IS: &str = "counts: native";
const TSC_IS: &str = "counts: tsc";
const ROOT: u32 = 0;
const NOBODY: u32 = 65_534;
const PERFCTR: &str = "/work/perfctr";

/// A process that asks the library.
#[derive(Clone, Copy)]
struct Asker {
    user: u32,
    /// If given, `perf_event_open` fails with this error number.
    filter: Option<i32>,
}

/// A process like this one.
const SELF: Asker = Asker { user: ROOT, filter: None };

impl Asker {
    /// Returns the output of these words in such a process.
    fn printed(self, words: &[&str]) -> Result<String> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("answer").uid(self.user);
        if let Some(errno) = self.filter {
            command.args(["--filter", &errno.to_string()]);
        }
        let output = command.args(words).output()?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {printed}{complaint}", output.status);
        Ok(printed)
    }

    fn perfctr(self, words: &str) -> Result<String> {
        self.printed(&[&["--", PERFCTR], &words.split(' ').collect::<Vec<_>>()[..]].concat())
    }
}

/// Prints the answers in the process that asks, unless it becomes this program.
pub fn print(filter: Option<u16>, program: &[String]) -> Result<()> {
    if let Some(errno) = filter {
        forbid_perf_events(errno)?;
    }
    if let Some((program, words)) = program.split_first() {
        return Err(Command::new(program).args(words).exec()).context(program.clone());
    }
    let mut session = Session::open()?;
    for refusal in session.refusals() {
        println!("{refusal}");
    }
    println!("counts: {}", session.description().provider);
    if let Err(error @ Error::NoCounters { .. }) = session.start(&[Event::INSTRUCTIONS.user()]) {
        println!("start: {error}");
    }
    Ok(())
}

/// Asks the library. Each text has to start a line of the answer.
fn expect(asker: Asker, lines: &[&str]) -> Result<()> {
    let printed = asker.printed(&[])?;
    for text in lines {
        let is_said = printed.lines().any(|line| line.starts_with(text));
        ensure!(is_said, "`{text}` is not in:\n{printed}");
    }
    // A provider that cannot count repeats the reason when it is asked to count.
    let counts = !lines.contains(&TSC_IS);
    ensure!(counts || printed.contains("start: no counters for instructions:u\n"), "{printed}");
    Ok(())
}

/// Makes `perf_event_open` of this process and its children fail with this error number.
fn forbid_perf_events(errno: u16) -> Result<()> {
    let step =
        |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        // The number of the system call is the first word that a filter sees (seccomp(2)).
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_perf_event_open as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | u32::from(errno)),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the filter and its steps are valid while the kernel copies them.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
    };
    ensure!(result == 0, std::io::Error::last_os_error());
    Ok(())
}

/// Does something while `perf_event_paranoid` has this level.
fn paranoid(level: &str, act: &dyn Fn() -> Result<()>) -> Result<()> {
    let before = fs::read_to_string(perf::PARANOID)?;
    fs::write(perf::PARANOID, level)?;
    let result = act();
    fs::write(perf::PARANOID, before)?;
    result
}

/// Does something without the module.
fn without_module(act: &dyn Fn() -> Result<()>) -> Result<()> {
    module::unload()?;
    let result = act();
    module::load()?;
    result
}

fn refused_module() -> Result<()> {
    let error = module::load().err().context("the module is loaded")?;
    let errno = error.downcast_ref::<Errno>();
    ensure!(errno == Some(&Errno::ENODEV), "{error:#}");
    let log = module::log()?;
    ensure!(log.contains("found Xen with perfctr off; its log says why"), "{log}");
    Ok(())
}

/// Does something while only root may use the device.
fn unpermitted(act: &dyn Fn() -> Result<()>) -> Result<()> {
    let mode = fs::metadata(Device::PATH)?.permissions();
    fs::set_permissions(Device::PATH, Permissions::from_mode(0o600))?;
    let result = act();
    fs::set_permissions(Device::PATH, mode)?;
    result
}

fn cpus_counted() -> Result<()> {
    let device = Device::open()?;
    let mut control = Control { counters: 1, ..Control::default() };
    control.counter[0] =
        CounterConfig { evntsel: 0xc0 | EVNTSEL_USR | EVNTSEL_EN, ..CounterConfig::default() };
    device.cpu_control(&CpuState { control, ..CpuState::default() }).context("a CPU's control")?;
    device.cpu_start().context("a CPU's start")?;
    let refused = Session::open_with(Provider::Paravirt);
    device.cpu_stop()?;
    let Err(Error::Refused(refusal)) = &refused else { bail!("{refused:?}") };
    ensure!(refusal.cause == Cause::CpusCounted, "{refusal}");
    Session::open_with(Provider::Paravirt)?;
    Ok(())
}

fn one_session() -> Result<()> {
    let _first = Session::open_with(Provider::Paravirt)?;
    for provider in [Provider::Paravirt, Provider::Native, Provider::Tsc] {
        let second = Session::open_with(provider);
        ensure!(matches!(second, Err(Error::AlreadyOpen)), "{second:?}");
    }
    Ok(())
}

fn unknown_event() -> Result<()> {
    let mut session = Session::open_with(Provider::Paravirt)?;
    let refused = session.start(&[Event::raw(0x4f2e).user()]);
    ensure!(matches!(refused, Err(Error::EventNotAvailable { .. })), "{refused:?}");
    session.start(&[Event::raw(0xc4).user(), Event::INSTRUCTIONS.user()])?;
    Ok(())
}
