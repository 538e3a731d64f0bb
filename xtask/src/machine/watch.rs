// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Follows a running machine to its end.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;

use super::emulator::SERIAL;
use super::monitor::Monitor;
use super::outcome::{Failure, Outcome, Status};
use super::profile::Emulator;
use super::spec::Spec;

/// The longest time from power-on until the guest's init reports. If twenty others use the machine
/// at the same time, a boot of half a minute takes ten minutes.
const BOOT_TIMEOUT: Duration = Duration::from_secs(900);
/// A boot has failed if its console is silent for `BOOT_SILENCE` while the emulator uses the host's
/// CPUs, or waits for one, for less than `BOOT_IDLE` ...
const BOOT_SILENCE: Duration = Duration::from_secs(60);
const BOOT_IDLE: Duration = Duration::from_secs(3);
/// ... or if the emulator has used more CPU time than this since the console's last output, which
/// is more than any boot needs.
const BOOT_BUSY: Duration = Duration::from_secs(90);
/// The same for Bochs, whose firmware reads the software from a disc without a message.
const BOOT_BUSY_BOCHS: Duration = Duration::from_secs(600);
/// The longest time from the report of the command's end, or from a crash, until the emulator has
/// ended by itself.
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the console is silent after a crash once its trace is complete.
const CRASH_TRACE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);

/// Texts that the console shows when the guest or the hypervisor cannot go on, or should not.
const CRASHES: &[&str] = &[
    "Kernel panic",
    "Oops:",
    "BUG:",
    "] WARNING: ",
    "Panic on CPU",
    "Xen BUG at",
    "Domain 0 crashed",
    "Hardware Dom0 crashed",
    "Hardware Dom0 watchdog rebooted",
    "Initial PV mapping failed",
];

/// The questions to the emulator's monitor about a machine that does not come up or does not end,
/// and how often they are asked. If the answers differ, something is still making progress.
const QUESTIONS: &[&str] =
    &["info status", "info registers -a", "info lapic 0", "info lapic 1", "info pic", "info irq"];
const ASKED: usize = 3;
/// The input that makes Xen read the serial line (CTRL-A three times), and its keys for debugging.
const XEN_KEYS: &str = "\x01\x01\x01rqe0r";
const ASKED_EVERY: Duration = Duration::from_secs(2);

/// Waits for the end of the machine whose files are in `dir`, and ends it if it does not end by
/// itself.
pub fn until_end(spec: &Spec, dir: &Path, machine: Child) -> Result<Outcome> {
    let mut watch = Watch::new(spec, dir, machine)?;
    let status = watch.until_end()?;
    Ok(Outcome {
        status,
        stdout: watch.stdout.all,
        stderr: watch.stderr.all,
        console: dir.join("console"),
        nmis: watch.nmis,
        boot_time: watch.boot_time,
    })
}

struct Watch {
    dir: PathBuf,
    machine: Child,
    console: Follow,
    control: Follow,
    stdout: Follow,
    stderr: Follow,
    timeout: Duration,
    boot_timeout: Duration,
    stream: bool,
    wake: bool,
    press_nmi: bool,
    /// How often the button was pressed.
    nmis: usize,
    /// When the machine was last woken, or its button last pressed.
    asked_at: Instant,
    start: Instant,
    boot_time: Option<Duration>,
    progress: Progress,
}

impl Watch {
    fn new(spec: &Spec, dir: &Path, machine: Child) -> Result<Self> {
        let follow = |name: &str| Follow::new(&dir.join(name));
        Ok(Self {
            dir: dir.to_owned(),
            machine,
            console: follow("console")?,
            control: follow("control")?,
            stdout: follow("stdout")?,
            stderr: follow("stderr")?,
            timeout: spec.timeout * spec.topology.emulator.patience(),
            boot_timeout: BOOT_TIMEOUT * spec.topology.emulator.patience(),
            stream: spec.stream,
            wake: spec.wake,
            press_nmi: spec.press_nmi,
            nmis: 0,
            asked_at: Instant::now(),
            start: Instant::now(),
            boot_time: None,
            progress: Progress::new(spec.topology.emulator),
        })
    }

    /// Waits for the machine's end, and ends it if it does not end by itself.
    fn until_end(&mut self) -> Result<Status> {
        let status = loop {
            let ended = self.machine.try_wait()?;
            if let Some(status) = self.poll()? {
                break status;
            }
            if let Some(code) = ended {
                break Status::Failed(Failure::EmulatorEnded(code.to_string()));
            }
            thread::sleep(POLL);
        };
        if let Status::TimedOut(_) | Status::Failed(Failure::NeverUp(_)) = status {
            // An error here does not change how the run has ended.
            ask_monitor(&self.dir).ok();
            ask_xen(&self.dir).ok();
        }
        let reported = matches!(status, Status::Exited(_) | Status::Signaled(_));
        let patience = if reported { POWER_OFF_TIMEOUT } else { CRASH_TRACE };
        let (latest, mut end) = (Instant::now() + POWER_OFF_TIMEOUT, Instant::now() + patience);
        while self.machine.try_wait()?.is_none() && Instant::now() < end.min(latest) {
            thread::sleep(POLL);
            if self.collect()? {
                end = Instant::now() + patience;
            }
        }
        self.machine.kill().ok();
        self.machine.wait()?;
        self.collect()?;
        Ok(status)
    }

    /// Reads what is new. Returns a status if the run has ended.
    fn poll(&mut self) -> Result<Option<Status>> {
        let news = self.collect()?;
        let control = String::from_utf8_lossy(&self.control.all).into_owned();
        if self.boot_time.is_none() && control.contains("ready\n") {
            self.boot_time = Some(self.start.elapsed());
        }
        if let Some(status) = end_in(&control)? {
            return Ok(Some(status));
        }
        if news && let Some(crash) = crash_in(&String::from_utf8_lossy(&self.console.all)) {
            return Ok(Some(Status::Failed(Failure::Crashed(crash))));
        }
        let running = self.start.elapsed().saturating_sub(self.boot_time.unwrap_or_default());
        if self.boot_time.is_some() {
            self.disturb();
            return Ok((running > self.timeout).then_some(Status::TimedOut(self.timeout)));
        }
        let cpu = || CpuTime::of(self.machine.id());
        let is_over = self.progress.has_ended(running, cpu, news) || running > self.boot_timeout;
        Ok(is_over.then_some(Status::Failed(Failure::NeverUp(running))))
    }

    /// Wakes a machine if it may suspend itself and has, and presses its button if the run asks for
    /// that.
    fn disturb(&mut self) {
        if self.asked_at.elapsed() < ASKED_EVERY {
            return;
        }
        self.asked_at = Instant::now();
        if self.wake {
            // A machine that has just ended does not answer. If a machine does not wake, its run
            // times out.
            wake(&self.dir).ok();
        }
        if self.press_nmi && press_nmi(&self.dir).is_ok() {
            self.nmis += 1;
        }
    }

    /// Reads what the machine has written. Returns true if the console has news.
    fn collect(&mut self) -> Result<bool> {
        self.control.news()?;
        let stdout = self.stdout.news()?;
        if self.stream && !stdout.is_empty() {
            std::io::stdout().write_all(stdout)?;
            std::io::stdout().flush()?;
        }
        let stderr = self.stderr.news()?;
        if self.stream && !stderr.is_empty() {
            std::io::stderr().write_all(stderr)?;
        }
        Ok(!self.console.news()?.is_empty())
    }
}

/// Returns the end that the guest's init has reported, if it has.
fn end_in(control: &str) -> Result<Option<Status>> {
    let messages = control.rsplit_once('\n').map_or("", |(complete, _)| complete);
    for message in messages.lines() {
        match message.split_once(' ') {
            Some(("exit", status)) => return Ok(Some(Status::Exited(status.parse()?))),
            Some(("signal", signal)) => return Ok(Some(Status::Signaled(signal.parse()?))),
            Some(("refused", errno)) => {
                return Ok(Some(Status::Failed(Failure::Refused(errno.to_owned()))));
            }
            Some(("error", reason)) => {
                return Ok(Some(Status::Failed(Failure::NotStarted(reason.to_owned()))));
            }
            None if message == "ready" => {}
            _ => bail!("the guest's init sent `{message}`, which is no message"),
        }
    }
    Ok(None)
}

/// Returns the first line of the console that tells of a crash.
fn crash_in(console: &str) -> Option<String> {
    let crash = console.lines().find(|line| CRASHES.iter().any(|pattern| line.contains(pattern)));
    crash.map(|line| line.trim().to_owned())
}

/// Judges whether a boot makes progress. Times are since the start. On a busy machine a boot may
/// only be slow, so the measure is the time that the emulator has used of the host's CPUs.
struct Progress {
    /// The CPU time that the emulator may use without news.
    busy: Duration,
    /// The CPU time that had been used when the console last had news.
    used_at_news: Duration,
    /// The time when a period of silence began, and the CPU time by then.
    window: (Duration, CpuTime),
}

impl Progress {
    fn new(emulator: Emulator) -> Self {
        let busy = match emulator {
            Emulator::Qemu => BOOT_BUSY,
            Emulator::Bochs => BOOT_BUSY_BOCHS,
        };
        Self { busy, used_at_news: Duration::ZERO, window: Default::default() }
    }

    /// Returns whether a boot will make no more progress. `cpu` reads the emulator's CPU time.
    fn has_ended(&mut self, now: Duration, cpu: impl FnOnce() -> CpuTime, news: bool) -> bool {
        let (since, before) = self.window;
        if !news && now.saturating_sub(since) < BOOT_SILENCE {
            return false;
        }
        let cpu = cpu();
        self.window = (now, cpu);
        if news {
            self.used_at_news = cpu.used;
            return false;
        }
        // An emulator of low priority may wait for a CPU all the time.
        let wanted =
            cpu.used.saturating_sub(before.used) + cpu.waited.saturating_sub(before.waited);
        wanted < BOOT_IDLE || cpu.used.saturating_sub(self.used_at_news) > self.busy
    }
}

/// The host's CPU time of a process so far.
#[derive(Clone, Copy, Default)]
struct CpuTime {
    used: Duration,
    /// How long its threads could execute, and had no CPU.
    waited: Duration,
}

impl CpuTime {
    /// Reads the times of a process, which are 0 once it has ended.
    fn of(process: u32) -> Self {
        let mut waited = Duration::ZERO;
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for thread in threads {
            // The fields, by Linux' scheduler/sched-stats: ns on a CPU, ns waiting for one, slices.
            let times = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            let delay = times.split_whitespace().nth(1).and_then(|field| field.parse().ok());
            waited += Duration::from_nanos(delay.unwrap_or_default());
        }
        Self { used: cpu_time(process), waited }
    }
}

/// Returns the CPU time that a process has used so far, or 0 once it has ended.
fn cpu_time(process: u32) -> Duration {
    /// The unit in which Linux tells times to programs (`USER_HZ`).
    const TICK: Duration = Duration::from_millis(10);
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything; user and system time are fields 14 and 15.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u32 = fields.skip(11).take(2).filter_map(|field| field.parse::<u32>().ok()).sum();
    TICK * ticks
}

/// Writes the emulator's information about its machine to the file `machine-state` of the run.
fn ask_monitor(dir: &Path) -> Result<()> {
    let mut monitor = Monitor::open(dir)?;
    let mut log = File::create(dir.join("machine-state"))?;
    for _ in 0..ASKED {
        for question in QUESTIONS {
            let answer =
                monitor.ask("human-monitor-command", &json!({ "command-line": question }))?;
            writeln!(log, "{question}\n{}", answer.as_str().unwrap_or_default())?;
        }
        thread::sleep(ASKED_EVERY);
    }
    Ok(())
}

/// Makes Xen, if there is one, print on the console the state of its scheduler, domains, event
/// channels and CPUs.
fn ask_xen(dir: &Path) -> Result<()> {
    let mut serial = UnixStream::connect(dir.join(SERIAL))?;
    for key in XEN_KEYS.bytes() {
        serial.write_all(&[key])?;
        thread::sleep(ASKED_EVERY);
    }
    Ok(())
}

/// Wakes the machine if it has suspended itself.
fn wake(dir: &Path) -> Result<()> {
    let mut monitor = Monitor::open(dir)?;
    if monitor.ask("query-status", &json!({}))?["status"] == "suspended" {
        monitor.ask("system_wakeup", &json!({}))?;
    }
    Ok(())
}

/// Presses the machine's button for a non-maskable interrupt.
fn press_nmi(dir: &Path) -> Result<()> {
    Monitor::open(dir)?.ask("inject-nmi", &json!({}))?;
    Ok(())
}

/// A file that another program is writing.
struct Follow {
    file: File,
    all: Vec<u8>,
}

impl Follow {
    /// Follows `path`. Creates it if it is missing, so that the order of the two programs does not
    /// matter.
    fn new(path: &Path) -> Result<Self> {
        File::options().create(true).append(true).open(path)?;
        Ok(Self { file: File::open(path)?, all: Vec::new() })
    }

    /// Returns what was written since the last call.
    fn news(&mut self) -> Result<&[u8]> {
        let known = self.all.len();
        self.file.read_to_end(&mut self.all)?;
        Ok(&self.all[known..])
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn every_kind_of_crash_is_known() {
        for line in [
            "[    3.1] Kernel panic - not syncing: sysrq triggered crash",
            "(XEN) Hardware Dom0 crashed: rebooting machine in 5 seconds.",
            "(XEN) Panic on CPU 1:",
            "[    9.5] WARNING: possible circular locking dependency detected",
        ] {
            let console = format!("(XEN) Dom0 has maximum 4 VCPUs\n{line}\nmore\n");
            assert_eq!(crash_in(&console).as_deref(), Some(line));
        }
        assert_eq!(crash_in("(XEN) Hardware Dom0 halted: halting machine\n"), None);
    }

    #[test]
    fn a_silent_boot_has_ended_where_it_is_idle_or_has_had_its_time() {
        // Returns when a boot without output is first found to have ended, asked every 10 s. In
        // each second the emulator uses the CPUs for `using` ms, and waits for a CPU for `waiting`
        // ms.
        let ended_waiting = |emulator, using: fn(u64) -> u64, waiting: u64| {
            let (mut progress, mut used) = (Progress::new(emulator), 0);
            (0..90).map(|n| n * 10).find(|now| {
                used += 10 * using(*now);
                let waited = Duration::from_millis(waiting * now);
                let (now, used) = (Duration::from_secs(*now), Duration::from_millis(used));
                progress.has_ended(now, || CpuTime { used, waited }, now.is_zero())
            })
        };
        let ended_in = |emulator, using| ended_waiting(emulator, using, 0);
        let ended = |using| ended_in(Emulator::Qemu, using);
        assert_eq!(ended(|_| 20), Some(60), "idle from the start");
        assert_eq!(ended(|now| if now < 30 { 1000 } else { 20 }), Some(120), "idle after a time");
        assert_eq!(ended(|_| 2000), Some(60), "spinning");
        assert_eq!(ended(|_| 100), None, "slow on a busy build machine");
        assert_eq!(ended_waiting(Emulator::Qemu, |_| 20, 900), None, "kept from the CPUs");
        assert_eq!(ended_in(Emulator::Bochs, |_| 20), Some(60), "idle in Bochs");
        assert_eq!(ended_in(Emulator::Bochs, |_| 1000), Some(660), "spinning in Bochs");
    }

    #[test]
    fn the_end_is_what_init_reports() {
        assert_eq!(end_in("ready\n").unwrap(), None);
        assert_eq!(end_in("ready\nexit 7").unwrap(), None, "the line is not complete");
        assert_eq!(end_in("ready\nexit 7\n").unwrap(), Some(Status::Exited(7)));
        assert_eq!(end_in("ready\nsignal 9\n").unwrap(), Some(Status::Signaled(9)));
        let refused = Status::Failed(Failure::Refused("ENODEV".into()));
        assert_eq!(end_in("ready\nrefused ENODEV\n").unwrap(), Some(refused));
        let failed = Status::Failed(Failure::NotStarted("no command".into()));
        assert_eq!(end_in("error no command\n").unwrap(), Some(failed));
        assert!(end_in("what\n").is_err());
    }

    #[test]
    fn a_process_waits_where_more_can_execute_than_there_are_cpus() {
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let cpus = thread::available_parallelism().unwrap().get();
        let mut all: Vec<Child> = (0..=cpus).map(|_| spin()).collect();
        let start = Instant::now();
        let has_waited = |child: &Child| CpuTime::of(child.id()).waited > POLL;
        while !all.iter().any(has_waited) && start.elapsed() < Duration::from_secs(20) {
            thread::sleep(POLL);
        }
        let waited = all.iter().any(has_waited);
        for child in &mut all {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(waited, "nobody has waited in 20 s");
    }

    #[test]
    fn this_process_has_used_some_time() {
        let start = Instant::now();
        while cpu_time(std::process::id()).is_zero() {
            assert!(start.elapsed() < Duration::from_secs(20));
        }
    }
}
