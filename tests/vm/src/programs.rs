// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts whole programs that are not the project's, from their first instruction to their last.
#![expect(unsafe_code, reason = "what is done between fork and exec")]

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sys::personality::{self, Persona};
use nix::unistd::Pid;
use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_BRANCH_INSTRUCTIONS, PERF_COUNT_HW_CPU_CYCLES, PERF_COUNT_HW_INSTRUCTIONS,
};
use perfctr::PmuCaps;
use perfctr::raw::{self, Device};
use shared_abi::ioctl::Create;
use shared_abi::version::ABI_MAJOR;

use crate::perf::{Event, Whose, generic};
use crate::step::Held;

/// The environment in which programs execute the same instructions in each run. A hypervisor may
/// report another CPU and other caches. By these the C library chooses how to copy and compare, and
/// how to save registers while it looks up a function at its first call.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("LD_BIND_NOW", "1"),
    ("LC_ALL", "C"),
    ("PYTHONHASHSEED", "0"),
    (
        "GLIBC_TUNABLES",
        "glibc.cpu.hwcaps=-AVX,-AVX2,-BMI1,-BMI2,-ERMS,-FMA,-FMA4,-LZCNT,-MOVBE,-POPCNT,-SSSE3,\
         -SSE4_1,-SSE4_2,-XSAVEC,-AVX_Fast_Unaligned_Load:\
         glibc.cpu.x86_data_cache_size=0x8000:glibc.cpu.x86_shared_cache_size=0x100000:\
         glibc.cpu.x86_non_temporal_threshold=0xc0000:glibc.cpu.x86_rep_movsb_threshold=0x1000:\
         glibc.cpu.x86_rep_stosb_threshold=0x1000",
    ),
];

/// The events that are counted of a program if there are counters for all: instructions, branches
/// and cycles in user mode.
pub const EVENTS: [perfctr::Event; 3] = [
    perfctr::Event::INSTRUCTIONS.user(),
    perfctr::Event::BRANCHES.user(),
    perfctr::Event::CYCLES.user(),
];

/// Counters of a program's thread.
pub trait Counter {
    /// Returns how often each event has occurred.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    fn counts(self) -> Result<Vec<u64>>;
}

/// Programs that are being counted.
#[derive(Debug, Default)]
pub struct Running(Mutex<Vec<Pid>>);

impl Running {
    fn add(&self, pid: Pid) {
        self.0.lock().expect("nobody panics").push(pid);
    }

    fn remove(&self, pid: Pid) {
        self.0.lock().expect("nobody panics").retain(|other| *other != pid);
    }

    /// Returns the programs that run at this moment.
    pub fn pids(&self) -> Vec<Pid> {
        self.0.lock().expect("nobody panics").clone()
    }
}

/// Prepares the system so that programs execute the same in each run.
///
/// # Errors
///
/// The kernel's error.
pub fn prepare() -> Result<()> {
    // Until the kernel has random numbers, the C library's allocator makes up its own.
    File::open("/dev/random")?.read_exact(&mut [0])?;
    // From now on no file's time of access changes. Python computes with that time whenever it
    // looks for a module, and executes some more instructions if its ns are not 0, as they are
    // until the first access.
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_NOATIME;
    Ok(mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)?)
}

/// Returns the command for a program and its arguments, with blanks in between, that executes the
/// same whenever it runs.
///
/// # Errors
///
/// The line is empty.
pub fn command(line: &str) -> Result<Command> {
    let mut words = line.split(' ');
    let mut child = Command::new(words.next().context("an empty line")?);
    child.args(words).env_clear().envs(ENVIRONMENT).current_dir("/work");
    child.stdin(Stdio::null()).stdout(Stdio::null());
    let fixed = || Ok(personality::set(Persona::ADDR_NO_RANDOMIZE).map(drop)?);
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { child.pre_exec(fixed) };
    Ok(child)
}

/// Runs a program, and counts from its first instruction, before which it is stopped.
///
/// # Errors
///
/// The program cannot be run or counted, or does not succeed.
pub fn count<C: Counter>(
    line: &str,
    attach: impl FnOnce(Pid) -> Result<C>,
    running: &Running,
) -> Result<Vec<u64>> {
    let child = Held::start(&mut command(line)?).with_context(|| line.to_owned())?;
    let pid = child.pid();
    let counter = attach(pid)?;
    running.add(pid);
    let ended = child.run();
    running.remove(pid);
    ended.with_context(|| line.to_owned())?;
    counter.counts()
}

/// Counters of Linux' own perf.
#[derive(Debug)]
pub struct Perf(Vec<Event>);

impl Perf {
    /// Opens counters of [`EVENTS`].
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn attach(pid: Pid) -> Result<Self> {
        let mut events = Vec::new();
        for event in [
            PERF_COUNT_HW_INSTRUCTIONS,
            PERF_COUNT_HW_BRANCH_INSTRUCTIONS,
            PERF_COUNT_HW_CPU_CYCLES,
        ] {
            events.push(Event::open(generic(event), Whose::Thread(pid), events.first())?);
        }
        Ok(Self(events))
    }
}

impl Counter for Perf {
    fn counts(self) -> Result<Vec<u64>> {
        Ok(self.0.iter().map(Event::count).collect::<Result<_, _>>()?)
    }
}

/// Counters of the module.
#[derive(Debug)]
pub struct Attached {
    device: Device,
    events: usize,
}

impl Attached {
    /// Opens counters of some events.
    ///
    /// # Errors
    ///
    /// The module's error, or this CPU does not count the events.
    pub fn attach(pid: Pid, events: &[perfctr::Event]) -> Result<Self> {
        let device = Device::open()?;
        let tid = pid.as_raw() as u32;
        device.create(&Create { abi_major: ABI_MAJOR.into(), tid, ..Create::default() })?;
        let caps = PmuCaps::from_wire(&device.info()?.caps).context("unknown capabilities")?;
        device.control(&raw::counting(&caps, events, 0)?)?;
        Ok(Self { device, events: events.len() })
    }
}

impl Counter for Attached {
    fn counts(self) -> Result<Vec<u64>> {
        Ok(self.device.sums()?.counter[..self.events].to_vec())
    }
}
