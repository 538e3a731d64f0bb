// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Makes an unprivileged user's requests: ioctls, mappings, processes, tracing, signals.
#![expect(unsafe_code, reason = "fork, and the end of a process")]

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::ptrace::{self, Options};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, getpid, gettid, setpgid};
use perf_event_open_sys::bindings::perf_event_attr;
use shared_abi::ioctl::{
    CONTROL_RING, Control, CpuState, Create, IOC_CONTROL, IOC_CPU_CONTROL, IOC_CPU_READ,
    IOC_CPU_START, IOC_CPU_STOP, IOC_CREATE, IOC_INFO, IOC_INTERRUPTS, IOC_OPEN, IOC_READ,
    IOC_READ_CONTROL, IOC_RESUME, IOC_RING, IOC_RING_TAKE, IOC_TYPE, IOC_UNLINK,
};
use shared_abi::limits::MAX_COUNTERS;
use shared_abi::ring::RingRequest;
use shared_abi::version::ABI_MAJOR;
use vm_tests::map::{MapRequest, Mapping, map};
use vm_tests::perf::{self, Event, Whose, generic, raw};
use vm_tests::raw::{Argument, ioctl, open_device};
use vm_tests::region::Region;
use vm_tests::threads::{SELF, run_on};
use vm_tests::users::{self, Child, NOBODY, become_user};
use zerocopy::IntoBytes;

use crate::calls;
use crate::reader::Reader;

/// The most requests that an input may make, and the most processes below each other.
const REQUESTS_MAX: usize = 40;
const DEPTH_MAX: u32 = 2;
/// How long an input may take. An input that waits for itself is then ended.
const PATIENCE: Duration = Duration::from_millis(200);

/// The largest argument size that an ioctl's number can express.
const ARGUMENT_BYTES: usize = 1 << 14;

const REQUESTS: [u32; 12] = [
    IOC_CREATE,
    IOC_CONTROL,
    IOC_CONTROL,
    IOC_READ,
    IOC_OPEN,
    IOC_UNLINK,
    IOC_RESUME,
    IOC_READ_CONTROL,
    IOC_INFO,
    IOC_CPU_CONTROL,
    IOC_CPU_READ,
    IOC_TYPE << 8,
];

/// Lets the user use the device, and count with perf.
pub fn admit() -> Result<()> {
    fs::write(perf::PARANOID, "2")?;
    users::admit(0o660)
}

/// Makes an input's requests as user nobody, and ends all that they have left.
pub fn run(input: &[u8]) -> Result<()> {
    let child = Child::fork(|| {
        setpgid(SELF, SELF)?;
        become_user(NOBODY)?;
        Hostile::default().act(&mut Reader::new(input));
        Ok(())
    })?;
    // Any kind of end is right. An overflow's signal may also have stopped the process.
    let start = Instant::now();
    let look = Some(WaitPidFlag::WUNTRACED | WaitPidFlag::WNOHANG);
    let mut status = waitpid(child.pid, look)?;
    while status == WaitStatus::StillAlive && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
        status = waitpid(child.pid, look)?;
    }
    // This kills its whole group, or it alone if it has not yet made one.
    kill(Pid::from_raw(-child.pid.as_raw()), Signal::SIGKILL).ok();
    if let WaitStatus::StillAlive = status {
        kill(child.pid, Signal::SIGKILL)?;
    }
    if let WaitStatus::Stopped(..) | WaitStatus::StillAlive = status {
        waitpid(child.pid, None)?;
    }
    Ok(())
}

/// What a hostile process has.
#[derive(Debug, Default)]
struct Hostile {
    files: [Option<File>; 3],
    mappings: Vec<Mapping>,
    tracee: Option<Pid>,
    depth: u32,
    events: Vec<Event>,
}

impl Hostile {
    fn act(&mut self, input: &mut Reader<'_>) {
        for _ in 0..REQUESTS_MAX {
            if input.is_empty() {
                return;
            }
            // Refusals are expected.
            match input.below(20) {
                0..2 => self.files[input.below(3)] = open_device().ok(),
                2 => self.files[input.below(3)] = None,
                3..8 => self.request(input),
                8 => self.map(input),
                9 => drop(self.mappings.pop()),
                10 => self.fork(input),
                11 => self.trace(input),
                12 => self.resume_tracee(input),
                13 => signals(input),
                14 => self.elsewhere(input),
                15 => work(input),
                _ => self.perf(input),
            }
        }
    }

    /// Does something with perf's events.
    fn perf(&mut self, input: &mut Reader<'_>) {
        calls::count();
        let opened = self.events.last();
        match input.below(8) {
            0..3 => {
                // The event is never of another process. For an event of the first process, perf
                // makes a context even if the request fails, and that would hold the module until
                // the machine ends (docs/soundness.md).
                let whose = match input.below(8) {
                    0 => Whose::Cpu(input.number() as usize % 8),
                    1..4 => Whose::Thread(self.tracee.unwrap_or(SELF)),
                    _ => Whose::Thread(SELF),
                };
                let leader = opened.filter(|_| input.byte() < 100);
                let event = Event::open(attributes(input), whose, leader);
                self.events.extend(event);
            }
            3 => drop(opened.map(Event::enable)),
            4 => drop(opened.map(Event::disable)),
            5 => drop(opened.map(|event| event.refresh(input.below(4)))),
            6 => drop(opened.map(Event::count)),
            _ => drop(self.events.pop()),
        }
    }

    /// Makes an ioctl that is mostly valid.
    fn request(&self, input: &mut Reader<'_>) {
        let Some(device) = &self.files[input.below(3)] else { return };
        let mut request = input.pick(&REQUESTS);
        if request == IOC_TYPE << 8 {
            let any = input.word() as u32;
            request = input.pick(&[
                IOC_CPU_START,
                IOC_CPU_STOP,
                any,
                IOC_RING,
                IOC_RING_TAKE,
                IOC_INTERRUPTS,
            ]);
        }
        let mut bytes = [0_u8; ARGUMENT_BYTES];
        let length = self.argument(request, input, &mut bytes);
        input.disturb(&mut bytes[..length]);
        let argument = match input.byte() {
            0..8 => Argument::Null,
            8..12 => Argument::Hypervisor,
            12..16 => Argument::NonCanonical,
            _ => Argument::Bytes(&mut bytes),
        };
        calls::count();
        ioctl(device, request, argument).ok();
    }

    fn argument(&self, request: u32, input: &mut Reader<'_>, bytes: &mut [u8]) -> usize {
        let create =
            Create { abi_major: ABI_MAJOR.into(), tid: self.tid(input), ..Create::default() };
        let mut put = |argument: &[u8]| {
            bytes[..argument.len()].copy_from_slice(argument);
            argument.len()
        };
        match request {
            IOC_CREATE | IOC_OPEN => put(create.as_bytes()),
            IOC_CONTROL => put(control(input).as_bytes()),
            IOC_CPU_CONTROL | IOC_CPU_READ => {
                let cpu = input.number() as u32;
                let state = CpuState { cpu, control: control(input), ..CpuState::default() };
                put(state.as_bytes())
            }
            IOC_RING => put(ring(input).as_bytes()),
            IOC_RING_TAKE => put(&input.number().to_le_bytes()),
            _ => put(&input.word().to_le_bytes()),
        }
    }

    /// Returns a thread that may be the caller's.
    fn tid(&self, input: &mut Reader<'_>) -> u32 {
        match input.below(8) {
            0..4 => 0,
            4 => gettid().as_raw() as u32,
            5 => input.number() as u32,
            _ => self.tracee.map_or(1, |tracee| tracee.as_raw() as u32),
        }
    }

    fn map(&mut self, input: &mut Reader<'_>) {
        let Some(device) = &self.files[input.below(3)] else { return };
        let request = MapRequest {
            pages: input.pick(&[5, 5, 5, 1, 6, 64]),
            offset: input.pick(&[0, 0, 0, 1, 5, 1 << 20]),
            writable: input.byte() > 230,
            executable: input.byte() > 230,
            private: input.byte() > 230,
        };
        calls::count();
        self.mappings.extend(map(device, &request).ok());
    }

    /// Makes a child do the next few requests, or execute another program. This process continues,
    /// too.
    fn fork(&mut self, input: &mut Reader<'_>) {
        if self.depth == DEPTH_MAX {
            return;
        }
        let executes = input.byte() < 100;
        // SAFETY: the other threads of this process hold no lock of the library for long, and a
        // child that waits for ever is ended.
        if let Ok(ForkResult::Child) = unsafe { fork() } {
            self.depth += 1;
            if executes {
                self.execute();
            }
            self.act(input);
            end();
        }
    }

    /// Executes this program again, which inherits the descriptors.
    fn execute(&self) {
        for file in self.files.iter().flatten() {
            fcntl(file.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).ok();
        }
        drop(Command::new("/proc/self/exe").arg("nothing").exec());
        end();
    }

    /// Starts a child that does the requests which follow, and is stopped at once.
    fn trace(&mut self, input: &mut Reader<'_>) {
        if self.depth == DEPTH_MAX || self.tracee.is_some() {
            return;
        }
        let options = input.byte();
        // SAFETY: the other threads of this process hold no lock of the library for long, and a
        // child that waits for ever is ended.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                self.depth += 1;
                self.tracee = None;
                std::thread::sleep(Duration::from_millis(2));
                self.act(input);
                end();
            }
            Ok(ForkResult::Parent { child }) => {
                let options = Options::from_bits_truncate(i32::from(options) << 1);
                ptrace::seize(child, options | Options::PTRACE_O_EXITKILL).ok();
                ptrace::interrupt(child).ok();
                waitpid(child, Some(WaitPidFlag::__WALL)).ok();
                self.tracee = Some(child);
            }
            Err(_) => {}
        }
    }

    fn resume_tracee(&mut self, input: &mut Reader<'_>) {
        let Some(tracee) = self.tracee else { return };
        match input.below(8) {
            0 => drop(ptrace::detach(tracee, None)),
            1 => drop(kill(tracee, Signal::SIGKILL)),
            2 => drop(kill(tracee, Signal::SIGSTOP)),
            3 => drop(ptrace::cont(tracee, None)),
            4 => drop(ptrace::interrupt(tracee)),
            _ => drop(ptrace::syscall(tracee, None)),
        }
        std::thread::sleep(Duration::from_millis(1));
        waitpid(tracee, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)).ok();
    }

    /// Makes a thread of the same process do the next few requests at the same time.
    fn elsewhere(&self, input: &mut Reader<'_>) {
        if self.depth == DEPTH_MAX {
            return;
        }
        let files = self.files.each_ref().map(|file| file.as_ref()?.try_clone().ok());
        std::thread::scope(|scope| {
            let mut copy = input.clone();
            scope.spawn(move || {
                Self { files, depth: DEPTH_MAX, ..Self::default() }.act(&mut copy);
            });
            work(input);
        });
    }
}

fn control(input: &mut Reader<'_>) -> Control {
    let used = input.below(5).min(MAX_COUNTERS);
    let mut control = Control {
        flags: input.pick(&[1, 1, 0, 3, 7, 5]),
        counters: used as u32,
        preserve: if input.byte() < 60 { input.number() as u32 } else { 0 },
        ..Control::default()
    };
    for counter in &mut control.counter[..used] {
        *counter = input.counter();
    }
    if control.counter.iter().any(|counter| counter.mode != 0) {
        control.signal = input.pick(&[10, 12, 23, 34, 9, 19]);
        // The thread gets records instead of signals.
        if input.byte() > 180 {
            (control.flags, control.signal) = (control.flags | CONTROL_RING, 0);
        }
    }
    control
}

/// Returns a request for a ring that is mostly valid.
fn ring(input: &mut Reader<'_>) -> RingRequest {
    RingRequest {
        pages: input.pick(&[1, 1, 4, 64, 3, 0]),
        callers: input.below(40) as u32,
        watermark: 1 + input.below(8) as u32,
        ..RingRequest::default()
    }
}

fn signals(input: &mut Reader<'_>) {
    let signal = input.pick(&[Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGURG]);
    match input.below(4) {
        0 => drop(sigprocmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::from(signal)), None)),
        1 => drop(sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&SigSet::from(signal)), None)),
        2 => drop(kill(getpid(), signal)),
        _ => drop(setrlimit(Resource::RLIMIT_SIGPENDING, 0, 0)),
    }
}

/// Returns what perf is to count, which is mostly valid.
fn attributes(input: &mut Reader<'_>) -> perf_event_attr {
    let mut attributes = match input.below(4) {
        0 => raw(input.pick(&[0xc0, 0xc4, 0x3c, 0xc0 | 1 << 24])),
        1 => raw(input.word()),
        _ => generic(input.below(10) as u32),
    };
    attributes.set_disabled((input.byte() < 60).into());
    attributes.set_inherit((input.byte() < 60).into());
    attributes.set_exclude_kernel((input.byte() < 230).into());
    attributes.set_exclude_user((input.byte() < 20).into());
    attributes.set_pinned((input.byte() < 30).into());
    if input.byte() < 128 {
        attributes.set_freq((input.byte() < 100).into());
        attributes.__bindgen_anon_1.sample_period = input.number();
    }
    attributes
}

fn work(input: &mut Reader<'_>) {
    match input.below(4) {
        0 => std::thread::sleep(Duration::from_micros(500)),
        1 => drop(run_on(SELF, &[input.below(4)])),
        _ => Region { first: 1 + input.number() % 50_000, second: 1 }.execute(&mut 0),
    }
}

fn end() -> ! {
    // SAFETY: the call takes a number and does not return. A process that shares buffers must not
    // write them.
    unsafe { libc::_exit(0) }
}
