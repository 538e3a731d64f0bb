// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! The profile that `perfctr record` writes and `perfctr report` reads: one JSON document.
//!
//! Fields may be added in later releases: readers ignore those that they do not know.
//!
//! Frames are addresses as their files state them, so that only those files are needed to name
//! them. Equal stacks of a thread are one entry.

mod collect;

pub use self::collect::{SampleOrigin, Samples};

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Cursor, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::utsname::uname;
use perfctr::host::DomainClock;
use perfctr_gate::text::harmless;
use serde::{Deserialize, Serialize};

use crate::elf::{Facts, Segment};
use crate::perf_data;

/// The text by which a file says that it is a profile.
const FORMAT: &str = "perfctr profile";
/// The same of a file with the profiles of several events, which earlier releases do not read.
const FORMAT_OF_SEVERAL: &str = "perfctr profiles";
/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;

/// The most frames of a stack.
pub const DEPTH_MAX: usize = 512;

/// A program's samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    format: String,
    version: u32,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The provider that counted.
    pub provider: String,
    /// The event that was counted.
    pub event: String,
    /// The number of events between two samples.
    pub period: u64,
    /// Whether stacks have callers.
    pub call_graph: bool,
    /// Threads and programs that could not be observed.
    pub unobserved: u32,
    /// The number of samples that were taken in a second, if `period` is only their mean distance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequency: Option<u64>,
    /// Samples that were lost when they were recorded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// Where it was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// The host, if this is the profile of one. Then the threads are the virtual CPUs of its
    /// domains: the process number is the domain's number, the thread number is the virtual CPU's,
    /// and the name is the domain's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// Files that code was executed from.
    pub modules: Vec<Module>,
    /// Places in these files.
    pub frames: Vec<Frame>,
    /// The branches that the samples have, if they were recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branches: Option<Vec<Branch>>,
    /// All threads, in the order in which they began.
    pub threads: Vec<Thread>,
    /// The stacks in which the threads were.
    pub stacks: Vec<Stack>,
}

/// A machine, as `uname(2)` names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub host: String,
    /// The kernel's release.
    pub release: String,
    /// The number of CPUs that were online.
    pub cpus: u32,
}

impl Machine {
    /// Returns the machine that this is executed on.
    pub fn this() -> Option<Self> {
        let names = uname().ok()?;
        let [host, release] = [names.nodename(), names.release()];
        let [host, release] = [host, release].map(|name| name.to_string_lossy().into_owned());
        Some(Self { host, release, cpus: perfctr::raw::online().ok()?.len() as u32 })
    }
}

/// A host whose physical CPUs were sampled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The hypervisor's name and version.
    pub hypervisor: String,
    /// The hypervisor's build-id, in hexadecimal digits.
    pub build_id: Option<String>,
    /// The physical CPUs that were sampled.
    pub cpus: Vec<u32>,
    /// The host's time-stamp counter when the recording began, which is time 0.
    pub tsc: u64,
    /// Ticks of that counter in a second.
    pub tsc_per_second: u64,
    /// Whether samples of the hypervisor have the place where its guest was left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_guests: bool,
    /// The time-stamp counters of the domains that were sampled, as far as they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clocks: Vec<ClockOf>,
    /// What only a KVM host has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvm: Option<KvmHost>,
}

/// What only the profile of a KVM host has. There a domain's number is that of the process which
/// has made the machine. Domain 0 is the host itself, whose threads are known. So are the threads
/// of a machine's process that are no virtual CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvmHost {
    /// By how much the samples' times may be wrong. Unit: ns.
    pub clock_error: u64,
    /// The samples that are missing because others used the counters, which is an estimate, and
    /// those that the kernel has not taken.
    pub missing: u64,
}

/// The time-stamp counter that a domain reads: `offset + (scale * host >> fraction_bits)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOf {
    pub domain: u32,
    /// Unit: ticks.
    pub offset: u64,
    /// 0 if the counter has the host's frequency.
    pub scale: u64,
    pub fraction_bits: u32,
}

impl ClockOf {
    pub fn new(domain: u32, clock: DomainClock) -> Self {
        let DomainClock { offset, scale, fraction_bits, .. } = clock;
        Self { domain, offset, scale, fraction_bits }
    }

    pub fn clock(&self) -> DomainClock {
        DomainClock::scaled(self.offset, self.scale, self.fraction_bits)
    }
}

impl Host {
    /// Returns the time-stamp counter at this time of a sample. Unit: ns since the recording began.
    pub fn tsc_at(&self, time: u64) -> u64 {
        const NS_PER_SECOND: u128 = 1_000_000_000;
        // Times were rounded down to whole ns.
        let ticks = (u128::from(time) * u128::from(self.tsc_per_second)).div_ceil(NS_PER_SECOND);
        self.tsc.saturating_add(u64::try_from(ticks).unwrap_or(u64::MAX))
    }
}

/// Who executes code on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    Hypervisor,
    /// A domain's kernel.
    Kernel,
    /// A domain's user mode.
    User,
}

impl Layer {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hypervisor => "hypervisor",
            Self::Kernel => "kernel",
            Self::User => "user",
        }
    }
}

/// A function in a module that is no file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Symbol {
    /// Its first address, and the one behind its last.
    pub start: u64,
    pub end: u64,
    pub name: String,
}

/// A file, or the kernel's name of a place without one: `[vdso]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Module {
    /// The path as it is shown.
    pub path: String,
    /// The path's bytes, if they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_bytes: Option<Vec<u8>>,
    /// The linker's identification of a file's contents, in hexadecimal digits.
    pub build_id: Option<String>,
    /// Where its code is. A place that is no file has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub code: Vec<Segment>,
    /// Who executes it, in the profile of a host. In the profile of programs, only the kernel has a
    /// layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<Layer>,
    /// The functions that have samples, in the order of their addresses, if no file names them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub symbols: Vec<Symbol>,
}

impl Module {
    pub fn new(path: &OsStr, facts: Facts) -> Self {
        let path_bytes = path.to_str().is_none().then(|| path.as_bytes().to_vec());
        let (path, Facts { build_id, code }) = (path.to_string_lossy().into_owned(), facts);
        Self { path, path_bytes, build_id, code, layer: None, symbols: Vec::new() }
    }

    /// Returns the path of the file.
    pub fn file(&self) -> PathBuf {
        let bytes = self.path_bytes.clone().map(OsString::from_vec);
        bytes.unwrap_or_else(|| self.path.clone().into()).into()
    }
}

/// A place in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// Index of the module. Memory without a file has none.
    pub module: Option<u32>,
    /// The address as the file states it, or the process's own if there is no file.
    pub address: u64,
}

/// A branch that a processor has taken. In a profile, each of its ends is the index of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Branch<P = u32> {
    pub from: P,
    pub to: P,
    /// What Linux says of it, [`perfctr::watch::BranchFlags`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub flags: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// The thread's number.
    pub tid: u32,
    /// Its process's number.
    pub pid: u32,
    pub name: String,
    /// The count from its start to its end. Unit: events.
    pub count: u64,
    /// The thread of the domain that the virtual CPU executed, if the domain has said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
}

/// A thread of a domain, as the domain's kernel knows it. Names are empty if they are not known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Task {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    /// The name of its process's first thread.
    pub process: String,
    /// The path of its process's control group (cgroup v2).
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub cgroup: Arc<str>,
}

impl Task {
    /// Returns the thread that executes while there is nothing to do.
    pub fn idle() -> Self {
        let [name, process] = ["idle"; 2].map(str::to_owned);
        Self { pid: 0, tid: 0, name, process, cgroup: Arc::default() }
    }
}

impl Thread {
    /// Returns the domain of a virtual CPU in a host's profile: its name if there is one.
    pub fn domain(&self) -> String {
        match &*self.name {
            "" => format!("domain {}", self.pid),
            name => harmless(name),
        }
    }

    /// Returns the process of a domain's thread: its number, and its name if that is known. For
    /// virtual CPUs whose thread is not known, this is a hyphen.
    pub fn process(&self) -> String {
        match &self.task {
            Some(Task { pid, process, .. }) => {
                format!("{pid} {}", harmless(process)).trim_end().to_owned()
            }
            None => "-".to_owned(),
        }
    }

    /// Returns the control group of that process, or a hyphen if it is not known.
    pub fn cgroup(&self) -> String {
        let path = self.task.as_ref().map_or("", |task| &task.cgroup);
        if path.is_empty() { "-".to_owned() } else { harmless(path) }
    }
}

/// A stack in which a thread was after certain branches, and how often.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stack {
    /// Index of the thread.
    pub thread: u32,
    /// The physical CPU, in the profile of a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// The number of periods that ended there.
    pub samples: u64,
    /// Indices of frames, the innermost first, at least one.
    pub frames: Vec<u32>,
    /// Indices of the branches that were taken last before the samples, the latest one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub branches: Vec<u32>,
    /// When each sample was taken, from the first to the last. Profiles of earlier releases have no
    /// times. Unit: ns since the recording began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<u64>,
}

/// The fields that are checked before all others.
#[derive(Deserialize)]
struct Header {
    format: Option<String>,
    version: Option<u64>,
}

impl Header {
    /// Checks that the document has this format.
    fn check(&self, format: &str) -> Result<()> {
        match (self.format.as_deref(), self.version) {
            (Some(found), Some(version)) if found == format => {
                let expected = u64::from(VERSION);
                ensure!(
                    version == expected,
                    "version {version} of the format found, {VERSION} expected"
                );
                Ok(())
            }
            (Some(found), None) if found == format => {
                bail!("no version of the format found, {VERSION} expected")
            }
            (found, _) => bail!("format {:?} found, {FORMAT:?} expected", found.unwrap_or("")),
        }
    }
}

/// A file with the profiles of several events.
#[derive(Deserialize)]
struct Several {
    profiles: Vec<Profile>,
}

/// The same when it is written.
#[derive(Serialize)]
struct WrittenSeveral<'a> {
    format: &'static str,
    version: u32,
    profiles: &'a [Profile],
}

impl Profile {
    /// Makes a profile without samples.
    pub fn new(command: Vec<String>, provider: String, event: String, period: u64) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            command,
            provider,
            event,
            period,
            call_graph: false,
            unobserved: 0,
            frequency: None,
            lost: 0,
            machine: None,
            host: None,
            modules: Vec::new(),
            frames: Vec::new(),
            branches: None,
            threads: Vec::new(),
            stacks: Vec::new(),
        }
    }

    /// Returns the branches that samples have.
    pub fn branches(&self) -> &[Branch] {
        self.branches.as_deref().unwrap_or_default()
    }

    /// Returns all places that a stack names: its frames, and both ends of its branches.
    pub fn places(&self, stack: &Stack) -> impl Iterator<Item = Frame> {
        let branches = stack.branches.iter().map(|&branch| self.branches()[branch as usize]);
        let ends = branches.flat_map(|Branch { from, to, .. }| [from, to]);
        stack.frames.iter().copied().chain(ends).map(|frame| self.frames[frame as usize])
    }

    /// Returns whether it is the profile of a KVM host.
    pub fn is_of_kvm_host(&self) -> bool {
        self.host.as_ref().is_some_and(|host| host.kvm.is_some())
    }

    /// Returns the noun for its threads.
    pub fn thread_noun(&self) -> &'static str {
        if self.host.is_some() && !self.is_of_kvm_host() { "vCPU" } else { "thread" }
    }

    /// Returns the name of a thread.
    pub fn name(&self, thread: &Thread) -> String {
        match (&self.host, &thread.task) {
            (Some(_), Some(Task { tid, name, .. })) => {
                format!("{} {tid} {}", thread.domain(), harmless(name)).trim_end().to_owned()
            }
            (Some(_), None) => format!("{} vCPU {}", thread.domain(), thread.tid),
            (None, _) => thread.name.clone(),
        }
    }

    /// Returns how many threads it has. Those of a host are virtual CPUs.
    pub fn number_of_threads(&self) -> u64 {
        let of_host = || self.threads.iter().map(|thread| (thread.pid, thread.tid));
        let number = match self.host {
            Some(_) => of_host().collect::<BTreeSet<_>>().len(),
            None => self.threads.len(),
        };
        number as u64
    }

    /// Returns the number of all samples.
    pub fn samples(&self) -> u64 {
        self.stacks.iter().map(|stack| stack.samples).sum()
    }

    /// Returns how many further samples there should be: one for each period that threads have
    /// completed without a sample, and those that are known to be lost.
    pub fn missed(&self) -> u64 {
        let ended: u64 = self.threads.iter().map(|thread| thread.count / self.period).sum();
        let kvm = self.host.as_ref().and_then(|host| host.kvm);
        let missing = self.lost.saturating_add(kvm.map_or(0, |kvm| kvm.missing));
        ended.saturating_sub(self.samples()).saturating_add(missing)
    }

    /// Adds to each thread's count the events for which its samples stand. This is for profiles
    /// whose threads' own counts are unknown, and therefore 0.
    pub fn count_by_samples(&mut self) {
        for stack in &self.stacks {
            let count = &mut self.threads[stack.thread as usize].count;
            *count = count.saturating_add(stack.samples.saturating_mul(self.period));
        }
    }

    /// Reads a profile, or a file of Linux's `perf record`, as one profile for each of its events.
    /// The file may have any contents.
    pub fn read(path: &Path) -> Result<Vec<Self>> {
        let read = || {
            let mut file = BufReader::new(File::open(path)?);
            if file.seek(SeekFrom::Start(0)).is_err() {
                // A pipe cannot be read twice.
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                return Self::read_any(&mut Cursor::new(bytes));
            }
            Self::read_any(&mut file)
        };
        read().with_context(|| {
            format!("cannot read {}, which `perfctr record` writes", path.display())
        })
    }

    fn read_any(file: &mut (impl BufRead + Seek)) -> Result<Vec<Self>> {
        let mut start = Vec::new();
        file.by_ref().take(perf_data::MAGIC_BYTES).read_to_end(&mut start)?;
        file.rewind()?;
        if perf_data::is(&start) { perf_data::read(file) } else { Self::parse_all(file) }
    }

    /// Parses a document, which is never in memory as a whole.
    fn parse_all(file: &mut (impl BufRead + Seek)) -> Result<Vec<Self>> {
        let header = serde_json::from_reader::<_, Header>(&mut *file);
        file.rewind()?;
        let header = header.context("this is no JSON document")?;
        let profiles = match header.format.as_deref() {
            Some(FORMAT_OF_SEVERAL) => {
                header.check(FORMAT_OF_SEVERAL)?;
                let several = serde_json::from_reader::<_, Several>(file);
                several.context("malformed profiles")?.profiles
            }
            _ => {
                header.check(FORMAT)?;
                vec![serde_json::from_reader(file).context("malformed profile")?]
            }
        };
        ensure!(!profiles.is_empty(), "no profiles found");
        profiles.iter().try_for_each(Self::check).context("malformed profile")?;
        Ok(profiles)
    }

    /// Checks that every index is valid, and that no sum overflows.
    pub fn check(&self) -> Result<()> {
        ensure!(self.period > 0, "period 0 found, at least 1 expected");
        for (n, Frame { module, .. }) in self.frames.iter().enumerate() {
            let Some(module) = module else { continue };
            in_range("module", *module, self.modules.len())
                .with_context(|| format!("frame {n}"))?;
        }
        for (n, Branch { from, to, .. }) in self.branches().iter().enumerate() {
            for frame in [from, to] {
                in_range("frame", *frame, self.frames.len())
                    .with_context(|| format!("branch {n}"))?;
            }
        }
        for (n, stack) in self.stacks.iter().enumerate() {
            let Stack { thread, samples, frames, branches, times, .. } = stack;
            let place = || format!("stack {n}");
            in_range("thread", *thread, self.threads.len()).with_context(place)?;
            let depth = frames.len();
            ensure!(
                (1..=DEPTH_MAX).contains(&depth),
                "stack {n}: {depth} frames found, 1 to {DEPTH_MAX} expected"
            );
            let known = times.len() as u64;
            ensure!(
                known == 0 || known == *samples,
                "stack {n}: times of {known} samples found, of {samples} expected"
            );
            for frame in frames {
                in_range("frame", *frame, self.frames.len()).with_context(place)?;
            }
            for branch in branches {
                in_range("branch", *branch, self.branches().len()).with_context(place)?;
            }
        }
        // No sum of 2^64 numbers of 64 bits overflows.
        let samples: u128 = self.stacks.iter().map(|stack| u128::from(stack.samples)).sum();
        let counted: u128 = self.threads.iter().map(|thread| u128::from(thread.count)).sum();
        let events = samples.saturating_mul(self.period.into()).max(counted);
        let max = i64::MAX;
        ensure!(i64::try_from(events).is_ok(), "{events} events found, {max} at most expected");
        Ok(())
    }
}

/// The file to which a profile will be written.
pub struct Place {
    path: PathBuf,
    file: File,
    /// Whether there was no such file before.
    is_new: bool,
}

impl Place {
    /// Opens the file, and leaves its contents until there is something to write.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, 0o666)
    }

    /// Does the same. If the file is new, only its owner may read it, because not everybody may
    /// know where the hypervisor and the kernel have their code.
    pub fn open_private(path: &Path) -> Result<Self> {
        Self::open_with(path, 0o600)
    }

    fn open_with(path: &Path, mode: u32) -> Result<Self> {
        let is_new = !path.exists();
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).mode(mode).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path: path.to_owned(), file, is_new })
    }

    /// Writes the profile of each event.
    pub fn write(&self, profiles: &[Profile]) -> Result<()> {
        self.write_by(|file| match profiles {
            [profile] => Ok(serde_json::to_writer(file, profile)?),
            profiles => {
                let (format, version) = (FORMAT_OF_SEVERAL, VERSION);
                let several = WrittenSeveral { format, version, profiles };
                Ok(serde_json::to_writer(file, &several)?)
            }
        })
    }

    /// Writes these bytes.
    pub fn write_bytes(&self, bytes: &[u8]) -> Result<()> {
        self.write_by(|file| file.write_all(bytes))
    }

    fn write_by(&self, write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> Result<()> {
        let all = || {
            // A pipe has no length.
            self.file.set_len(0).ok();
            let mut file = BufWriter::new(&self.file);
            write(&mut file)?;
            file.flush()
        };
        all().with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Empties the file, and returns it for somebody who writes it piece by piece.
    pub fn begin(&self) -> io::Result<&File> {
        self.file.set_len(0)?;
        Ok(&self.file)
    }

    /// Gives up writing, and keeps the file's former contents.
    pub fn give_up(&self) {
        if self.is_new {
            fs::remove_file(&self.path).ok();
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn in_range(what: &str, index: u32, length: usize) -> Result<()> {
    ensure!((index as usize) < length, "{what} {index} of {length} found");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    pub fn profile() -> Profile {
        let mut profile = Profile::new(vec!["a".into()], "native".into(), "cycles:u".into(), 10);
        profile.modules.push(Module::new("/a".as_ref(), Facts::default()));
        profile.frames.push(Frame { module: Some(0), address: 16 });
        profile.frames.push(Frame { module: None, address: 32 });
        profile.threads.push(Thread { tid: 2, pid: 1, name: "b".into(), count: 59, task: None });
        profile.stacks.push(Stack {
            thread: 0,
            samples: 3,
            frames: vec![0, 1],
            times: vec![5, 6, 9],
            ..Stack::default()
        });
        profile
    }

    fn read(text: &str) -> String {
        format!("{:#}", Profile::parse_all(&mut Cursor::new(&text)).unwrap_err())
    }

    #[test]
    fn what_is_written_can_be_read() {
        let text = serde_json::to_vec(&profile()).unwrap();
        assert_eq!(Profile::parse_all(&mut Cursor::new(&text)).unwrap(), [profile()]);
        assert_eq!((profile().samples(), profile().missed()), (3, 2));
    }

    #[test]
    fn paths_of_any_bytes_are_kept() {
        let bytes = OsStr::from_bytes(b"/\xe6/a");
        let mut profile = profile();
        profile.modules.push(Module::new(bytes, Facts::default()));
        let text = serde_json::to_string(&profile).unwrap();
        let [read] = &*Profile::parse_all(&mut Cursor::new(&text)).unwrap() else { panic!() };
        assert_eq!(read.modules[1].file(), Path::new(bytes));
        assert_eq!(read.modules[1].path, "/\u{fffd}/a");
        assert_eq!(text.matches("path_bytes").count(), 1, "{text}");
    }

    #[test]
    fn fields_of_later_releases_are_left_out() {
        let text = serde_json::to_string(&profile()).unwrap();
        let grown = text.replace("\"period\"", "\"seconds\":1,\"period\"");
        let grown = grown.replace("\"address\"", "\"inlined\":[2],\"address\"");
        assert_eq!(Profile::parse_all(&mut Cursor::new(&grown)).unwrap(), [profile()]);
    }

    #[test]
    fn what_was_recorded_before_stays_until_there_is_something_new() {
        let path = std::env::temp_dir().join(format!("perfctr-place-{}", std::process::id()));
        let place = Place::open(&path).unwrap();
        assert!(path.exists());
        place.give_up();
        assert!(!path.exists());
        fs::write(&path, "what was there before, and is longer than a profile".repeat(99)).unwrap();
        let place = Place::open(&path).unwrap();
        place.give_up();
        assert!(fs::read_to_string(&path).unwrap().starts_with("what was there"));
        place.write(&[profile()]).unwrap();
        assert_eq!(Profile::read(&path).unwrap(), [profile()]);
        let several = [profile(), Profile { event: "branches:u".into(), ..profile() }];
        Place::open(&path).unwrap().write(&several).unwrap();
        assert_eq!(Profile::read(&path).unwrap(), several);
        fs::remove_file(&path).unwrap();
        assert!(Place::open(Path::new("/nonexistent/x")).is_err());
    }

    #[test]
    fn a_hosts_profile_is_its_owners() {
        let path = std::env::temp_dir().join(format!("perfctr-private-{}", std::process::id()));
        let place = Place::open_private(&path).unwrap();
        let mode = place.file.metadata().unwrap().permissions().mode();
        fs::remove_file(&path).unwrap();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_profile_of_hours_can_be_read() {
        let mut profile = profile();
        (profile.period, profile.threads[0].count) = (1_000_003, 100_000_000_000_000);
        let text = serde_json::to_vec(&profile).unwrap();
        assert_eq!(Profile::parse_all(&mut Cursor::new(&text)).unwrap(), [profile]);
    }

    #[test]
    fn what_a_host_adds_is_kept_and_left_out_of_other_profiles() {
        let text = serde_json::to_string(&profile()).unwrap();
        for field in ["host", "layer", "symbols", "cpu"] {
            assert!(!text.contains(&format!("\"{field}\"")), "{field} in {text}");
        }
        let mut of_host = profile();
        of_host.host = Some(Host {
            hypervisor: "Xen".into(),
            build_id: None,
            cpus: vec![0, 3],
            tsc: u64::MAX,
            tsc_per_second: 1,
            at_guests: true,
            clocks: vec![ClockOf { domain: 3, offset: u64::MAX, scale: 0, fraction_bits: 0 }],
            kvm: Some(KvmHost { clock_error: 7, missing: 3 }),
        });
        of_host.modules[0].layer = Some(Layer::Hypervisor);
        of_host.modules[0].symbols = vec![Symbol { start: 1, end: u64::MAX, name: "f".into() }];
        of_host.stacks[0].cpu = Some(3);
        let text = serde_json::to_string(&of_host).unwrap();
        assert_eq!(Profile::parse_all(&mut Cursor::new(&text)).unwrap(), [of_host]);
        let spoilt = text.replace("\"hypervisor\",", "\"application\",");
        assert!(read(&spoilt).contains("unknown variant `application`"), "{}", read(&spoilt));
    }

    /// Returns the profile above with two branches, of which one was mispredicted.
    fn with_branches() -> Profile {
        let branch = |from, to, flags| Branch { from, to, flags };
        let branches = Some(vec![branch(0, 1, 1), branch(1, 0, 0)]);
        let mut profile = Profile { branches, ..profile() };
        profile.stacks[0].branches = vec![1, 0, 1];
        profile
    }

    #[test]
    fn branches_are_kept_and_left_out_of_profiles_without_them() {
        let text = serde_json::to_string(&profile()).unwrap();
        assert!(!text.contains("branches"), "{text}");
        let text = serde_json::to_string(&with_branches()).unwrap();
        let [read] = &*Profile::parse_all(&mut Cursor::new(&text)).unwrap() else { panic!() };
        assert_eq!(*read, with_branches());
        let places: Vec<u64> = read.places(&read.stacks[0]).map(|frame| frame.address).collect();
        assert_eq!(places, [16, 32, 32, 16, 16, 32, 32, 16]);
    }

    #[test]
    fn branches_that_lead_nowhere_are_refused() {
        type Spoil = fn(&mut Profile);
        let cases: [(Spoil, &str); 4] = [
            (|p| p.branches.as_mut().unwrap()[1].from = 2, "branch 1: frame 2 of 2 found"),
            (|p| p.branches.as_mut().unwrap()[0].to = 2, "branch 0: frame 2 of 2 found"),
            (|p| p.stacks[0].branches[1] = 2, "stack 0: branch 2 of 2 found"),
            (|p| p.branches = None, "stack 0: branch 1 of 0 found"),
        ];
        for (spoil, expected) in cases {
            let mut profile = with_branches();
            spoil(&mut profile);
            let error = read(&serde_json::to_string(&profile).unwrap());
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn something_else_is_refused_by_what_it_is() {
        assert!(read("\u{7f}ELF").starts_with("this is no JSON document: "));
        assert_eq!(read("{}"), "format \"\" found, \"perfctr profile\" expected");
        assert_eq!(read(r#"{"format":"x"}"#), "format \"x\" found, \"perfctr profile\" expected");
        let header = r#"{"format":"perfctr profile","version":2}"#;
        assert_eq!(read(header), "version 2 of the format found, 1 expected");
        let header = r#"{"format":"perfctr profiles","version":2}"#;
        assert_eq!(read(header), "version 2 of the format found, 1 expected");
        let none = r#"{"format":"perfctr profiles","version":1,"profiles":[]}"#;
        assert_eq!(read(none), "no profiles found");
        let header = r#"{"format":"perfctr profile","version":1}"#;
        assert!(read(header).starts_with("malformed profile: missing field"));
    }

    #[test]
    fn what_leads_nowhere_is_refused() {
        type Spoil = fn(&mut Profile);
        let cases: [(Spoil, &str); 7] = [
            (|p| p.period = 0, "period 0 found, at least 1 expected"),
            (|p| p.frames[0].module = Some(1), "frame 0: module 1 of 1 found"),
            (|p| p.stacks[0].thread = 7, "stack 0: thread 7 of 1 found"),
            (|p| p.stacks[0].frames[1] = 2, "stack 0: frame 2 of 2 found"),
            (|p| p.stacks[0].frames.clear(), "stack 0: 0 frames found, 1 to 512 expected"),
            (|p| p.stacks[0].samples = 4, "stack 0: times of 3 samples found, of 4 expected"),
            (
                |p| (p.stacks[0].samples, p.stacks[0].times) = (u64::MAX, Vec::new()),
                "events found, 9223372036854775807 at most",
            ),
        ];
        for (spoil, expected) in cases {
            let mut profile = profile();
            spoil(&mut profile);
            let error = read(&serde_json::to_string(&profile).unwrap());
            assert!(error.contains(expected), "{error}");
        }
    }
}
