// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Executes the requests of the guest's tests.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use vm_tests::kvm::{HostPerf, NEIGHBOUR, Request, SAMPLED, answer};
use vm_tests::perf::Event;
use vm_tests::raw::Refusal;
use vm_tests::tally::Made;
use vm_tests::threads::{cpus, run_on};

use crate::qmp::Monitor;
use crate::{BETWEEN_LOOKS, FORBID, allow, domains, perf, reused, sampled, vcpus, write};

/// The numbers of what the driver has done.
const STATS: &str = "/sys/module/kvm/parameters/perfctr_stats";
/// The index of the number of times that vCPUs were switched out.
const SWITCHES: usize = 0;
/// The scheduler's times, in ns. Up to Linux 6.5 they are: how long a thread executes while others
/// wait for its CPU, and how long if another thread wakes. From 6.6 on there is only one such time.
const SLICES: [(&str, u64); 2] = [
    ("/sys/kernel/debug/sched/min_granularity_ns", 100_000),
    ("/sys/kernel/debug/sched/wakeup_granularity_ns", 0),
];
const SLICES_SINCE_6_6: [(&str, u64); 1] = [("/sys/kernel/debug/sched/base_slice_ns", 100_000)];

/// Returns the times that the host's kernel has.
fn slices() -> &'static [(&'static str, u64)] {
    let [(path, _)] = SLICES_SINCE_6_6;
    if fs::exists(path).unwrap_or(false) { &SLICES_SINCE_6_6 } else { &SLICES }
}

/// The ports of the first process, by their numbers, and the path of a second guest's ports.
const PORTS: &str = "/dev/fdset/";
const NEIGHBOURS_PORTS: &str = "/machine/port.";
/// The file to which a guest is saved, and the address to which one is migrated.
const SAVED: &str = "/machine/saved";
const SENT: &str = "unix:/machine/sent";

/// The file by which a physical CPU goes offline and comes online, and how long the CPU stays
/// offline.
const ONLINE: &str = "/sys/devices/system/cpu/cpu1/online";
const UNPLUGGED: Duration = Duration::from_millis(200);

/// What the other threads of this program know about the guest.
#[derive(Default)]
pub struct Guest {
    /// The process that runs the guest.
    pub process: AtomicI32,
    /// Whether the guest itself moves its vCPUs.
    pub moves: AtomicBool,
    pub ended: AtomicBool,
}

impl Guest {
    pub fn process(&self) -> Pid {
        Pid::from_raw(self.process.load(Relaxed))
    }
}

pub struct Server<'a> {
    guest: &'a Guest,
    /// The sockets of the guest's port and of its monitor, for the first process that runs it.
    socket: &'a str,
    monitor: &'a str,
    /// The command that runs the guest: the command line of the first process, which later
    /// processes also have.
    command: Vec<String>,
    later: Vec<Child>,
    /// perf's events that count all of the host's CPUs.
    events: Vec<Event>,
    /// The scheduler's times before they were shortened.
    usual: Vec<String>,
    /// The second guest that is sampled.
    sampled: Option<Child>,
    machine: Option<sampled::Machine>,
}

impl<'a> Server<'a> {
    pub fn new(guest: &'a Guest, socket: &'a str, monitor: &'a str) -> Result<Self> {
        let command = fs::read_to_string(format!("/proc/{}/cmdline", guest.process()))?;
        let command = command.split_terminator('\0').map(str::to_owned).collect();
        Ok(Self {
            guest,
            socket,
            monitor,
            command,
            later: Vec::new(),
            events: Vec::new(),
            usual: Vec::new(),
            sampled: None,
            machine: None,
        })
    }

    /// Executes requests until the guest ends.
    pub fn run(&mut self) -> Result<()> {
        let mut port = self.port()?;
        loop {
            let mut line = String::new();
            // A guest that has ended may have left an answer unread.
            if port.read_line(&mut line).unwrap_or(0) == 0 {
                return Ok(());
            }
            let outcome = match line.parse()? {
                Request::Move { live, allowed } => {
                    let moved = self.move_guest(live, allowed);
                    port = self.port()?;
                    moved.map(|()| Vec::new()).map_err(|error| {
                        eprintln!("the guest is not moved: {error:#}");
                        Refusal::EIO
                    })
                }
                Request::Neighbour { allowed } => self.neighbour(allowed).map_err(|error| {
                    eprintln!("the neighbour: {error:#}");
                    Refusal::EIO
                }),
                Request::Limits => outcome_of(domains::limits()),
                Request::Locked => outcome_of(domains::locked_kib(self.guest.process())),
                Request::Pinned => outcome_of(domains::pinned()),
                Request::LimitLocked { kib } => {
                    outcome_of(domains::limit_locked_kib(self.guest.process(), kib))
                }
                Request::Stopped => outcome_of(self.read_registers()),
                Request::Reused => outcome_of(reused::allow()),
                Request::Domains => outcome_of(domains::list(self.guest.process())),
                Request::AllowByName(allowed) => outcome_of(domains::allow(allowed)),
                Request::AllowNobody => outcome_of(domains::allow_nobody()),
                Request::Keep { file, bytes } => {
                    let mut kept = vec![0; bytes as usize];
                    port.read_exact(&mut kept)?;
                    fs::write(file.path(), kept)?;
                    Ok(Vec::new())
                }
                Request::StartSampled => outcome_of(self.start_sampled()),
                Request::SampleHost => {
                    judge(&mut port, self.sample())?;
                    continue;
                }
                Request::ReportSampled { long } => {
                    judge(&mut port, sampled::report_joined(long))?;
                    continue;
                }
                Request::CountHost => outcome_of(cpus().map_err(Into::into).and_then(count_host)),
                request => self.act(request),
            };
            writeln!(port.get_mut(), "{}", answer(outcome))?;
        }
    }

    fn port(&self) -> Result<BufReader<UnixStream>> {
        let socket = self.own(self.socket);
        Ok(BufReader::new(UnixStream::connect(&socket).context(socket)?))
    }

    /// Returns the socket of the process that runs the guest now.
    fn own(&self, socket: &str) -> String {
        match self.later.len() {
            0 => socket.to_owned(),
            number => format!("{socket}.{number}"),
        }
    }

    fn act(&mut self, request: Request) -> Result<Vec<u64>, Refusal> {
        match request {
            Request::Place { vcpu, pcpus } => {
                self.guest.moves.store(true, Relaxed);
                let cpus: Vec<usize> = (0..64).filter(|cpu| pcpus >> cpu & 1 == 1).collect();
                run_on(self.thread(vcpu)?, &cpus)?;
            }
            Request::PreemptOften(often) => self.preempt_often(often)?,
            Request::Runstate { vcpu } => return self.runstate(vcpu),
            Request::Allow(true) => allow(self.guest.process())?,
            Request::Allow(false) => write(FORBID, &self.guest.process().to_string())?,
            Request::Stats => return numbers(STATS),
            Request::HoldPerf(true) => self.events = perf::open_all(&cpus()?)?,
            Request::HoldPerf(false) => self.events.clear(),
            Request::Unplug => return unplug(),
            Request::ContextSwitches { vcpu } => return self.context_switches(vcpu),
            _ => return Err(Refusal::EINVAL),
        }
        Ok(Vec::new())
    }

    fn thread(&self, vcpu: u32) -> Result<Pid, Refusal> {
        vcpus(self.guest.process()).get(vcpu as usize).copied().ok_or(Refusal::EINVAL)
    }

    /// Returns the time that the vCPU's thread was on a CPU, and the time that it waited for one,
    /// by the scheduler's account.
    fn runstate(&self, vcpu: u32) -> Result<Vec<u64>, Refusal> {
        let (process, thread) = (self.guest.process(), self.thread(vcpu)?);
        let mut times = numbers(&format!("/proc/{process}/task/{thread}/schedstat"))?;
        times.truncate(2);
        Ok(times)
    }

    /// Returns how often the vCPU's thread has left its CPU: to wait, or for another thread.
    fn context_switches(&self, vcpu: u32) -> Result<Vec<u64>, Refusal> {
        let (process, thread) = (self.guest.process(), self.thread(vcpu)?);
        let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status"));
        let status = status.map_err(|_| Refusal::ENOENT)?;
        let count = |key: &str| -> Option<u64> {
            status.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok()
        };
        let [waits, preempted] = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"]
            .map(|key| count(key).ok_or(Refusal::EPROTO));
        Ok(vec![waits? + preempted?])
    }

    fn preempt_often(&mut self, often: bool) -> Result<(), Refusal> {
        if !often {
            let usual = std::mem::take(&mut self.usual);
            return slices().iter().zip(usual).try_for_each(|((path, _), ns)| write(path, &ns));
        }
        for (path, ns) in slices() {
            self.usual.push(fs::read_to_string(path).map_err(|_| Refusal::ENOENT)?);
            write(path, &ns.to_string())?;
        }
        Ok(())
    }

    /// Moves the guest to another process, while it executes or through a file.
    fn move_guest(&mut self, live: bool, allowed: bool) -> Result<()> {
        let monitor = Monitor::connect(&self.own(self.monitor))?;
        if live {
            self.start(SENT, allowed)?;
            monitor.migrate(SENT)
        } else {
            monitor.migrate(&format!("exec:cat > {SAVED}"))?;
            self.start(&format!("exec:cat {SAVED}"), allowed)?;
            Ok(())
        }
    }

    /// Reads the registers of the guest's vCPUs while the guest is stopped. For this the emulator
    /// makes many requests, and KVM loads and puts the vCPU for each of them. Returns how often the
    /// driver has switched a vCPU out.
    fn read_registers(&self) -> Result<Vec<u64>> {
        let mut monitor = Monitor::connect(&self.own(self.monitor))?;
        monitor.stop()?;
        let before = switches()?;
        monitor.read_registers()?;
        let after = switches()?;
        monitor.go_on()?;
        Ok(vec![after - before])
    }

    /// Starts the second guest that is sampled.
    fn start_sampled(&mut self) -> Result<Vec<u64>> {
        let child = self.start_neighbour(SAMPLED, sampled::OTHER, false)?;
        // It is ended in any case.
        let child = self.sampled.insert(child);
        let process = Pid::from_raw(child.id().try_into()?);
        self.machine = Some(sampled::wait(process, &format!("{NEIGHBOURS_PORTS}1"))?);
        Ok(Vec::new())
    }

    /// Samples the host while both guests execute, and ends the second one.
    fn sample(&mut self) -> Result<Vec<Made>> {
        let other = self.machine.take().context("there is no second guest")?;
        let monitor = &mut Monitor::connect(&self.own(self.monitor))?;
        let judged = sampled::run(self.guest.process(), other, monitor);
        self.end_sampled();
        judged
    }

    fn end_sampled(&mut self) {
        if let Some(mut child) = self.sampled.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// Starts a second guest, which knows its role by this argument of its kernel's. Its machine
    /// has this name.
    fn start_neighbour(&self, role: &str, name: &str, allowed: bool) -> Result<Child> {
        let mut words = self.words(role);
        // The second guest's ports are files of its own.
        words = words.iter().map(|word| word.replace(PORTS, NEIGHBOURS_PORTS)).collect();
        let argument_of = |words: &[String], option: &str| -> Result<usize> {
            Ok(1 + words.iter().position(|word| word == option).context(option.to_owned())?)
        };
        let kernels = argument_of(&words, "-append")?;
        words[kernels] += &format!(" {role}");
        let named = argument_of(&words, "-name")?;
        words[named] = words[named].replacen(domains::NAME, name, 1);
        while let Some(port) = words.iter().position(|word| word == "-add-fd") {
            words.drain(port..port + 2);
        }
        // This removes files of an earlier guest.
        for port in 0..4 {
            fs::write(format!("{NEIGHBOURS_PORTS}{port}"), "")?;
        }
        // QEMU makes writing to its console fail rather than wait. With a console of its own this
        // does not affect what this program prints.
        let console = File::options().write(true).open("/dev/console")?;
        let mut command = Command::new(&words[0]);
        spawn(command.args(&words[1..]).stdout(console.try_clone()?).stderr(console), allowed)
    }

    /// Runs a second guest to its end, and returns the numbers that its command has printed.
    fn neighbour(&self, allowed: bool) -> Result<Vec<u64>> {
        let mut child = self.start_neighbour(NEIGHBOUR, domains::NAME, allowed)?;
        let listed = domains::list(self.guest.process())?;
        // Machines are listed in the order of their processes' numbers.
        let own = (self.guest.process().as_raw(), [1, 1]);
        let mut expected = [own, (i32::try_from(child.id())?, [0, u64::from(allowed)])];
        expected.sort_unstable();
        ensure!(listed == expected.map(|(_, row)| row).concat(), "{listed:?}");
        let status = child.wait()?;
        let printed = [0, 1, 2].map(|port| fs::read_to_string(format!("{NEIGHBOURS_PORTS}{port}")));
        let [control, stdout, stderr] = printed;
        let (control, stdout, stderr) = (control?, stdout?, stderr?);
        let good = status.success() && control.ends_with("exit 0\n");
        ensure!(good, "{status}, {control:?}, {stdout}, {stderr}");
        let last = stdout.lines().next_back().context("it says nothing")?;
        Ok(last.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
    }

    /// Returns the first process' command line with sockets of another process.
    fn words(&self, ending: &str) -> Vec<String> {
        let own = |word: &String| {
            let own = |word: String, path: &&str| word.replace(path, &format!("{path}.{ending}"));
            [self.socket, self.monitor].iter().fold(word.clone(), own)
        };
        self.command.iter().map(own).collect()
    }

    /// Starts another process, which receives the guest from this source, and lets it count or not.
    fn start(&mut self, from: &str, allowed: bool) -> Result<()> {
        let words = self.words(&(self.later.len() + 1).to_string());
        let mut command = Command::new(&words[0]);
        let child = spawn(command.args(&words[1..]).args(["-incoming", from]), allowed)?;
        self.guest.process.store(child.id().try_into()?, Relaxed);
        self.later.push(child);
        // The process listens as soon as it answers.
        Monitor::connect(&self.own(self.monitor)).map(drop)
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.guest.ended.store(true, Relaxed);
        self.end_sampled();
        for child in &mut self.later {
            child.wait().ok();
        }
    }
}

/// Takes a physical CPU offline and online again. Returns how often the driver had switched a vCPU
/// out before, while the CPU was offline, and after it came back.
fn unplug() -> Result<Vec<u64>, Refusal> {
    let mut seen = vec![switches()?];
    for online in ["0", "1"] {
        write(ONLINE, online)?;
        sleep(UNPLUGGED);
        seen.push(switches()?);
    }
    Ok(seen)
}

/// Returns how often the driver has switched a vCPU out.
fn switches() -> Result<u64, Refusal> {
    numbers(STATS)?.get(SWITCHES).copied().ok_or(Refusal::EPROTO)
}

/// Counts what the host's CPUs execute.
fn count_host(cpus: Vec<usize>) -> Result<Vec<u64>> {
    let HostPerf { errno, error, watchdog } = perf::count(&cpus)?;
    Ok(vec![errno, error, watchdog.into()])
}

/// Returns the command's output, or why it has failed.
fn outcome_of(outcome: Result<Vec<u64>>) -> Result<Vec<u64>, Refusal> {
    outcome.map_err(|error| {
        eprintln!("perfctr domains: {error:#}");
        Refusal::EIO
    })
}

/// Answers with a list of checks.
fn judge(port: &mut BufReader<UnixStream>, judged: Result<Vec<Made>>) -> Result<()> {
    let checks = judged.map_err(|error| {
        eprintln!("the host's samples: {error:#}");
        Refusal::EIO
    });
    let document = checks.as_ref().map_or_else(|_| Ok(Vec::new()), serde_json::to_vec)?;
    let port = port.get_mut();
    writeln!(port, "{}", answer(checks.map(|_| vec![document.len() as u64])))?;
    Ok(port.write_all(&document)?)
}

/// Starts a program that runs a guest. Lets the guest count, or not, before it has executed much.
fn spawn(command: &mut Command, allowed: bool) -> Result<Child> {
    let mut child = command.spawn()?;
    let process = Pid::from_raw(child.id().try_into()?);
    while vcpus(process).is_empty() {
        ensure!(child.try_wait()?.is_none(), "{command:?} has ended");
        sleep(BETWEEN_LOOKS);
    }
    if allowed {
        allow(process)?;
    }
    Ok(child)
}

fn numbers(path: &str) -> Result<Vec<u64>, Refusal> {
    let text = fs::read_to_string(path)
        .map_err(|error| error.raw_os_error().map_or(Refusal::EIO, Refusal::from_raw))?;
    text.split_whitespace().map(|word| word.parse().map_err(|_| Refusal::EPROTO)).collect()
}
