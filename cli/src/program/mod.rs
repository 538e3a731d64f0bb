// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Observes programs, with all that they start.

pub mod beside;
pub mod child;
pub mod device;
pub mod limits;
pub mod ptrace;
pub mod repeatable;
pub mod tracer;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use libc::{c_int, pid_t};
use nix::sys::prctl;
use perfctr_gate::text::harmless;
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// The target of an observation.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// A program from its first instruction to the end of all that it starts.
    Program(&'a [OsString]),
    /// A process that runs already, from now on: until this program ends, if there is one, or until
    /// the caller interrupts, or to its own end.
    Process(pid_t, &'a [OsString]),
    /// The same with one thread, and the threads and processes that it starts.
    Thread(pid_t, &'a [OsString]),
    /// The same with everything that executes on any CPU.
    Cpus(&'a [OsString]),
    /// The same with the group of processes of this directory in cgroup v2.
    Cgroup(&'a Path, &'a [OsString]),
}

impl<'a> Target<'a> {
    /// Returns the target of a command line, which has at most one of these beside the program.
    pub fn of(
        process: Option<pid_t>,
        thread: Option<pid_t>,
        cgroup: Option<&'a Path>,
        all_cpus: bool,
        command: &'a [OsString],
    ) -> Self {
        match (process, thread, cgroup) {
            (Some(pid), ..) => Self::Process(pid, command),
            (_, Some(tid), _) => Self::Thread(tid, command),
            (.., Some(directory)) => Self::Cgroup(directory, command),
            _ if all_cpus => Self::Cpus(command),
            _ => Self::Program(command),
        }
    }

    /// Returns the command that is run meanwhile, and the process or thread whose end also ends the
    /// observation.
    pub fn parts(self) -> (&'a [OsString], Option<pid_t>) {
        match self {
            Self::Process(id, command) | Self::Thread(id, command) => (command, Some(id)),
            Self::Program(command) | Self::Cpus(command) | Self::Cgroup(_, command) => {
                (command, None)
            }
        }
    }
}

/// The signals that the caller has sent.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    interrupted: Arc<AtomicBool>,
    alarmed: Arc<AtomicBool>,
    /// Whether alarms end intervals. Otherwise they only make this look for the caller's
    /// interrupts.
    intervals: bool,
}

/// The longest time between two checks whether the caller has interrupted.
pub const LOOK: Duration = Duration::from_millis(10);

impl Signals {
    /// Handles signals that interrupt the program. Such a signal must not end the observer, which
    /// still has to print results. The signal is handled and not ignored, because the program would
    /// inherit an ignored signal.
    pub fn handle(target: Target<'_>, interval: Option<Duration>) -> io::Result<Self> {
        let signals = Self { intervals: interval.is_some(), ..Self::default() };
        signals.interrupted_by(&[SIGINT, SIGQUIT])?;
        let foreign = !matches!(target, Target::Program(_));
        if foreign {
            // The process must not keep the counters that it was given.
            signals.interrupted_by(&[SIGTERM, SIGHUP])?;
        } else {
            // Processes that the program has left behind may not end on an interrupt.
            ptrace::end_waits(SIGINT)?;
            ptrace::end_waits(SIGQUIT)?;
        }
        if let Some(interval) = interval.or(foreign.then_some(LOOK)) {
            signal_hook::flag::register(SIGALRM, signals.alarmed.clone())?;
            ptrace::alarm_every(interval)?;
        }
        Ok(signals)
    }

    /// Handles the signals by which the caller ends an endless observation.
    pub fn to_end() -> io::Result<Self> {
        let signals = Self::default();
        signals.interrupted_by(&[SIGINT, SIGTERM, SIGHUP])?;
        Ok(signals)
    }

    fn interrupted_by(&self, numbers: &[c_int]) -> io::Result<()> {
        for &number in numbers {
            signal_hook::flag::register(number, self.interrupted.clone())?;
        }
        Ok(())
    }

    /// Returns whether the caller has asked for an end.
    pub fn interrupted(&self) -> bool {
        self.interrupted.load(Relaxed)
    }

    /// Returns whether an interval has ended since the last call.
    pub fn alarmed(&self) -> bool {
        self.intervals && self.alarmed.swap(false, Relaxed)
    }
}

/// Returns the numbers of all processes.
pub fn processes() -> io::Result<Vec<pid_t>> {
    numbered("/proc")
}

/// Returns the threads of a process.
///
/// # Errors
///
/// `ENOENT` or `ESRCH` if there is no such process.
pub fn threads(pid: pid_t) -> io::Result<Vec<pid_t>> {
    numbered(&format!("/proc/{pid}/task"))
}

/// Returns the entries of a directory whose names are numbers.
fn numbered(directory: &str) -> io::Result<Vec<pid_t>> {
    let entries = fs::read_dir(directory)?;
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(entries.filter_map(number).collect())
}

/// Returns a line of the thread's `/proc/PID/status`, see `proc_pid_status(5)`.
pub fn status(pid: pid_t, key: &str) -> Option<String> {
    status_in(Path::new("/proc"), pid, key)
}

/// Returns the same line of the file below this directory, in place of `/proc`.
pub fn status_in(proc: &Path, pid: pid_t, key: &str) -> Option<String> {
    // The thread's name is in this file, and may be any bytes.
    let status = fs::read(proc.join(pid.to_string()).join("status")).ok()?;
    value(&String::from_utf8_lossy(&status), key)
}

fn value(status: &str, key: &str) -> Option<String> {
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(found, _)| *found == key).map(|(_, value)| value.trim().to_owned())
}

/// Returns the thread's name as it can be printed. It is empty if the thread has been killed.
///
/// Linux cuts names after 15 bytes, wherever that is in a character.
pub fn name(pid: pid_t) -> String {
    let bytes = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    harmless(&String::from_utf8_lossy(name))
}

/// Returns the group of cgroup v2 in which a process is, as its path below the root of all groups
/// that this program sees. It is empty if the process has ended or there are no such groups.
pub fn cgroup(pid: pid_t) -> String {
    let groups = fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    cgroup_of(&String::from_utf8_lossy(&groups)).to_owned()
}

/// Finds that group in `/proc/PID/cgroup`, see `cgroups(7)`.
fn cgroup_of(groups: &str) -> &str {
    groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default()
}

/// Makes this program the parent of all orphans of the processes that it starts, so that it can
/// wait for them.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(prctl::set_child_subreaper(true)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_whose_name_is_cut_in_a_character_has_a_name_and_a_state() {
        // 14 bytes, then a character of two bytes, of which Linux keeps the first.
        let named = std::thread::Builder::new().name("0123456789abcdж".to_owned());
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = named.spawn(move || {
            sender.send(nix::unistd::gettid().as_raw()).unwrap();
            ended.recv().ok();
        });
        let tid = receiver.recv().unwrap();
        let (name, state) = (name(tid), status(tid, "State"));
        drop(end);
        thread.unwrap().join().unwrap();
        assert_eq!(name, "0123456789abcd\u{fffd}");
        assert!(state.is_some_and(|state| state.starts_with(['S', 'R'])));
    }

    #[test]
    fn an_interval_ends_once_and_only_if_there_are_intervals() {
        for (intervals, expected) in [(true, [true, false]), (false, [false; 2])] {
            let signals = Signals { intervals, ..Signals::default() };
            for again in 1..=2 {
                signals.alarmed.store(true, Relaxed);
                let ended = [signals.alarmed(), signals.alarmed()];
                assert_eq!(ended, expected, "alarm {again}, intervals: {intervals}");
            }
        }
    }

    #[test]
    fn the_group_is_that_of_cgroup_v2() {
        let both = "12:cpu,cpuacct:/a:b\n1:name=systemd:/init.scope\n0::/web.slice/a:b.service\n";
        assert_eq!(cgroup_of(both), "/web.slice/a:b.service");
        assert_eq!(cgroup_of("10::/a\n1:name=systemd:/init.scope\n"), "");
        let own = std::process::id().cast_signed();
        let of_file = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        assert_eq!((cgroup(own), cgroup(-1)), (cgroup_of(&of_file).to_owned(), String::new()));
    }

    #[test]
    fn lines_of_a_status_are_found_by_their_names() {
        let status = "Name:\ta:b\nState:\tS (sleeping)\nTgid:\t7\n";
        assert_eq!(value(status, "State").unwrap(), "S (sleeping)");
        assert_eq!(value(status, "Tgid").unwrap(), "7");
        assert_eq!(value(status, "b"), None);
    }
}
