// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Counts whole programs that nobody here wrote, from their first instruction to their last, and
//! prints how many instructions and branches each executed in user mode.
//!
//! On the bare machine Linux' perf counts them one after the other; under Xen the module does, all
//! at once and several times, while they are moved between vCPUs and these between physical CPUs.
//! Both have to print the same.
#![expect(unsafe_code, reason = "what is done between fork and exec")]

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use nix::mount::{MsFlags, mount};
use nix::sys::personality::{self, Persona};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use perf_event_open_sys::bindings;
use perfctr::raw::Device;
use perfctr::{Provider, Session};
use shared_abi::config::{EVNTSEL_EN, EVNTSEL_USR};
use shared_abi::ioctl::{Control, Create};
use shared_abi::version::ABI_MAJOR;
use vm_tests::disturb;
use vm_tests::perf::{Event, Whose, generic};
use vm_tests::rng::Rng;
use vm_tests::stats::ModuleStats;
use vm_tests::threads::{SELF, cpus, or_exit, run_on};
use vm_tests::time::{VcpuElapsed, VcpuTimes};
use vm_tests::xen::{CONTROL_DOMAIN, Xen};

/// What makes programs execute the same again.
const ENVIRONMENT: [(&str, &str); 2] = [("LC_ALL", "C"), ("PYTHONHASHSEED", "0")];

/// Of the testbed.
const PCPUS: u32 = 2;
const SEED: u64 = 1;
/// How often each disturbance has to occur in a storm, and how long that may take on any machine: a
/// quick one has executed all programs before much has happened to them.
const DISTURBANCES_MIN: u64 = 200;
const PATIENCE: Duration = Duration::from_secs(240);

/// Counts programs.
#[derive(Debug, Parser)]
struct Options {
    /// A command on each line: a program and its arguments, with blanks in between.
    commands: PathBuf,
    /// Count with the module, all at once, so many times at least, and move everything meanwhile.
    #[arg(long)]
    storm: Option<usize>,
}

/// Programs that are being counted.
#[derive(Default)]
struct Running(Mutex<Vec<Pid>>);

impl Running {
    fn add(&self, pid: Pid) {
        self.0.lock().expect("nobody panics").push(pid);
    }

    fn remove(&self, pid: Pid) {
        self.0.lock().expect("nobody panics").retain(|other| *other != pid);
    }
}

/// What vCPUs and threads have gone through by now.
type Moment = (VcpuTimes, ModuleStats);

/// Events of a program's thread.
trait Counter {
    /// How often instructions and branches occurred.
    fn counts(self) -> Result<[u64; 2]>;
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    // Until the kernel has randomness the C library's allocator makes up its own.
    File::open("/dev/random")?.read_exact(&mut [0])?;
    keep_times()?;
    let text = fs::read_to_string(&options.commands)?;
    let commands: Vec<&str> = text.lines().collect();
    match options.storm {
        Some(times) => storm(&commands, times)?,
        None => {
            for command in commands {
                say(command, count(command, Perf::attach, &Running::default())?);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// From now on no file's time of access changes.  Python computes it whenever it looks for a
/// module, in some more instructions when the ns are not 0, as they are until the first access.
fn keep_times() -> Result<()> {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_NOATIME;
    Ok(mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)?)
}

fn say(command: &str, [instructions, branches]: [u64; 2]) {
    println!("{instructions:>12} {branches:>12} {command}");
}

/// Runs all at once, so many times and until they were disturbed often enough.
fn storm(commands: &[&str], times: usize) -> Result<()> {
    let xen = &Xen::open().context("this is not Xen's control domain")?;
    let cpus = &cpus()?;
    let mut session = Session::open_with(Provider::Paravirt)?;
    session.start(&[])?;
    let look = || -> Result<Moment> {
        let vcpus = VcpuTimes::take(xen, &session, cpus)?;
        run_on(SELF, cpus)?;
        Ok((vcpus, ModuleStats::read()?))
    };
    let (stop, running, before) = (&AtomicBool::new(false), &Running::default(), look()?);
    let start = Instant::now();
    let seen = thread::scope(|scope| {
        scope.spawn(move || disturb::vcpus(xen, CONTROL_DOMAIN, cpus, PCPUS, SEED, stop));
        scope.spawn(move || move_all(running, cpus, stop));
        let one = move |command| or_exit(0, count(command, Attached::attach, running));
        let mut rounds = 0;
        let seen = loop {
            let threads: Vec<_> =
                commands.iter().map(|&command| scope.spawn(move || one(command))).collect();
            for (command, thread) in commands.iter().zip(threads) {
                say(command, thread.join().expect("no thread panics"));
            }
            rounds += 1;
            let seen = or_exit(0, look().and_then(|now| Disturbances::between(&before, &now)));
            if rounds >= times && (seen.are_enough() || start.elapsed() > PATIENCE) {
                break seen;
            }
        };
        stop.store(true, Ordering::Relaxed);
        seen
    });
    eprintln!("{seen:?} in {:?}", start.elapsed());
    ensure!(seen.are_enough(), "{DISTURBANCES_MIN} of each are wanted");
    Ok(())
}

/// What programs suffer in a storm.
#[derive(Debug)]
struct Disturbances {
    /// Of the threads that count.
    thread_switches: u64,
    vcpu_switches: u64,
    vcpu_migrations: u64,
}

impl Disturbances {
    fn between(before: &Moment, after: &Moment) -> Result<Self> {
        let vcpus = after.0.since(&before.0);
        let sum = |part: fn(&VcpuElapsed) -> u64| vcpus.iter().map(part).sum();
        Ok(Self {
            thread_switches: after.1.growth(&before.1, "switches_in")?,
            vcpu_switches: sum(|vcpu| vcpu.switches),
            vcpu_migrations: sum(|vcpu| vcpu.migrations),
        })
    }

    fn are_enough(&self) -> bool {
        let all = [self.thread_switches, self.vcpu_switches, self.vcpu_migrations];
        all.into_iter().all(|times| times >= DISTURBANCES_MIN)
    }
}

/// Moves what is running between CPUs.
fn move_all(running: &Running, cpus: &[usize], stop: &AtomicBool) {
    let mut rng = Rng::new(SEED, 0);
    while !stop.load(Ordering::Relaxed) {
        let pids = running.0.lock().expect("nobody panics").clone();
        if pids.is_empty() {
            thread::sleep(Duration::from_millis(1));
        } else {
            disturb::one_thread(&pids, cpus, &mut rng);
        }
    }
}

/// Runs a program, and counts from its first instruction, before which it is stopped.
fn count<C: Counter>(
    command: &str,
    attach: fn(Pid) -> Result<C>,
    running: &Running,
) -> Result<[u64; 2]> {
    let mut words = command.split(' ');
    let mut child = Command::new(words.next().context("an empty line")?);
    child.args(words).env_clear().envs(ENVIRONMENT).current_dir("/work");
    child.stdin(Stdio::null()).stdout(Stdio::null());
    let prepare = || {
        personality::set(Persona::ADDR_NO_RANDOMIZE)?;
        Ok(ptrace::traceme()?)
    };
    // SAFETY: two system calls.
    let child = unsafe { child.pre_exec(prepare) }.spawn().with_context(|| command.to_owned())?;
    let pid = Pid::from_raw(child.id() as i32);
    let stopped = waitpid(pid, None)?;
    ensure!(matches!(stopped, WaitStatus::Stopped(_, Signal::SIGTRAP)), "{stopped:?}");
    let counter = attach(pid)?;
    ptrace::detach(pid, None)?;
    running.add(pid);
    let ended = waitpid(pid, None)?;
    running.remove(pid);
    ensure!(matches!(ended, WaitStatus::Exited(_, 0)), "{command}: {ended:?}");
    counter.counts()
}

/// Counters of Linux' own.
struct Perf([Event; 2]);

impl Perf {
    fn attach(pid: Pid) -> Result<Self> {
        let instructions = generic(bindings::PERF_COUNT_HW_INSTRUCTIONS);
        let instructions = Event::open(instructions, Whose::Thread(pid), None)?;
        let branches = generic(bindings::PERF_COUNT_HW_BRANCH_INSTRUCTIONS);
        let branches = Event::open(branches, Whose::Thread(pid), Some(&instructions))?;
        Ok(Self([instructions, branches]))
    }
}

impl Counter for Perf {
    fn counts(self) -> Result<[u64; 2]> {
        let [instructions, branches] = self.0;
        Ok([instructions.count()?, branches.count()?])
    }
}

/// The module's.
struct Attached(Device);

impl Attached {
    fn attach(pid: Pid) -> Result<Self> {
        let device = Device::open()?;
        let tid = pid.as_raw() as u32;
        device.create(&Create { abi_major: ABI_MAJOR.into(), tid, ..Create::default() })?;
        let mut control = Control { counters: 2, ..Control::default() };
        for (slot, (counter, event)) in control.counter.iter_mut().zip([0xc0, 0xc4]).enumerate() {
            counter.slot = slot as u32;
            counter.evntsel = event | EVNTSEL_USR | EVNTSEL_EN;
        }
        device.control(&control)?;
        Ok(Self(device))
    }
}

impl Counter for Attached {
    fn counts(self) -> Result<[u64; 2]> {
        let sums = self.0.sums()?;
        Ok([sums.counter[0], sums.counter[1]])
    }
}
