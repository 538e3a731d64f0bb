// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Connects a guest of KVM with the program on its host (`bin/host`) that does what the guest's
//! tests ask for.
//!
//! They talk through a virtio port. A [`Request`] is one line, behind which there may be a file.
//! The answer is another line: `ok` with numbers, or `error` with an error's number. Behind it
//! there may be a list of checks.
#![expect(unsafe_code, reason = "ioctl takes a pointer")]

use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context, bail};
use shared_abi::hypercall::HvStats;
use zerocopy::FromBytes;

use crate::host::{Host, Runstate};
use crate::module;
use crate::raw::{Argument, Refusal};
use crate::tally::Made;
use crate::xen::Xen;

/// The argument that the kernel of a second guest has in addition to the first one's.
pub const NEIGHBOUR: &str = "neighbour";
/// The argument of a second guest that is sampled.
pub const SAMPLED: &str = "sampled";

/// The port's name.
const PORT: &str = "host";
/// The folder in which the kernel says which device has which name.
const PORTS: &str = "/sys/class/virtio-ports";

/// The module that makes hypercalls for a program, and its device.
const CALL_MODULE: &str = "/lib/perfctr/call.ko";
const CALL_DEVICE: &str = "/dev/perfctr-call";
/// `_IOC(_IOC_WRITE, 'C', 1, sizeof(struct call))`.
const IOCTL_CALL: u64 = 1 << 30 | (size_of::<Call>() as u64) << 16 | 0x43 << 8 | 1;

/// The module's `struct call`.
#[repr(C)]
struct Call {
    address: u64,
    op: u32,
    length: u32,
}

/// A guest's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// [`Host::set_affinity`]. From the first such request on, nobody else moves a vCPU.
    Place {
        /// The vCPU.
        vcpu: u32,
        /// The physical CPUs, as a mask.
        pcpus: u64,
    },
    /// [`Host::preempt_often`].
    PreemptOften(bool),
    /// [`Host::runstate`].
    Runstate {
        /// The vCPU.
        vcpu: u32,
    },
    /// [`Host::allow`].
    Allow(bool),
    /// [`Host::stats`].
    Stats,
    /// [`Kvm::move_to_another`].
    Move {
        /// Whether the guest is moved while it executes.
        live: bool,
        /// Whether it may count there.
        allowed: bool,
    },
    /// [`Kvm::neighbour`].
    Neighbour {
        /// Whether it may count.
        allowed: bool,
    },
    /// [`Kvm::limits`].
    Limits,
    /// [`Kvm::locked_kib`].
    Locked,
    /// [`Kvm::pinned`].
    Pinned,
    /// [`Kvm::limit_locked_kib`].
    LimitLocked {
        /// Unit: KiB.
        kib: u64,
    },
    /// [`Kvm::switches_of_a_stopped_guest`].
    Stopped,
    /// [`Kvm::allow_after_reuse`].
    Reused,
    /// [`Kvm::domains`].
    Domains,
    /// [`Kvm::allow_by_name`].
    AllowByName(bool),
    /// [`Kvm::allow_nobody`].
    AllowNobody,
    /// [`Kvm::count_host`].
    CountHost,
    /// [`Kvm::hold_perf`].
    HoldPerf(bool),
    /// [`Kvm::unplug`].
    Unplug,
    /// [`Kvm::context_switches`].
    ContextSwitches {
        /// The vCPU.
        vcpu: u32,
    },
    /// [`Kvm::keep`].
    Keep {
        /// Which file.
        file: Kept,
        /// Its size.
        bytes: u64,
    },
    /// [`Kvm::start_sampled`].
    StartSampled,
    /// [`Kvm::sample_host`].
    SampleHost,
    /// [`Kvm::report_sampled`].
    ReportSampled {
        /// Whether the long tier's checks are made, too.
        long: bool,
    },
}

/// A file that the guest gives to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The functions of the guest's kernel, as its `/proc/kallsyms` lists them.
    Kernel,
    /// The guest's programs that are sampled: a list of [`Worker`](crate::workers::Worker).
    Workers,
    /// What `perfctr record --names` has written in the guest.
    Names,
}

impl Kept {
    const ALL: [Self; 3] = [Self::Kernel, Self::Workers, Self::Names];

    /// Returns where the host keeps it.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Kernel => "/machine/guest.kallsyms",
            Self::Workers => "/machine/guest.workers",
            Self::Names => "/machine/guest.names",
        }
    }
}

/// The result of the host's perf when it counts all of the host's CPUs, as `perf stat -a` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostPerf {
    /// The number of the error with which it fails to count, or 0.
    pub errno: u64,
    /// The number of instructions by which its count of a thread is wrong.
    pub error: u64,
    /// Whether the host's hard-lockup watchdog runs.
    pub watchdog: bool,
}

impl Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Place { vcpu, pcpus } => write!(f, "place {vcpu} {pcpus}"),
            Self::PreemptOften(often) => write!(f, "preempt {}", u64::from(often)),
            Self::Runstate { vcpu } => write!(f, "runstate {vcpu}"),
            Self::Allow(enabled) => write!(f, "allow {}", u64::from(enabled)),
            Self::Stats => write!(f, "stats"),
            Self::Move { live, allowed } => {
                write!(f, "move {} {}", u64::from(live), u64::from(allowed))
            }
            Self::Neighbour { allowed } => write!(f, "neighbour {}", u64::from(allowed)),
            Self::Limits => write!(f, "limits"),
            Self::Locked => write!(f, "locked"),
            Self::Pinned => write!(f, "pinned"),
            Self::LimitLocked { kib } => write!(f, "limit-locked {kib}"),
            Self::Stopped => write!(f, "stopped"),
            Self::Reused => write!(f, "reused"),
            Self::Domains => write!(f, "domains"),
            Self::AllowByName(allowed) => write!(f, "allow-by-name {}", u64::from(allowed)),
            Self::AllowNobody => write!(f, "allow-nobody"),
            Self::CountHost => write!(f, "count-host"),
            Self::HoldPerf(held) => write!(f, "hold-perf {}", u64::from(held)),
            Self::Unplug => write!(f, "unplug"),
            Self::ContextSwitches { vcpu } => write!(f, "context-switches {vcpu}"),
            Self::Keep { file, bytes } => write!(f, "keep {} {bytes}", file as u64),
            Self::StartSampled => write!(f, "start-sampled"),
            Self::SampleHost => write!(f, "sample-host"),
            Self::ReportSampled { long } => write!(f, "report-sampled {}", u64::from(long)),
        }
    }
}

impl FromStr for Request {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let mut words = line.split_whitespace();
        let name = words.next().context("no request")?;
        let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>()?;
        Ok(match (name, &numbers[..]) {
            ("place", &[vcpu, pcpus]) => Self::Place { vcpu: vcpu as u32, pcpus },
            ("preempt", &[often]) => Self::PreemptOften(often == 1),
            ("runstate", &[vcpu]) => Self::Runstate { vcpu: vcpu as u32 },
            ("allow", &[enabled]) => Self::Allow(enabled == 1),
            ("stats", []) => Self::Stats,
            ("move", &[live, allowed]) => Self::Move { live: live == 1, allowed: allowed == 1 },
            ("neighbour", &[allowed]) => Self::Neighbour { allowed: allowed == 1 },
            ("limits", []) => Self::Limits,
            ("locked", []) => Self::Locked,
            ("pinned", []) => Self::Pinned,
            ("limit-locked", &[kib]) => Self::LimitLocked { kib },
            ("stopped", []) => Self::Stopped,
            ("reused", []) => Self::Reused,
            ("domains", []) => Self::Domains,
            ("allow-by-name", &[allowed]) => Self::AllowByName(allowed == 1),
            ("allow-nobody", []) => Self::AllowNobody,
            ("count-host", []) => Self::CountHost,
            ("hold-perf", &[held]) => Self::HoldPerf(held == 1),
            ("unplug", []) => Self::Unplug,
            ("context-switches", &[vcpu]) => Self::ContextSwitches { vcpu: vcpu as u32 },
            ("keep", &[file, bytes]) => {
                let file = *Kept::ALL.get(file as usize).context("no such file")?;
                Self::Keep { file, bytes }
            }
            ("start-sampled", []) => Self::StartSampled,
            ("sample-host", []) => Self::SampleHost,
            ("report-sampled", &[long]) => Self::ReportSampled { long: long == 1 },
            _ => bail!("no request: {line}"),
        })
    }
}

/// Returns an answer as a line.
pub fn answer(outcome: Result<Vec<u64>, Refusal>) -> String {
    match outcome {
        Ok(numbers) => numbers.iter().fold("ok".to_owned(), |line, n| format!("{line} {n}")),
        Err(errno) => format!("error {}", errno as i32),
    }
}

/// Returns what a line answers, or `EPROTO` if it is no answer.
fn answered(line: &str) -> Result<Vec<u64>, Refusal> {
    let (how, numbers) = line.split_once(' ').unwrap_or((line, ""));
    let numbers: Result<Vec<u64>, _> = numbers.split_whitespace().map(str::parse).collect();
    match (how, numbers.as_deref()) {
        ("ok", Ok(numbers)) => Ok(numbers.to_vec()),
        ("error", Ok(&[errno])) => Err(Refusal::from_raw(errno as i32)),
        _ => Err(Refusal::EPROTO),
    }
}

/// The connection to the host's program.
#[derive(Debug)]
pub struct Kvm {
    port: Mutex<BufReader<File>>,
    call: OnceLock<File>,
}

impl Kvm {
    /// Opens the port.
    ///
    /// # Errors
    ///
    /// There is no port of that name, or it is already open.
    pub fn open() -> io::Result<Self> {
        let port = File::options().read(true).write(true).open(port()?)?;
        Ok(Self { port: Mutex::new(BufReader::new(port)), call: OnceLock::new() })
    }

    /// Makes another process run this guest. The guest is migrated while it executes, or else saved
    /// and restored. The answer comes where the guest continues.
    ///
    /// # Errors
    ///
    /// `EIO` if this fails. The host's console says why.
    pub fn move_to_another(&self, live: bool, allowed: bool) -> Result<(), Refusal> {
        self.request(Request::Move { live, allowed }).map(drop)
    }

    /// Runs a second guest like this one beside it, whose kernel gets the argument [`NEIGHBOUR`].
    /// Returns the numbers that its command has printed, once it has ended well.
    ///
    /// # Errors
    ///
    /// `EIO` if it has not ended well. The host's console says why.
    pub fn neighbour(&self, allowed: bool) -> Result<Vec<u64>, Refusal> {
        self.request(Request::Neighbour { allowed })
    }

    /// Returns the numbers of the host's `perfctr domains limits`: general counters, fixed ones,
    /// and whether they sample.
    ///
    /// # Errors
    ///
    /// `EIO` if that has failed. The host's console says why.
    pub fn limits(&self) -> Result<Vec<u64>, Refusal> {
        self.request(Request::Limits)
    }

    /// Returns how much memory the process that runs this guest has locked. Unit: KiB.
    ///
    /// # Errors
    ///
    /// Those of [`limits`](Self::limits).
    pub fn locked_kib(&self) -> Result<u64, Refusal> {
        match self.request(Request::Locked)?[..] {
            [kib] => Ok(kib),
            _ => Err(Refusal::EPROTO),
        }
    }

    /// Returns how many pages of the host's memory are pinned, by whomever.
    ///
    /// # Errors
    ///
    /// Those of [`limits`](Self::limits).
    pub fn pinned(&self) -> Result<u64, Refusal> {
        match self.request(Request::Pinned)?[..] {
            [pages] => Ok(pages),
            _ => Err(Refusal::EPROTO),
        }
    }

    /// Limits how much memory the process that runs this guest may lock. The process cannot exceed
    /// such a limit. Unit: KiB.
    ///
    /// # Errors
    ///
    /// Those of [`limits`](Self::limits).
    pub fn limit_locked_kib(&self, kib: u64) -> Result<(), Refusal> {
        self.request(Request::LimitLocked { kib }).map(drop)
    }

    /// Makes the host stop this guest, read the registers of all its vCPUs, and let it go on.
    /// Returns how often the driver has switched a vCPU out meanwhile.
    ///
    /// # Errors
    ///
    /// Those of [`limits`](Self::limits).
    pub fn switches_of_a_stopped_guest(&self) -> Result<u64, Refusal> {
        match self.request(Request::Stopped)?[..] {
            [switches] => Ok(switches),
            _ => Err(Refusal::EPROTO),
        }
    }

    /// Makes the host allow a machine by the number of the process that made it: while that process
    /// exists, when it is gone, and when another process has its number. Then the host forbids the
    /// machine by that number. Returns the four errors, 0 for none.
    ///
    /// # Errors
    ///
    /// Those of [`limits`](Self::limits).
    pub fn allow_after_reuse(&self) -> Result<Vec<u64>, Refusal> {
        self.request(Request::Reused)
    }

    /// Returns what the host's `perfctr domains list` prints for each machine: whether it runs this
    /// guest, and whether it may count.
    ///
    /// # Errors
    ///
    /// Those of [`limits`](Self::limits).
    pub fn domains(&self) -> Result<Vec<u64>, Refusal> {
        self.request(Request::Domains)
    }

    /// Runs `perfctr domains allow`, or `forbid`, with the machine's name.
    ///
    /// # Errors
    ///
    /// Those of [`limits`](Self::limits).
    pub fn allow_by_name(&self, allowed: bool) -> Result<(), Refusal> {
        self.request(Request::AllowByName(allowed)).map(drop)
    }

    /// Runs `perfctr domains allow` for a process that runs no machine. Returns the exit status.
    ///
    /// # Errors
    ///
    /// Those of [`limits`](Self::limits), also if the command does not name the process.
    pub fn allow_nobody(&self) -> Result<Vec<u64>, Refusal> {
        self.request(Request::AllowNobody)
    }

    /// Makes the host's perf count all of the host's CPUs for a moment.
    ///
    /// # Errors
    ///
    /// Those of [`limits`](Self::limits), also if perf does not count all the time.
    pub fn count_host(&self) -> Result<HostPerf, Refusal> {
        match self.request(Request::CountHost)?[..] {
            [errno, error, watchdog] => Ok(HostPerf { errno, error, watchdog: watchdog != 0 }),
            _ => Err(Refusal::EPROTO),
        }
    }

    /// Makes the host's perf count all of the host's CPUs from now on, or stop that.
    ///
    /// # Errors
    ///
    /// perf's error.
    pub fn hold_perf(&self, held: bool) -> Result<(), Refusal> {
        self.request(Request::HoldPerf(held)).map(drop)
    }

    /// Takes a physical CPU of the host offline for a while, and online again. Returns how often
    /// the driver had switched a vCPU out before, while it was offline, and after it came back.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn unplug(&self) -> Result<[u64; 3], Refusal> {
        self.request(Request::Unplug)?.try_into().map_err(|_| Refusal::EPROTO)
    }

    /// Returns how often a vCPU's thread has left its CPU on the host.
    ///
    /// # Errors
    ///
    /// There is no such vCPU.
    pub fn context_switches(&self, vcpu: u32) -> Result<u64, Refusal> {
        match self.request(Request::ContextSwitches { vcpu })?[..] {
            [switches] => Ok(switches),
            _ => Err(Refusal::EPROTO),
        }
    }

    /// Gives the host a file.
    ///
    /// # Errors
    ///
    /// Those of [`limits`](Self::limits).
    pub fn keep(&self, file: Kept, bytes: &[u8]) -> Result<(), Refusal> {
        let request = Request::Keep { file, bytes: bytes.len() as u64 };
        self.exchange(request, bytes, false).map(drop)
    }

    /// Starts a second guest like this one, whose kernel gets the argument [`SAMPLED`]. Waits until
    /// it executes known functions.
    ///
    /// # Errors
    ///
    /// Those of [`limits`](Self::limits).
    pub fn start_sampled(&self) -> Result<(), Refusal> {
        self.request(Request::StartSampled).map(drop)
    }

    /// Makes the host sample itself, this guest and that second one, end the second one, and judge
    /// the profile. The host must have the kernel's functions and the workers. Returns the checks
    /// that were made.
    ///
    /// # Errors
    ///
    /// Those of [`limits`](Self::limits).
    pub fn sample_host(&self) -> Result<Vec<Made>, Refusal> {
        self.judged(Request::SampleHost)
    }

    /// Makes the host join that profile with what this guest has recorded of its programs, and
    /// judge the result. Returns the checks that were made.
    ///
    /// # Errors
    ///
    /// Those of [`limits`](Self::limits).
    pub fn report_sampled(&self, long: bool) -> Result<Vec<Made>, Refusal> {
        self.judged(Request::ReportSampled { long })
    }

    fn request(&self, request: Request) -> Result<Vec<u64>, Refusal> {
        self.exchange(request, &[], false).map(|(numbers, _)| numbers)
    }

    fn judged(&self, request: Request) -> Result<Vec<Made>, Refusal> {
        let (_, checks) = self.exchange(request, &[], true)?;
        serde_json::from_slice(&checks).map_err(|_| Refusal::EPROTO)
    }

    /// Sends a request, with a file behind it. Returns the answer, and, if there is a document
    /// behind it, that.
    fn exchange(
        &self,
        request: Request,
        file: &[u8],
        has_document: bool,
    ) -> Result<(Vec<u64>, Vec<u8>), Refusal> {
        let refusal =
            |error: io::Error| error.raw_os_error().map_or(Refusal::EIO, Refusal::from_raw);
        // A thread that has panicked leaves no state here that matters.
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        let mut line = String::new();
        port.get_mut()
            .write_all(format!("{request}\n").as_bytes())
            .and_then(|()| port.get_mut().write_all(file))
            .and_then(|()| port.read_line(&mut line))
            .map_err(refusal)?;
        let numbers = answered(line.trim_end())?;
        let mut document = Vec::new();
        if has_document {
            let &[bytes] = &numbers[..] else { return Err(Refusal::EPROTO) };
            document.resize(bytes as usize, 0);
            port.read_exact(&mut document).map_err(refusal)?;
        }
        Ok((numbers, document))
    }

    /// Returns the device that makes hypercalls. Its module is loaded when it is first used.
    fn call(&self) -> Result<&File, Refusal> {
        if let Some(call) = self.call.get() {
            return Ok(call);
        }
        if !Path::new(CALL_DEVICE).exists() {
            module::load_file(CALL_MODULE, c"").map_err(|_| Refusal::ENXIO)?;
        }
        let device = File::open(CALL_DEVICE).map_err(|_| Refusal::ENXIO)?;
        Ok(self.call.get_or_init(|| device))
    }
}

/// Returns the path of the port's device.
fn port() -> io::Result<PathBuf> {
    for entry in fs::read_dir(PORTS)? {
        let entry = entry?;
        if fs::read_to_string(entry.path().join("name"))?.trim() == PORT {
            return Ok(Path::new("/dev").join(entry.file_name()));
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("no virtio port {PORT}")))
}

impl Host for Kvm {
    fn set_affinity(&self, vcpu: u32, pcpus: u64) -> Result<(), Refusal> {
        self.request(Request::Place { vcpu, pcpus }).map(drop)
    }

    fn preempt_often(&self, often: bool) -> Result<(), Refusal> {
        self.request(Request::PreemptOften(often)).map(drop)
    }

    fn runstate(&self, vcpu: u32) -> Result<Runstate, Refusal> {
        match self.request(Request::Runstate { vcpu })?[..] {
            [running_ns, runnable_ns] => Ok(Runstate { running_ns, runnable_ns }),
            _ => Err(Refusal::EPROTO),
        }
    }

    fn allow(&self, enabled: bool) -> Result<(), Refusal> {
        self.request(Request::Allow(enabled)).map(drop)
    }

    fn stats(&self) -> Result<HvStats, Refusal> {
        let numbers = self.request(Request::Stats)?;
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        HvStats::read_from_bytes(&bytes).map_err(|_| Refusal::EPROTO)
    }

    fn perfctr_op(&self, op: u32, mut argument: Argument<'_>, length: u32) -> Result<(), Refusal> {
        let mut call = Call { address: argument.address(), op, length };
        let device = self.call()?.as_raw_fd();
        // SAFETY: the structure is as large as the request's number says. The memory that it names
        // is as large as the operation needs, or is nobody's.
        Refusal::result(unsafe { libc::ioctl(device, IOCTL_CALL, &raw mut call) }).map(drop)
    }

    fn xen(&self) -> Option<&Xen> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_arrive_as_they_were_sent() {
        for request in [
            Request::Place { vcpu: 3, pcpus: 1 << 63 },
            Request::PreemptOften(true),
            Request::Runstate { vcpu: 1 },
            Request::Allow(false),
            Request::Stats,
            Request::Move { live: true, allowed: false },
            Request::Neighbour { allowed: true },
            Request::Limits,
            Request::Locked,
            Request::Pinned,
            Request::LimitLocked { kib: 4 },
            Request::Stopped,
            Request::Reused,
            Request::Domains,
            Request::AllowByName(false),
            Request::AllowNobody,
            Request::CountHost,
            Request::HoldPerf(true),
            Request::Unplug,
            Request::ContextSwitches { vcpu: 2 },
            Request::Keep { file: Kept::Kernel, bytes: 1 << 33 },
            Request::Keep { file: Kept::Workers, bytes: 0 },
            Request::Keep { file: Kept::Names, bytes: 7 },
            Request::StartSampled,
            Request::SampleHost,
            Request::ReportSampled { long: true },
        ] {
            assert_eq!(request.to_string().parse::<Request>().unwrap(), request);
        }
        assert!("place 1".parse::<Request>().is_err());
        assert!("keep 3 1".parse::<Request>().is_err());
    }

    #[test]
    fn answers_arrive_as_they_were_sent() {
        for outcome in [Ok(vec![]), Ok(vec![1, u64::MAX]), Err(Refusal::ESRCH)] {
            assert_eq!(answered(&answer(outcome.clone())), outcome);
        }
        assert_eq!(answered(""), Err(Refusal::EPROTO));
    }
}
