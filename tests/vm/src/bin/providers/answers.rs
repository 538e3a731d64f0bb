// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! What providers answer where they have no counters.
#![expect(unsafe_code, reason = "a filter of system calls is given to prctl(2)")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use perfctr::raw::Device;
use perfctr::{Cause, Error, Event, Provider, Session};
use shared_abi::CounterConfig;
use shared_abi::config::{EVNTSEL_EN, EVNTSEL_USR};
use shared_abi::ioctl::{Control, CpuState};
use vm_tests::module;

use crate::Test;

pub const NATIVE: &[Test] = &[
    ("no Xen is named", || {
        expect(&[], 0, &["paravirt: this machine is no guest of Xen", NATIVE_IS])
    }),
    ("perf_event_paranoid is named", paranoid),
    ("a seccomp filter is named", || {
        expect(&["--filter", &libc::EPERM.to_string()], 0, &["native: a seccomp filter", TSC_IS])
    }),
    ("a kernel without perf events is named", || {
        expect(
            &["--filter", &libc::ENOSYS.to_string()],
            0,
            &["native: the kernel has no perf events"],
        )
    }),
];

pub const BARE: &[Test] = &[("a machine without a PMU is named", || {
    expect(
        &[],
        0,
        &["paravirt: this machine is no guest", "native: the kernel knows no PMU", TSC_IS],
    )
})];

pub const GUEST: &[Test] = &[
    ("an absent module is named", absent_module),
    ("a device that may not be opened is named", device_access),
    ("whole CPUs that count are named", cpus_counted),
    ("a thread has one session in a guest", one_session),
    ("events that are not known are refused in a guest", unknown_event),
];

pub const OFF: &[Test] = &[
    ("the module refuses a driver that is off", refused_module),
    ("who finds no module is told where it says why", || {
        let paravirt = "paravirt: the kernel module is not loaded; `modprobe perfctr` loads it, or \
                        says in the kernel's log whether the hypervisor has no driver, has it off";
        expect(&[], 0, &[paravirt, TSC_IS])
    }),
];

const NATIVE_IS: &str = "counts: native";
const TSC_IS: &str = "counts: tsc";
const NOBODY: u32 = 65_534;

/// What the process that is asked prints.
pub fn print(filter: Option<u16>) -> Result<()> {
    if let Some(errno) = filter {
        forbid_perf_events(errno)?;
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

/// Asks in a process of this user; each text starts a line of the answer.
fn expect(options: &[&str], user: u32, lines: &[&str]) -> Result<()> {
    let mut command = Command::new("/proc/self/exe");
    let output = command.arg("answer").args(options).uid(user).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    for text in lines {
        let is_said = said.lines().any(|line| line.starts_with(text));
        ensure!(is_said, "`{text}` is not in:\n{said}{}", String::from_utf8_lossy(&output.stderr));
    }
    // Who cannot count says why again when it is asked to.
    let counts = !lines.contains(&TSC_IS);
    ensure!(counts || said.contains("start: no counters for instructions:u\n"), "{said}");
    Ok(())
}

/// Has `perf_event_open` of this process and its children fail with this error number.
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

fn paranoid() -> Result<()> {
    const LEVEL: &str = "/proc/sys/kernel/perf_event_paranoid";
    let before = fs::read_to_string(LEVEL)?;
    fs::write(LEVEL, "3")?;
    expect(&[], NOBODY, &["native: kernel.perf_event_paranoid is 3; `sysctl", TSC_IS])?;
    fs::write(LEVEL, "2")?;
    expect(&[], NOBODY, &[NATIVE_IS])?;
    Ok(fs::write(LEVEL, before)?)
}

fn absent_module() -> Result<()> {
    module::unload()?;
    let result = expect(&[], 0, &["paravirt: the kernel module is not loaded; `modprobe", TSC_IS]);
    module::load()?;
    result
}

fn refused_module() -> Result<()> {
    let error = module::load().err().context("the module is loaded")?;
    let errno = error.downcast_ref::<Errno>();
    ensure!(errno == Some(&Errno::ENODEV), "{error:#}");
    let log = module::log()?;
    ensure!(log.contains("found a Xen with perfctr off; xl dmesg says why"), "{log}");
    Ok(())
}

fn device_access() -> Result<()> {
    let mode = fs::metadata(Device::PATH)?.permissions();
    fs::set_permissions(Device::PATH, Permissions::from_mode(0o600))?;
    let result = expect(&[], NOBODY, &["paravirt: the caller may not open /dev/perfctr", TSC_IS]);
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
